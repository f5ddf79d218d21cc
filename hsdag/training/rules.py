"""Training of rules for list scheduling: a set whose best schedule is good on most problems.

Legend: R rules, P problems, W weights.

A pool of rules around HEFT's is drawn at random; of it, those are taken one by one that improve the set most. Then one
rule at a time is changed at random in several ways, and the best change is kept unless it makes the set worse (a (1+8)
evolution strategy). What counts is the mean over problems of the logarithm of the set's best value. No gradient is
needed, and gradients of single decisions did not get as far (docs/learned-methods.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np
import torch

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.learned.training import NUM_FIRST, State
from hsdag.methods.lists.rules import (
    DEVICE_FEATURES,
    METHOD,
    MOMENT_FEATURES,
    NUM_WEIGHTS,
    SPREAD,
    STEP,
    WEIGHTS,
    RuleScheduler,
    changed,
)
from hsdag.methods.memory_repair import repaired
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.tables import OP_FEATURES, WAY_TO_END, tables_of
from hsdag.scoring.base import SearchStopped
from hsdag.training.problems import TrainingProblem
from hsdag.workers.pool import Exchange, Job, Pool

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


WORST = 4.0
"""A plan that failed, or is slower, counts as so many times the work of all ops on their fastest devices."""
JOBS, MOST_PROBLEMS = 4, 8
"""Jobs for each worker, so that all end at about the same time, and problems that a job has at most, so that little is
lost with a worker."""


class RuleProblem:
    """A problem to train rules on: their values by the simulator, as logarithms of shares of the work of all ops."""

    def __init__(self, problem: TrainingProblem) -> None:
        costs = self._costs = problem.costs
        self._evaluator = problem.evaluator
        self._scheduler = RuleScheduler(tables_of(costs))
        self.unit_s = float(np.where(costs.supported, costs.time_s, np.inf).min(axis=1).sum()) or 1.0

    def values(self, rules: Sequence[FloatArray]) -> FloatArray:
        """[R] logarithms of the values of rules' plans, repaired where they exceed a memory; WORST where they fail."""
        plans = [self._scheduler.plan(rule) for rule in rules]
        values = np.array([score.value for score in self._evaluator.evaluate(plans)])
        if len(failed := np.flatnonzero(~np.isfinite(values))):
            mended = [Plan(repaired(self._costs, plans[i].placement, Semantics()), plans[i].priority) for i in failed]
            values[failed] = [score.value for score in self._evaluator.evaluate(mended)]
        return np.asarray(np.log(np.fmin(values / self.unit_s, WORST)))


@dataclass(frozen=True, eq=False)
class ValuesJob(Job[FloatArray]):
    """Values [R, P] of rules [R, W] on problems [P]."""

    rules: FloatArray
    problems: tuple[RuleProblem, ...]

    def run(self, exchange: Exchange) -> FloatArray:  # noqa: ARG002
        """As Job says."""
        return np.stack([problem.values(list(self.rules)) for problem in self.problems], axis=1)


