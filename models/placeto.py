"""Generate workloads like Placeto's datasets (appendix A.2, A.3): ENAS cells and unrolled sentence models.

Costs are those of an inference in f32, whereas the published graphs are of training steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from hsdag.models.workload import Workload, WorkloadBuilder

BRANCHES = {
    "identity": ("", 0),
    "separable3": ("Convolution", 9),
    "separable5": ("Convolution", 25),
    "average": ("AvgPool", 9),
    "maximum": ("MaxPool", 9),
}
"""What a node of an ENAS cell may do with an input before adding it: op type and elements of the window."""

KERNEL, COLOURS, CLASSES = 9, 3, 10
"""Elements of the stem's window, channels of an image, and classes of CIFAR-10."""

Wiring = list[tuple[list[int], list[str]]]
"""For each node of a cell, the two earlier nodes it reads and what it does with each; 0 and 1 are the cell's inputs."""


@dataclass(frozen=True)
class EnasSizes:
    """Sizes of an ENAS network: a stem, ``cells`` cells of ``nodes`` nodes besides their two inputs, a classifier.

    After a third and after two thirds of the cells the resolution is halved and the number of filters doubled. The
    wiring of the cells is drawn from ``seed``: one wiring for the halving cells, another for all other cells.
    """

    cells: int = 6
    nodes: int = 5
    filters: int = 64
    batch: int = 300
    seed: int = 0
    resolution: int = 32

    @staticmethod
    def drawn(seed: int) -> EnasSizes:
        """Draw 3 to 15 cells of 4 to 7 nodes, 32 to 256 filters, and a batch of 240 to 360 (Placeto, appendix A.3)."""
        rng = np.random.default_rng(seed)
        cells, nodes, filters, batch = (int(rng.integers(*ends)) for ends in ((3, 16), (4, 8), (4, 33), (240, 361)))
        return EnasSizes(cells, nodes, 8 * filters, batch, seed)


