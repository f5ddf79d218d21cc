"""Build graphs of torch functions from OpenVINO models, before their ops have devices. Legend: N nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakValueDictionary

import numpy as np
import openvino as ov
import torch

from hsdag.ir.graph.build import bytes_of, ordered_ops, sizes_of
from hsdag.ir.graph.computation_graph import IntArray, topological_order
from hsdag.ir.graph.reader import input_name
from hsdag.runtime.torch.op import SourceOp, Tensor, TensorFunction, UnsupportedOpError
from hsdag.runtime.torch.ops import build_op

PINNED_BYTES = 1 << 20
"""Bytes below which a constant stays in pageable memory: locking its pages would take longer than copying it."""
PINNED_RATIO = 1.25
"""Largest ratio of locked bytes to a constant's bytes; beyond it the constant stays in pageable memory.

Torch locks blocks whose sizes are powers of two.
"""

Ref = tuple[int, int]
"""A result: the node that computes it, and the output port."""


@dataclass(frozen=True)
class Feed:
    """An input, or a part of one, that a node takes.

    Attributes:
        tensor: Name of the input.
        ranges: First index and end of the part along each axis of the input; None for the whole input.
    """

    tensor: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...] | None = None

    def cut(self, whole: Tensor) -> Tensor:
        """Return the part of the input ``whole``. Raises ValueError if shape or number of axes do not fit."""
        if self.ranges is not None:
            if whole.dim() != len(self.ranges):
                raise ValueError(f"{len(self.ranges)} axes are expected, not {tuple(whole.shape)}")
            whole = whole[tuple(slice(first, last) for first, last in self.ranges)]
        if tuple(whole.shape) != self.shape:
            raise ValueError(f"shape {self.shape} is expected, not {tuple(whole.shape)}")
        return whole


@dataclass(frozen=True, eq=False)
class TorchNode:
    """An op, which has exactly one of ``run``, ``feed`` and ``constants``.

    Attributes:
        reads: Results that the op reads, by input port.
        run: Function that computes the results.
        feed: Input of the graph that is the result.
        constants: Results on the CPU, by output port.
        output_bytes: Size of the result by output port, for display and ranks; further ports count as 0.
        in_torch: Whether torch runs the op; otherwise OpenVINO evaluates it on the CPU.
    """

    name: str
    op_type: str = ""
    reads: tuple[Ref, ...] = ()
    run: TensorFunction | None = None
    feed: Feed | None = None
    constants: tuple[Tensor, ...] = ()
    output_bytes: tuple[float, ...] = ()
    in_torch: bool = True


@dataclass(frozen=True, eq=False)
class TorchGraph:
    """A graph of nodes, and its output results by name."""

    name: str
    nodes: tuple[TorchNode, ...]
    outputs: Mapping[str, Ref]

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes, N."""
        return len(self.nodes)

    @cached_property
    def order(self) -> IntArray:
        """Return the nodes [N] in topological order."""
        edges = np.array([(u, v) for v, node in enumerate(self.nodes) for u, _ in node.reads], dtype=np.int64)
        pairs = edges.reshape(-1, 2)
        return topological_order(len(self.nodes), pairs[:, 0], pairs[:, 1])

    @cached_property
    def on_devices(self) -> WeakValueDictionary[tuple[int, int, str, torch.dtype | None], Tensor]:
        """Return the constants that programs of the graph have on devices, as long as a program uses them.

        The keys are node, output port, torch device, and the element type if it is not the constant's own.
        """
        return WeakValueDictionary()

    def pinned(self) -> TorchGraph:
        """Return the graph with large constants in page-locked memory where possible: GPUs copy faster from there."""
        nodes = (replace(node, constants=tuple(map(_pinned, node.constants))) for node in self.nodes)
        return replace(self, nodes=tuple(nodes))

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of the inputs, each once, in order of first use."""
        return tuple(dict.fromkeys(node.feed.tensor for node in self.nodes if node.feed is not None))


def openvino_graph(model: ov.Model) -> TorchGraph:
    """Return the torch graph of a model; node v is op v of its ComputationGraph (hsdag.ir.graph_of).

    Inputs are called by their tensor names. Ops that depend on constants and fixed shapes alone are computed here, and
    become constants. Raises UnsupportedOpError for an op that neither torch nor OpenVINO's CPU device runs by itself,
    and for an input without a fixed shape.
    """
    named = ordered_ops(model)
    index = {node.get_name(): v for v, (_, node) in enumerate(named)}
    inputs = {port.get_node().get_name(): input_name(port) for port in model.inputs}
    nodes: list[TorchNode] = []
    for name, node in named:
        reads = tuple((index[s.get_node().get_name()], s.get_index()) for s in node.input_values())
        op_type, sizes = str(node.get_type_name()), tuple(float(bytes_of(p, sizes_of(p))) for p in node.outputs())
        if op_type == "Parameter":
            nodes.append(TorchNode(name, op_type, feed=_feed(node, inputs[node.get_name()]), output_bytes=sizes))
            continue
        constants = {k: nodes[u].constants[port] for k, (u, port) in enumerate(reads) if nodes[u].constants}
        run, in_torch = build_op(node, constants)
        is_shape = op_type == "ShapeOf" and node.get_input_partial_shape(0).is_static
        if is_shape or (op_type != "Result" and len(constants) == len(reads)):
            with torch.no_grad():
                results = tuple(run(list(constants.values())))
            nodes.append(TorchNode(name, op_type, constants=results, output_bytes=sizes))
        else:
            nodes.append(TorchNode(name, op_type, reads, run, output_bytes=sizes, in_torch=in_torch))
    outputs: dict[str, Ref] = {}
    for i, port in enumerate(model.outputs):
        name = input_name(port)
        outputs[f"{name}#{i}" if name in outputs else name] = (index[port.get_node().get_name()], 0)
    return TorchGraph(model.get_friendly_name(), tuple(nodes), outputs)


def _pinned(constant: Tensor) -> Tensor:
    """Return a constant in page-locked memory if that pays and the system grants it, else unchanged."""
    size = constant.nbytes
    if size < PINNED_BYTES or 1 << (size - 1).bit_length() > PINNED_RATIO * size:
        return constant
    try:
        return constant.pin_memory()
    except RuntimeError:
        return constant


def _feed(node: ov.Node, name: str) -> Feed:
    shape = node.get_output_partial_shape(0)
    if not shape.is_static:
        raise UnsupportedOpError(f"input {name!r} has the open shape {shape}; torch devices run fixed shapes")
    return Feed(name, SourceOp(node).dtype(), tuple(shape.to_shape()))
