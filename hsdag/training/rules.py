"""Training of rules for list scheduling: a set whose best schedule is good on most problems.

Legend: R rules, P problems.

A pool of rules around HEFT's is drawn at random; of it, those are taken one by one that improve the set most. Then one
rule at a time is changed at random in several ways, and the best change is kept unless it makes the set worse (a (1+8)
evolution strategy). What counts is the mean over problems of the logarithm of the set's best value. No gradient is
needed, and gradients of single decisions did not get as far (docs/learned-methods.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.learned.training import SAVE_EVERY_S
from hsdag.methods.lists.rules import DEVICE_FEATURES, MOMENT_FEATURES, NUM_WEIGHTS, PARTS, SPREAD, STEP, changed
from hsdag.runtime.problem.op_features import OP_FEATURES, WAY_TO_END
from hsdag.scoring.base import Checkpoint, SearchStopped
from hsdag.training.problems import RuleProblem, values_of_rules
from hsdag.workers.pool import Pool

POOL = 8
"""Rules drawn at the beginning for each rule of the set."""
CHANGES = 8
"""Changes of one rule that an update compares."""
BLOCKS = 4
"""Parts of the problems after each of which a change is given up that makes the set worse so far, by ``SLACK``."""
SLACK = 2e-3
SMALLEST, LARGEST = 0.05, 1.5
"""Range of the size of changes, in steps of each weight."""
SHARES = (2 / NUM_WEIGHTS, 0.2, 0.5)
"""Shares of the weights that a change is of."""
FROM_ANOTHER = 0.2
"""Share of changes that begin with another rule."""


@dataclass(frozen=True)
class RuleTrainingOptions:
    """Raises OptionError for a value out of range."""

    rules: int = 16
    """Rules of the set; as many schedules are made at once."""

    def __post_init__(self) -> None:
        if self.rules < 1:
            raise OptionError(f"rules must be at least 1, not {self.rules}")


class RuleTraining:
    """Improves a set of ``num_rules`` rules on problems; all randomness comes from one generator.

    With a ``pool``, its workers compute the values of rules, and the rules come out the same. ``on_update`` gets the
    number of the update and the mean over problems of the set's best value.
    """

    def __init__(
        self,
        problems: Sequence[RuleProblem],
        num_rules: int,
        seed: int,
        on_update: Callable[[int, float], None] = lambda _, __: None,
        should_stop: Callable[[], bool] = lambda: False,
        pool: Pool | None = None,
    ) -> None:
        self._problems, self._pool, self._on_update, self._should_stop = problems, pool, on_update, should_stop
        self._rng = np.random.default_rng(seed)
        self.rules = np.tile(first_rule(), (num_rules, 1))  # [R, W]
        self._values = np.zeros((0, len(problems)))  # [R, P]
        self.curve: list[float] = []
        """``value`` after every update."""

    @property
    def value(self) -> float:
        """The mean over problems of the set's best value; what training lowers."""
        return float(self._values.min(axis=0).mean())

    def run(self, updates: int, checkpoint: Checkpoint) -> None:
        """Make so many updates; go on from ``checkpoint`` where it holds a state, to the same rules.

        Raises SearchStopped, the state saved, when it has to end.
        """
        if not self._resume(checkpoint):
            self._begin()
        saved_s = time.monotonic()
        while len(self.curve) < updates:
            before = self._rng.bit_generator.state
            try:
                self._update()
            except SearchStopped:
                self._rng.bit_generator.state = before  # the update is made again, to the same end
                self._save(checkpoint)
                raise
            self.curve.append(self.value)
            self._on_update(len(self.curve) - 1, self.value)
            if time.monotonic() - saved_s > SAVE_EVERY_S:
                self._save(checkpoint)
                saved_s = time.monotonic()
        self._save(checkpoint)

    def _begin(self) -> None:
        """Take the rules of the set, one by one, from a pool."""
        pool = [first_rule(), *(self._changed(first_rule()) for _ in range(POOL * len(self.rules) - 1))]
        values = self._values_of(pool, np.arange(len(self._problems)))
        best = np.full(len(self._problems), np.inf)
        chosen = []
        for _ in self.rules:
            chosen.append(int(np.argmin(np.minimum(values, best).mean(axis=1))))
            best = np.minimum(best, values[chosen[-1]])
        self.rules, self._values = np.array(pool)[chosen], values[chosen]

    def _changed(self, rule: FloatArray) -> FloatArray:
        rng = self._rng
        size = np.exp(rng.uniform(np.log(SMALLEST), np.log(LARGEST)))
        which = rng.random(NUM_WEIGHTS) < rng.choice(SHARES)
        return np.asarray(rule + size * STEP * rng.standard_normal(NUM_WEIGHTS) * which)

    def _update(self) -> None:
        """Change a rule in several ways; take the change that improves the set most, or one that does no harm."""
        rng, count = self._rng, len(self.rules)
        at = int(rng.integers(count))
        begins = [int(rng.integers(count)) if rng.random() < FROM_ANOTHER else at for _ in range(CHANGES)]
        rules = [self._changed(self.rules[begin]) for begin in begins]
        others = np.delete(self._values, at, axis=0).min(axis=0, initial=np.inf)
        now, new = np.minimum(others, self._values[at]), np.zeros((CHANGES, len(others)))
        loss, left = np.zeros(CHANGES), np.arange(CHANGES)
        for block in np.array_split(np.arange(len(others)), min(BLOCKS, len(others))):
            new[np.ix_(left, block)] = self._values_of([rules[i] for i in left], block)
            loss[left] += (np.minimum(others, new[left]) - now)[:, block].sum(axis=1)
            left = left[loss[left] <= SLACK * len(block)]
            if not len(left):
                return
        best = int(left[np.argmin(loss[left])])
        if loss[best] <= 0:
            self.rules[at], self._values[at] = rules[best], new[best]

    def _values_of(self, rules: Sequence[FloatArray], which: IntArray) -> FloatArray:
        """[R, P] values of rules on some problems."""
        return values_of_rules(rules, [self._problems[i] for i in which], self._check, self._pool)

    def _check(self) -> None:
        if self._should_stop():
            raise SearchStopped

    def _save(self, checkpoint: Checkpoint) -> None:
        arrays = {"rules": self.rules, "values": self._values, "curve": np.array(self.curve)}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        checkpoint.save(tensors, {"done": len(self.curve), "random": self._rng.bit_generator.state})

    def _resume(self, checkpoint: Checkpoint) -> bool:
        stored = checkpoint.load()
        if stored is None:
            return False
        tensors, state = stored
        self.rules, self._values = tensors["rules"].numpy().copy(), tensors["values"].numpy().copy()
        self.curve, self._rng.bit_generator.state = tensors["curve"].tolist(), state["random"]
        return True


def first_rule() -> FloatArray:
    """[W] near HEFT: the longest way to the end first, where an op ends first and what follows may end first."""
    rule = np.zeros(NUM_WEIGHTS)
    devices = len(OP_FEATURES) + len(MOMENT_FEATURES)
    rule[WAY_TO_END] = 30.0
    rule[devices + DEVICE_FEATURES.index("end, later than on the best device")] = -2.0
    rule[devices + DEVICE_FEATURES.index("way to the end, longer than by the best device")] = -1.0
    rule[-PARTS[-1]] = 1.0
    return rule


def worth_of_rules(rules: FloatArray, problem: RuleProblem, num_draws: int, seed: int) -> tuple[float, float]:
    """What rules are worth on a problem, in its unit: the best of one round of schedules, and that of so many."""
    rng = np.random.default_rng(seed)
    spreads = [0.0, *[SPREAD] * (num_draws - 1)]
    draws = [float(problem.values(list(changed(rules, spread, rng))).min()) for spread in spreads]
    return float(np.exp(draws[0])) * problem.unit_s, float(np.exp(min(draws))) * problem.unit_s
