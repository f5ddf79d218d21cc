"""Convolutional cells as ENAS samples them, one after another: the kind of graph in Placeto's cifar-10 dataset.

A cell's nodes read two earlier nodes each, the first two being the results of the two cells before it (Pham et al.
2018, section 2.4; Placeto, appendix A.3). Costs are those of an inference; the published graphs are of training steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.models.workload import Workload, WorkloadBuilder

BRANCHES = ("identity", "separable3", "separable5", "average", "maximum")
"""What a node may do with what it reads before it adds the two up."""

POOL, COLOURS, CLASSES = 9, 3, 10
"""Elements of a 3x3 window, channels of an image, classes of CIFAR-10."""


@dataclass(frozen=True)
class EnasSizes:
    """A stem, ``cells`` cells of ``nodes`` nodes beside their two inputs, and a classifier, in f32.

    After a third and two thirds of the cells the resolution is halved and the number of filters doubled. The wiring
    of a cell follows from ``seed``; cells that halve have a wiring of their own. Raises OptionError where there is no
    cell, node, filter or image, or the resolution cannot be halved twice.
    """

    cells: int = 6
    nodes: int = 5
    filters: int = 64
    resolution: int = 32
    batch: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.cells, self.nodes, self.filters, self.batch) < 1 or self.resolution % 4 or self.resolution < 4:
            raise OptionError(f"ENAS cells need sizes of 1 or more and a resolution that 4 divides, not {self}")

    @staticmethod
    def drawn(seed: int) -> EnasSizes:
        """3 to 15 cells of 4 to 7 nodes, 32 to 256 filters, and a batch of 240 to 360 (Placeto, appendix A.3)."""
        rng = np.random.default_rng(seed)
        return EnasSizes(
            cells=int(rng.integers(3, 16)),
            nodes=int(rng.integers(4, 8)),
            filters=8 * int(rng.integers(4, 33)),
            batch=int(rng.integers(240, 361)),
            seed=seed,
        )

    @property
    def reductions(self) -> tuple[int, int]:
        """The cells that halve the resolution."""
        return self.cells // 3, 2 * self.cells // 3


@dataclass(frozen=True)
class _Node:
    """The two earlier nodes that a node reads, and what it does with each."""

    reads: tuple[int, int]
    branches: tuple[str, str]


def enas(sizes: EnasSizes) -> Workload:
    """The network; weights are held by the ops."""
    network = WorkloadBuilder(f"enas-{sizes.cells}x{sizes.nodes}-seed{sizes.seed}")
    rng = np.random.default_rng(sizes.seed)
    wirings = [_draw_wiring(sizes.nodes, rng) for _ in ("normal", "halving")]
    scale = sizes
    shape = (sizes.batch, sizes.filters, sizes.resolution, sizes.resolution)
    flops = 2.0 * POOL * COLOURS * prod(shape)
    before = last = network.add("stem", "Convolution", [], shape, flops, POOL * COLOURS * sizes.filters)
    for c in range(sizes.cells):
        halves = c in sizes.reductions
        if halves:
            scale = replace(scale, filters=2 * scale.filters, resolution=scale.resolution // 2)
        before, last = last, _add_cell(network, f"cell{c}", scale, wirings[halves], (before, last))
    channels, plane = network.type_of(last).shape[1], scale.resolution**2
    flops = float(sizes.batch * channels * (plane + 2 * CLASSES))
    network.add("head", "MatMul", [last], (sizes.batch, CLASSES), flops, channels * CLASSES)
    return network.build()


def _draw_wiring(nodes: int, rng: np.random.Generator) -> list[_Node]:
    """The nodes of a cell; number 0 and 1 are its inputs."""
    return [
        _Node((int(rng.integers(n)), int(rng.integers(n))), (str(rng.choice(BRANCHES)), str(rng.choice(BRANCHES))))
        for n in range(2, nodes + 2)
    ]


def _add_cell(
    network: WorkloadBuilder, name: str, sizes: EnasSizes, wiring: list[_Node], inputs: tuple[int, int]
) -> int:
    """Append a cell behind two ops; the op that joins what no node of it reads.

    Its two inputs are brought to its resolution and filters by a 1x1 convolution each, in the halving cells too: there
    the published ones have branches of stride 2.
    """
    shape = (sizes.batch, sizes.filters, sizes.resolution, sizes.resolution)
    elements, results = prod(shape), list[int]()
    for i, op in enumerate(inputs):
        channels = network.type_of(op).shape[1]
        weights = channels * sizes.filters
        results.append(network.add(f"{name}.in{i}", "Convolution", [op], shape, 2.0 * channels * elements, weights))
    for n, node in enumerate(wiring):
        reads = [
            _add_branch(network, f"{name}.n{n}.{side}", sizes, branch, results[read])
            for side, read, branch in zip("ab", node.reads, node.branches, strict=True)
        ]
        results.append(network.add(f"{name}.n{n}", "Add", list(dict.fromkeys(reads)), shape, float(elements)))
    read = {i for node in wiring for i in node.reads}
    ends = [op for i, op in enumerate(results) if i not in read]
    return network.add(f"{name}.out", "Concat", ends, (shape[0], len(ends) * shape[1], *shape[2:]), 0.0)


def _add_branch(network: WorkloadBuilder, name: str, sizes: EnasSizes, branch: str, read: int) -> int:
    """Append what a node does with one of the nodes that it reads; its op, for the identity the one that is read."""
    shape = network.type_of(read).shape
    elements, filters = prod(shape), sizes.filters
    if branch == "identity":
        return read
    if branch in ("average", "maximum"):
        return network.add(name, {"average": "AvgPool", "maximum": "MaxPool"}[branch], [read], shape, POOL * elements)
    kernel = {"separable3": 9, "separable5": 25}[branch]
    flops, weights = 2.0 * (kernel + filters) * elements, (kernel + filters) * filters
    return network.add(name, "Convolution", [read], shape, flops, weights)
