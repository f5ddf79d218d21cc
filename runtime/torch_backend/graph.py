"""TorchGraph: a computation op by op, before it has devices. Legend: N nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from hsdag.ir.graph import IntArray, topological_order

Tensor = torch.Tensor
Ref = tuple[int, int]
"""A result: the node that makes it, and the output port."""

TensorFunction = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""From the tensors a node reads to its results, on the device of what it reads; never waits for a device."""


@dataclass(frozen=True)
class Feed:
    """The part ``ranges`` (None for all) of an input called ``tensor``, in an element type and shape."""

    tensor: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...] | None = None

    def cut(self, whole: Tensor) -> Tensor:
        """The part of ``whole``; raises ValueError where it does not fit."""
        if self.ranges is not None:
            if whole.dim() != len(self.ranges):
                raise ValueError(f"{len(self.ranges)} axes are expected, not {tuple(whole.shape)}")
            whole = whole[tuple(slice(first, last) for first, last in self.ranges)]
        if tuple(whole.shape) != self.shape:
            raise ValueError(f"shape {self.shape} is expected, not {tuple(whole.shape)}")
        return whole


@dataclass(frozen=True, eq=False)
class TorchNode:
    """An op: exactly one of ``run`` (it computes), ``feed`` (it is given) and ``constants`` (CPU, one per port).

    ``output_bytes`` per port is only shown and used for ranks; ports beyond it count as 0.
    """

    name: str
    op_type: str = ""
    reads: tuple[Ref, ...] = ()
    run: TensorFunction | None = None
    feed: Feed | None = None
    constants: tuple[Tensor, ...] = ()
    output_bytes: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (self.run is not None) + (self.feed is not None) + bool(self.constants) != 1:
            raise ValueError(f"node {self.name!r} must either compute, or be fed, or be constant")
        if self.reads and self.run is None:
            raise ValueError(f"node {self.name!r} reads results but computes nothing")


@dataclass(frozen=True, eq=False)
class TorchGraph:
    """Nodes, and the results that are wanted, by name.

    Raises ValueError where a node reads, or a result names, one that is not there, or nodes read in a circle.
    """

    name: str
    nodes: tuple[TorchNode, ...]
    outputs: Mapping[str, Ref]

    def __post_init__(self) -> None:
        for node in self.nodes:
            if any(not 0 <= u < len(self.nodes) for u, _ in node.reads):
                raise ValueError(f"node {node.name!r} of graph {self.name!r} reads a node that is not there")
        for name, (u, _) in self.outputs.items():
            if not 0 <= u < len(self.nodes):
                raise ValueError(f"output {name!r} of graph {self.name!r} names no node")
        assert len(self.order) == len(self.nodes)

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.nodes)

    @cached_property
    def order(self) -> IntArray:
        """[N] nodes such that each comes after all that it reads."""
        edges = np.array([(u, v) for v, node in enumerate(self.nodes) for u, _ in node.reads], dtype=np.int64)
        pairs = edges.reshape(-1, 2)
        return topological_order(len(self.nodes), pairs[:, 0], pairs[:, 1])

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, each once, in order of first use."""
        return tuple(dict.fromkeys(node.feed.tensor for node in self.nodes if node.feed is not None))