def enas(sizes: EnasSizes) -> Workload:
    """Return the network as a workload; its weights belong to the ops that use them."""
    network = WorkloadBuilder(f"enas-{sizes.cells}x{sizes.nodes}-seed{sizes.seed}")
    rng = np.random.default_rng(sizes.seed)
    wirings: list[Wiring] = [
        [
            ([int(rng.integers(n)) for _ in "ab"], [str(rng.choice([*BRANCHES])) for _ in "ab"])
            for n in range(2, sizes.nodes + 2)
        ]
        for _ in ("normal", "halving")
    ]
    batch, filters, rows = sizes.batch, sizes.filters, sizes.resolution
    shape = (batch, filters, rows, rows)
    flops = 2.0 * KERNEL * COLOURS * prod(shape)
    before = last = network.add("stem", "Convolution", [], shape, flops, KERNEL * COLOURS * filters)
    for c in range(sizes.cells):
        halves = c in (sizes.cells // 3, 2 * sizes.cells // 3)
        if halves:
            filters, rows = 2 * filters, rows // 2
        shape = (batch, filters, rows, rows)
        before, last = last, _add_cell(network, f"cell{c}", shape, wirings[halves], (before, last))
    channels = network.type_of(last).shape[1]
    flops = float(batch * channels * (rows**2 + 2 * CLASSES))
    network.add("head", "MatMul", [last], (batch, CLASSES), flops, channels * CLASSES)
    return network.build()


def _add_cell(
    network: WorkloadBuilder, name: str, shape: tuple[int, ...], wiring: Wiring, inputs: tuple[int, int]
) -> int:
    """Append a cell after two ops; return its output op, which joins the results that no node of the cell reads.

    A 1x1 convolution brings each input to the cell's ``shape``. This holds for halving cells too, where the published
    networks have branches of stride 2.
    """
    elements, filters = prod(shape), shape[1]
    results = list[int]()
    for i, op in enumerate(inputs):
        channels = network.type_of(op).shape[1]
        flops, weights = 2.0 * channels * elements, channels * filters
        results.append(network.add(f"{name}.in{i}", "Convolution", [op], shape, flops, weights))
    for n, (reads, branches) in enumerate(wiring):
        ends = []
        for side, read, branch in zip("ab", reads, branches, strict=True):
            op_type, window = BRANCHES[branch]
            per_element, weights = float(window), 0
            if op_type == "Convolution":
                per_element, weights = 2.0 * (window + filters), (window + filters) * filters
            op = results[read]
            if op_type:
                op = network.add(f"{name}.n{n}.{side}", op_type, [op], shape, per_element * elements, weights)
            ends.append(op)
        results.append(network.add(f"{name}.n{n}", "Add", list(dict.fromkeys(ends)), shape))
    read_ones = {i for reads, _ in wiring for i in reads}
    ends = [op for i, op in enumerate(results) if i not in read_ones]
    return network.add(f"{name}.out", "Concat", ends, (shape[0], len(ends) * filters, *shape[2:]))


MOST_OPS = 390
"""Upper limit on the number of ops in a drawn sentence model."""

GATES, CELL_COST = 4, 20.0
"""Gates of an LSTM, and operations per element of its state besides the product (activations, products, sum)."""


@dataclass(frozen=True)
class NmtSizes:
    """Sizes of a translation model: words per sentence, LSTM layers on each side, their width, sentences per batch.

    With ``feeds_attention`` each step of the decoder reads the attention of the previous step, so steps cannot overlap.
    """

    source_steps: int = 16
    target_steps: int = 16
    layers: int = 2
    width: int = 512
    vocabulary: int = 16_000
    batch: int = 128
    feeds_attention: bool = True

    @staticmethod
    def drawn(seed: int) -> NmtSizes:
        """Draw 1 to 4 layers, 4 to 32 words within MOST_OPS, and a batch of 64 to 128 (Placeto, appendix A.3)."""
        rng = np.random.default_rng(seed)
        layers = int(rng.integers(1, 5))
        source_steps, target_steps = rng.integers(4, min(32, MOST_OPS // (8 + 4 * layers)) + 1, 2).tolist()
        width, vocabulary, batch = (int(rng.integers(*ends)) for ends in ((2, 9), (4, 33), (64, 129)))
        return NmtSizes(
            source_steps, target_steps, layers, 128 * width, 1000 * vocabulary, batch, bool(rng.integers(2))
        )


def nmt(sizes: NmtSizes) -> Workload:
    """Return the unrolled model: (1 + 2l) S + (6 + 2l) T + 2l + 5 ops for S source words, T target words and l layers.

    All steps read the same weights, which are ops of type Parameter. A state is one tensor that holds the LSTM's output
    and its cell state. The decoder starts with the last states of the encoder.
    """
    model = WorkloadBuilder(f"nmt-{sizes.layers}x{sizes.source_steps}x{sizes.target_steps}")
    batch, w, words = sizes.batch, sizes.width, sizes.source_steps
    states = [list[int]() for _ in range(sizes.layers)]

    def weight(name: str, rows: int, columns: int) -> int:
        """Add a weight [rows, columns] as an op of its own."""
        return model.add(name, "Parameter", [], (rows, columns))

    def cell_weights(name: str, read: int) -> list[int]:
        """Add the weights of all layers; the first layer reads ``read`` elements: a word, or a word and attention."""
        return [weight(f"{name}.l{i}.weight", (w if i else read) + w, GATES * w) for i in range(sizes.layers)]

    def product(name: str, sources: list[int], rows: int, columns: int) -> int:
        """Add a product of [batch, rows] with [rows, columns]."""
        return model.add(name, "MatMul", sources, (batch, columns), 2.0 * batch * rows * columns)

    def step(name: str, table: int, fed: list[int], weights: list[int]) -> int:
        """Run one word through all layers and replace their states; return the last layer's state.

        The first layer reads the word's embedding from ``table`` and the ops ``fed``.
        """
        x = [model.add(f"{name}.word", "Gather", [table], (batch, w)), *fed]
        for i, weight_op in enumerate(weights):
            gates = product(f"{name}.l{i}.gates", [*x, *states[i], weight_op], w * (len(x) + len(states[i])), GATES * w)
            x = [model.add(f"{name}.l{i}.state", "Tanh", [gates, *states[i]], (batch, 2 * w), CELL_COST * batch * w)]
            states[i] = x
        return x[0]

    def attend(name: str, top: int, memory: int, joint: int) -> int:
        """Add attention from ``top`` to the encoder's states and combine both; return the op, [batch, width]."""
        flops = 2.0 * batch * w * words
        scores = model.add(f"{name}.scores", "MatMul", [top, memory], (batch, words), flops)
        shares = model.add(f"{name}.softmax", "Softmax", [scores], (batch, words))
        context = model.add(f"{name}.context", "MatMul", [shares, memory], (batch, w), flops)
        return product(f"{name}.attention", [context, top, joint], 2 * w, w)

    weights = cell_weights("encoder", w)
    table = weight("encoder.embedding", sizes.vocabulary, w)
    tops = [step(f"encoder.t{t}", table, [], weights) for t in range(words)]
    memory = model.add("memory", "Concat", tops, (batch, words, w))
    weights = cell_weights("decoder", 2 * w if sizes.feeds_attention else w)
    table = weight("decoder.embedding", sizes.vocabulary, w)
    joint, head = weight("attention.weight", 2 * w, w), weight("logits.weight", w, sizes.vocabulary)
    attended: list[int] = []
    for t in range(sizes.target_steps):
        top = step(f"decoder.t{t}", table, attended if sizes.feeds_attention else [], weights)
        attended = [attend(f"decoder.t{t}", top, memory, joint)]
        product(f"decoder.t{t}.logits", [*attended, head], w, sizes.vocabulary)
    return model.build()


@dataclass(frozen=True)
class PtbSizes:
    """Sizes of a recurrent model: words, nodes per cell, elements per node (``width``), sentences in a batch."""

    steps: int = 30
    nodes: int = 8
    width: int = 512
    batch: int = 2048
    seed: int = 0
    vocabulary: int = 10_000

    @staticmethod
    def drawn(seed: int) -> PtbSizes:
        """Draw 4 to 12 nodes, 8 to 40 steps within MOST_OPS, a batch of 1536 to 3072 (Placeto, appendix A.3)."""
        rng = np.random.default_rng(seed)
        nodes = int(rng.integers(4, 13))
        ranges = ((8, min(40, MOST_OPS // (nodes + 4)) + 1), (2, 17), (1536, 3073))
        steps, width, batch = (int(rng.integers(*ends)) for ends in ranges)
        return PtbSizes(steps, nodes, 64 * width, batch, seed)


def ptb(sizes: PtbSizes) -> Workload:
    """Return the unrolled model, (nodes + 3) steps + nodes + 2 ops; its weights are ops that all steps read."""
    model = WorkloadBuilder(f"ptb-{sizes.nodes}x{sizes.steps}-seed{sizes.seed}")
    rng = np.random.default_rng(sizes.seed)
    w = sizes.width
    state_shape = (sizes.batch, w)
    reads = [int(rng.integers(n)) for n in range(1, sizes.nodes)]
    activations = [str(rng.choice(("Tanh", "ReLU", "Sigmoid", "Identity"))) for _ in range(sizes.nodes)]
    ends = sorted(set(range(sizes.nodes)) - set(reads))
    table = model.add("embedding", "Parameter", [], (sizes.vocabulary, w))
    head = model.add("logits.weight", "Parameter", [], (w, sizes.vocabulary))
    weights = [model.add(f"n{n}.weight", "Parameter", [], (w if n else 2 * w, w)) for n in range(sizes.nodes)]
    state: list[int] = []
    for t in range(sizes.steps):
        word = model.add(f"t{t}.word", "Gather", [table], state_shape)
        results: list[int] = []
        for n in range(sizes.nodes):
            sources = [results[reads[n - 1]]] if n else [word, *state]
            flops = float(sizes.batch * w) * (2.0 * w * len(sources) + (activations[n] != "Identity"))
            results.append(model.add(f"t{t}.n{n}", "MatMul", [*sources, weights[n]], state_shape, flops))
        state = [model.add(f"t{t}.state", "Add", [results[n] for n in ends], state_shape, sizes.batch * w * len(ends))]
        flops = 2.0 * sizes.batch * w * sizes.vocabulary
        model.add(f"t{t}.logits", "MatMul", [*state, head], (sizes.batch, sizes.vocabulary), flops)
    return model.build()
