"""Neural machine translation, unrolled: an LSTM encoder and a decoder with attention, as in Placeto's nmt dataset.

Placeto, appendix A.2 and A.3, names the model; its attention is fed on as in Luong et al. 2015, section 3.3. Costs are
those of an inference with a given target sentence; the published graphs are of training steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.flops import TRANSCENDENTAL_COST
from hsdag.models.workload import Workload, WorkloadBuilder

MOST_OPS, MOST_STEPS = 390, 32
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
        """1 to 4 layers, sentences of 4 to 32 words within MOST_OPS, a batch of 64 to 128 (Placeto, appendix A.3)."""
        rng = np.random.default_rng(seed)
        layers = int(rng.integers(1, 5))
        longest = min(MOST_STEPS, MOST_OPS // (8 + 4 * layers))
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
    cell gives and what it remembers.
    """
    name = f"nmt-{sizes.layers}x{sizes.source_steps}x{sizes.target_steps}"
    return _Unrolling(WorkloadBuilder(name), sizes).build()


@dataclass(frozen=True)
class _Unrolling:
    model: WorkloadBuilder
    sizes: NmtSizes

    def build(self) -> Workload:
        """All steps of the encoder, then those of the decoder, which begins with the encoder's last states."""
        sizes, w = self.sizes, self.sizes.width
        weights, states = self._cell_weights("encoder", w), [list[int]() for _ in range(sizes.layers)]
        table, tops = self._weight("encoder.embedding", sizes.vocabulary, w), list[int]()
        for t in range(sizes.source_steps):
            tops.append(self._step(f"encoder.t{t}", table, [], weights, states))
        memory = self.model.add("memory", "Concat", tops, (sizes.batch, sizes.source_steps, w), 0.0)
        weights = self._cell_weights("decoder", 2 * w if sizes.feeds_attention else w)
        table = self._weight("decoder.embedding", sizes.vocabulary, w)
        joint, head = self._weight("attention.weight", 2 * w, w), self._weight("logits.weight", w, sizes.vocabulary)
        attended: list[int] = []
        for t in range(sizes.target_steps):
            fed = attended if sizes.feeds_attention else []
            top = self._step(f"decoder.t{t}", table, fed, weights, states)
            attended = [self._attend(f"decoder.t{t}", top, memory, joint)]
            self._product(f"decoder.t{t}.logits", [*attended, head], w, sizes.vocabulary)
        return self.model.build()

    def _cell_weights(self, name: str, read: int) -> list[int]:
        """Weights of the layers; the first one reads a word, or a word and the attention."""
        w = self.sizes.width
        rows = [(w if i else read) + w for i in range(self.sizes.layers)]
        return [self._weight(f"{name}.l{i}.weight", r, GATES * w) for i, r in enumerate(rows)]

    def _weight(self, name: str, rows: int, columns: int) -> int:
        return self.model.add(name, "Parameter", [], (rows, columns), 0.0)

    def _product(self, name: str, sources: list[int], rows: int, columns: int) -> int:
        flops = 2.0 * self.sizes.batch * rows * columns
        return self.model.add(name, "MatMul", sources, (self.sizes.batch, columns), flops)

    def _step(self, name: str, table: int, fed: list[int], weights: list[int], states: list[list[int]]) -> int:
        """One word through all layers, whose states are replaced; the last layer's state.

        ``fed`` is what the first layer reads beside the word.
        """
        batch, w = self.sizes.batch, self.sizes.width
        x = [self.model.add(f"{name}.word", "Gather", [table], (batch, w), 0.0), *fed]
        for i, weight in enumerate(weights):
            rows = w * (len(x) + len(states[i]))
            gates = self._product(f"{name}.l{i}.gates", [*x, *states[i], weight], rows, GATES * w)
            flops = CELL_COST * batch * w
            x = [self.model.add(f"{name}.l{i}.state", "Tanh", [gates, *states[i]], (batch, 2 * w), flops)]
            states[i] = x
        return x[0]

    def _attend(self, name: str, top: int, memory: int, weight: int) -> int:
        """Attention of a step to the encoder's states, joined with the step's own: [batch, width]."""
        batch, w, steps = self.sizes.batch, self.sizes.width, self.sizes.source_steps
        flops = 2.0 * batch * w * steps
        scores = self.model.add(f"{name}.scores", "MatMul", [top, memory], (batch, steps), flops)
        cost = float(TRANSCENDENTAL_COST["Softmax"] * batch * steps)
        shares = self.model.add(f"{name}.softmax", "Softmax", [scores], (batch, steps), cost)
        context = self.model.add(f"{name}.context", "MatMul", [shares, memory], (batch, w), flops)
        return self._product(f"{name}.attention", [context, top, weight], 2 * w, w)
