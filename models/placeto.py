"""Workloads in the manner of Placeto's datasets (appendix A.2, A.3): cells of ENAS, unrolled sentence models.

Costs are those of an inference; the published graphs are of training steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.flops import TRANSCENDENTAL_COST
from hsdag.models.workload import Workload, WorkloadBuilder

BRANCHES = ("identity", "separable3", "separable5", "average", "maximum")
"""What a node may do with what it reads before it adds the two up."""

Wiring = tuple[tuple[int, int], tuple[str, str]]
"""The two earlier nodes that a node reads, and what it does with each."""

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


def _draw_wiring(nodes: int, rng: np.random.Generator) -> list[Wiring]:
    """The nodes of a cell; number 0 and 1 are its inputs."""
    return [
        ((int(rng.integers(n)), int(rng.integers(n))), (str(rng.choice(BRANCHES)), str(rng.choice(BRANCHES))))
        for n in range(2, nodes + 2)
    ]


def _add_cell(
    network: WorkloadBuilder, name: str, sizes: EnasSizes, wiring: list[Wiring], inputs: tuple[int, int]
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
    for n, (reads, branches) in enumerate(wiring):
        ends = [
            _add_branch(network, f"{name}.n{n}.{side}", sizes, branch, results[read])
            for side, read, branch in zip("ab", reads, branches, strict=True)
        ]
        results.append(network.add(f"{name}.n{n}", "Add", list(dict.fromkeys(ends)), shape, float(elements)))
    read = {i for reads, _ in wiring for i in reads}
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


NMT_OPS, NMT_STEPS = 390, 32
"""Bounds of what ``NmtSizes.drawn`` draws."""

GATES, CELL_COST = 4, 20.0
"""Gates of an LSTM, and operations for each element of its state behind the product: activations, products, a sum."""


@dataclass(frozen=True)
class NmtSizes:
    """Words of the source and the target sentence, LSTM layers on either side, their width, sentences in a batch; f32.

    With ``feeds_attention`` a step of the decoder reads the attention of the step before, so that steps cannot
    overlap. Raises OptionError where a size is below 1.
    """

    source_steps: int = 16
    target_steps: int = 16
    layers: int = 2
    width: int = 512
    vocabulary: int = 16_000
    batch: int = 128
    feeds_attention: bool = True

    def __post_init__(self) -> None:
        if min(self.source_steps, self.target_steps, self.layers, self.width, self.vocabulary, self.batch) < 1:
            raise OptionError(f"every size of a translation model must be 1 or more, not {self}")

    @staticmethod
    def drawn(seed: int) -> NmtSizes:
        """1 to 4 layers, sentences of 4 to 32 words within NMT_OPS, a batch of 64 to 128 (Placeto, appendix A.3)."""
        rng = np.random.default_rng(seed)
        layers = int(rng.integers(1, 5))
        longest = min(NMT_STEPS, NMT_OPS // (8 + 4 * layers))
        source_steps, target_steps = (int(steps) for steps in rng.integers(4, longest + 1, 2))
        return NmtSizes(
            source_steps,
            target_steps,
            layers,
            width=128 * int(rng.integers(2, 9)),
            vocabulary=1000 * int(rng.integers(4, 33)),
            batch=int(rng.integers(64, 129)),
            feeds_attention=bool(rng.integers(2)),
        )


def nmt(sizes: NmtSizes) -> Workload:
    """The unrolled model: for S and T words and l layers (1 + 2l) S + (6 + 2l) T + 2l + 5 ops.

    All steps read the same weights, which are ops of type Parameter. A state is one tensor of two halves, what the
    cell gives and what it remembers. The decoder begins with the encoder's last states.
    """
    model = WorkloadBuilder(f"nmt-{sizes.layers}x{sizes.source_steps}x{sizes.target_steps}")
    batch, w, steps = sizes.batch, sizes.width, sizes.source_steps
    states = [list[int]() for _ in range(sizes.layers)]

    def weight(name: str, rows: int, columns: int) -> int:
        return model.add(name, "Parameter", [], (rows, columns), 0.0)

    def cell_weights(name: str, read: int) -> list[int]:
        """Weights of the layers; the first one reads a word, or a word and the attention."""
        return [weight(f"{name}.l{i}.weight", (w if i else read) + w, GATES * w) for i in range(sizes.layers)]

    def product(name: str, sources: list[int], rows: int, columns: int) -> int:
        return model.add(name, "MatMul", sources, (batch, columns), 2.0 * batch * rows * columns)

    def step(name: str, table: int, fed: list[int], weights: list[int]) -> int:
        """One word through all layers, whose states are replaced; the last layer's state.

        ``fed`` is what the first layer reads beside the word.
        """
        x = [model.add(f"{name}.word", "Gather", [table], (batch, w), 0.0), *fed]
        for i, own in enumerate(weights):
            gates = product(f"{name}.l{i}.gates", [*x, *states[i], own], w * (len(x) + len(states[i])), GATES * w)
            x = [model.add(f"{name}.l{i}.state", "Tanh", [gates, *states[i]], (batch, 2 * w), CELL_COST * batch * w)]
            states[i] = x
        return x[0]

    def attend(name: str, top: int, memory: int, joint: int) -> int:
        """Attention of a step to the encoder's states, joined with the step's own: [batch, width]."""
        flops = 2.0 * batch * w * steps
        scores = model.add(f"{name}.scores", "MatMul", [top, memory], (batch, steps), flops)
        cost = float(TRANSCENDENTAL_COST["Softmax"] * batch * steps)
        shares = model.add(f"{name}.softmax", "Softmax", [scores], (batch, steps), cost)
        context = model.add(f"{name}.context", "MatMul", [shares, memory], (batch, w), flops)
        return product(f"{name}.attention", [context, top, joint], 2 * w, w)

    weights, table = cell_weights("encoder", w), weight("encoder.embedding", sizes.vocabulary, w)
    tops = [step(f"encoder.t{t}", table, [], weights) for t in range(steps)]
    memory = model.add("memory", "Concat", tops, (batch, steps, w), 0.0)
    weights = cell_weights("decoder", 2 * w if sizes.feeds_attention else w)
    table = weight("decoder.embedding", sizes.vocabulary, w)
    joint, head = weight("attention.weight", 2 * w, w), weight("logits.weight", w, sizes.vocabulary)
    attended: list[int] = []
    for t in range(sizes.target_steps):
        top = step(f"decoder.t{t}", table, attended if sizes.feeds_attention else [], weights)
        attended = [attend(f"decoder.t{t}", top, memory, joint)]
        product(f"decoder.t{t}.logits", [*attended, head], w, sizes.vocabulary)
    return model.build()


PTB_OPS, PTB_STEPS = 390, 40
"""Bounds of what ``PtbSizes.drawn`` draws."""


@dataclass(frozen=True)
class PtbSizes:
    """``steps`` words, a cell of ``nodes`` nodes of ``width`` elements, sentences in a batch, all in f32.

    Raises OptionError where one of them is below 1.
    """

    steps: int = 30
    nodes: int = 8
    width: int = 512
    vocabulary: int = 10_000
    batch: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.nodes, self.width, self.vocabulary, self.batch) < 1:
            raise OptionError(f"every size of a language model must be 1 or more, not {self}")

    @staticmethod
    def drawn(seed: int) -> PtbSizes:
        """4 to 12 nodes, 8 to 40 steps within PTB_OPS, a batch of 1536 to 3072 (Placeto, appendix A.3)."""
        rng = np.random.default_rng(seed)
        nodes = int(rng.integers(4, 13))
        return PtbSizes(
            steps=int(rng.integers(8, min(PTB_STEPS, PTB_OPS // (nodes + 4)) + 1)),
            nodes=nodes,
            width=64 * int(rng.integers(2, 17)),
            batch=int(rng.integers(1536, 3073)),
            seed=seed,
        )


def ptb(sizes: PtbSizes) -> Workload:
    """The unrolled model, (nodes + 3) steps + nodes + 2 ops: all steps read the same weights, ops of type Parameter."""
    model = WorkloadBuilder(f"ptb-{sizes.nodes}x{sizes.steps}-seed{sizes.seed}")
    rng, w, state_shape = np.random.default_rng(sizes.seed), sizes.width, (sizes.batch, sizes.width)
    reads = [int(rng.integers(n)) for n in range(1, sizes.nodes)]
    activations = [str(rng.choice(("Tanh", "ReLU", "Sigmoid", "Identity"))) for _ in range(sizes.nodes)]
    ends = sorted(set(range(sizes.nodes)) - set(reads))
    table = model.add("embedding", "Parameter", [], (sizes.vocabulary, w), 0.0)
    head = model.add("logits.weight", "Parameter", [], (w, sizes.vocabulary), 0.0)
    weights = [model.add(f"n{n}.weight", "Parameter", [], (w if n else 2 * w, w), 0.0) for n in range(sizes.nodes)]
    state: list[int] = []
    for t in range(sizes.steps):
        word = model.add(f"t{t}.word", "Gather", [table], state_shape, 0.0)
        results: list[int] = []
        for n in range(sizes.nodes):
            sources = [results[reads[n - 1]]] if n else [word, *state]
            flops = float(sizes.batch * w) * (2.0 * w * len(sources) + (activations[n] != "Identity"))
            results.append(model.add(f"t{t}.n{n}", "MatMul", [*sources, weights[n]], state_shape, flops))
        flops = float(sizes.batch * w * len(ends))
        state = [model.add(f"t{t}.state", "Add", [results[n] for n in ends], state_shape, flops)]
        flops = 2.0 * sizes.batch * w * sizes.vocabulary
        model.add(f"t{t}.logits", "MatMul", [*state, head], (sizes.batch, sizes.vocabulary), flops)
    return model.build()