@dataclass(eq=False)
class RuleTraining:
    """Improves a set of rules on problems; all randomness comes from one generator.

    With a ``pool``, its workers compute the values of rules, and the rules come out the same. ``check`` raises
    SearchStopped when the training should stop; the update at hand is then as if it had not begun.
    """

    problems: InitVar[Sequence[TrainingProblem]]
    options: InitVar[RuleTrainingOptions]
    seed: int
    check: Callable[[], None] = lambda: None
    pool: Pool | None = None
    num_updates = 0

    def __post_init__(self, problems: Sequence[TrainingProblem], options: RuleTrainingOptions) -> None:
        self._problems = [RuleProblem(problem) for problem in problems]
        self._rng = np.random.default_rng(self.seed)
        self.rules = np.tile(first_rule(), (options.rules, 1))  # [R, W]
        self._values = np.zeros((0, len(problems)))  # [R, P]
        self.curve: list[float] = []
        """The mean over problems of the set's best value after every update, which training lowers."""

    def begin(self) -> None:
        """Take the rules of the set, one by one, from a pool."""
        begins = [first_rule(ahead) for ahead in AHEAD]
        pool = begins + [self._changed(begins[i % len(begins)]) for i in range(POOL * len(self.rules) - len(begins))]
        values = self._values_of(pool, np.arange(len(self._problems)))
        best = np.full(len(self._problems), np.inf)
        chosen = []
        for _ in self.rules:
            chosen.append(int(np.argmin(np.minimum(values, best).mean(axis=1))))
            best = np.minimum(best, values[chosen[-1]])
        self.rules, self._values = np.array(pool)[chosen], values[chosen]

    def update(self) -> None:
        """Change a rule in several ways; take the change that improves the set most, or one that does no harm."""
        before = self._rng.bit_generator.state
        try:
            self._improve()
        except SearchStopped:
            self._rng.bit_generator.state = before  # the update is made again, to the same end
            raise
        self.curve.append(float(self._values.min(axis=0).mean()))
        self.num_updates += 1

    def _changed(self, rule: FloatArray) -> FloatArray:
        size = np.exp(self._rng.uniform(np.log(SMALLEST), np.log(LARGEST)))
        which = self._rng.random(NUM_WEIGHTS) < self._rng.choice(SHARES)
        return np.asarray(rule + size * STEP * self._rng.standard_normal(NUM_WEIGHTS) * which)

    def _improve(self) -> None:
        rng = self._rng
        at = int(rng.integers(len(self.rules)))
        begins = [int(rng.integers(len(self.rules))) if rng.random() < FROM_ANOTHER else at for _ in range(CHANGES)]
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
        """[R, P] values of rules on some problems, by the workers of a pool where there is one."""
        problems = [self._problems[i] for i in which]
        if self.pool is None:
            columns = []
            for problem in problems:
                columns.append(problem.values(rules))
                self.check()
            return np.stack(columns, axis=1)
        self.check()
        num_jobs = min(max(JOBS * self.pool.num_workers, len(problems) // MOST_PROBLEMS), len(problems))
        parts = np.array_split(np.arange(len(problems)), num_jobs)
        jobs = [ValuesJob(np.array(rules), tuple(problems[i] for i in part)) for part in parts]
        return np.concatenate(self.pool.answers(jobs, self.check), axis=1)

    def state(self) -> State:
        """The rules, their values, the curve, and the random numbers to come."""
        arrays = {"rules": self.rules, "values": self._values, "curve": np.array(self.curve)}
        tensors = {name: torch.tensor(array) for name, array in arrays.items()}
        return tensors, {"random": self._rng.bit_generator.state, "done": self.num_updates}

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Take over what ``state`` gave."""
        self.rules, self._values = tensors["rules"].numpy().copy(), tensors["values"].numpy().copy()
        self.curve = tensors["curve"].tolist()
        self._rng.bit_generator.state = state["random"]
        self.num_updates = state["done"]

    def policy(self) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """The rules, and how the set got better."""
        curve = np.round(self.curve, 5).tolist()
        return {WEIGHTS: self.rules}, {"method": METHOD, "rules": len(self.rules), "curve": curve}

    def worth(self, problem: TrainingProblem) -> tuple[float, float]:
        """The best value of one round of schedules, and that of 16, in all but the first of which rules are changed."""
        of_rules = RuleProblem(problem)
        rng = np.random.default_rng(self.seed)
        rounds = [changed(self.rules, spread, rng) for spread in (0.0, *[SPREAD] * (NUM_FIRST - 1))]
        values = [of_rules.unit_s * float(np.exp(of_rules.values(list(rules)).min())) for rules in rounds]
        return values[0], min(values)


AHEAD = (0.0, 1.0, 3.0)
"""Weights of the way to the end by an op's consumers that the pool is drawn around."""


def first_rule(ahead: float = 0.0) -> FloatArray:
    """[W] near HEFT: the longest way to the end first, where an op ends first and what follows may end first.

    With ``ahead``, an op prefers the device from which its consumers may end first.
    """
    rule = np.zeros(NUM_WEIGHTS)
    devices = len(OP_FEATURES) + len(MOMENT_FEATURES)
    rule[WAY_TO_END] = 30.0
    rule[devices + DEVICE_FEATURES.index("end, later than on the best device")] = -2.0 if not ahead else 0.0
    rule[devices + DEVICE_FEATURES.index("way to the end, longer than by the best device")] = -1.0 if not ahead else 0.0
    by_consumers = "way to the end by the op's consumers, longer than by the best device"
    rule[devices + DEVICE_FEATURES.index(by_consumers)] = -ahead
    rule[-1] = 1.0
    return rule
