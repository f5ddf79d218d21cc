"""Recurrent cells as ENAS samples them, unrolled over the words of a sentence: Placeto's ptb dataset.

In a cell of N nodes node 0 reads the word and the last state, every other node one earlier node; each multiplies what
it reads by a matrix of its own and applies an activation, and the state is the mean of the nodes that no other one
reads (Pham et al. 2018, section 2.1; Placeto, appendix A.3). Costs are those of an inference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.models.workload import Workload, WorkloadBuilder

MOST_OPS, MOST_STEPS = 390, 40
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
        """4 to 12 nodes, 8 to 40 steps within MOST_OPS, a batch of 1536 to 3072 (Placeto, appendix A.3)."""
        rng = np.random.default_rng(seed)
        nodes = int(rng.integers(4, 13))
        return PtbSizes(
            steps=int(rng.integers(8, min(MOST_STEPS, MOST_OPS // (nodes + 4)) + 1)),
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
