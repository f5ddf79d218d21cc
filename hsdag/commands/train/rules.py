"""Train rules for list scheduling: a set of rules whose best schedule is good on most problems.

Legend: R rules, P problems, W weights.

Candidates are drawn at random around the rule of HEFT. Of these, the rule that improves the set most is added until the
set is complete. Then one rule at a time is changed at random in several ways, and the best change is kept unless it
makes the set worse (a (1+8) evolution strategy). The loss is the mean over problems of the logarithm of the set's best
value. It needs no gradient; training by gradients of single decisions reached less (docs/learned-methods.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np
import torch

from hsdag.base.errors import OptionError
from hsdag.commands.train.problems import WORST, TrainingProblem, unit_s
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.learned.states import State
from hsdag.methods.learned.training import NUM_FIRST
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
from hsdag.search.evaluators.base import SearchStopped
from hsdag.workers.pool import Exchange, Job, Pool

POOL = 8
"""Number of candidates drawn at the beginning, for each rule of the set."""
CHANGES = 8
"""Number of changes of one rule that an update compares."""
BLOCKS = 4
"""Number of blocks of problems: after each, changes that make the set worse are given up."""
SLACK = 2e-3
"""Give up a change if it increases the loss by more than this for each problem of the block."""
SMALLEST, LARGEST = 0.05, 1.5
"""Range of the size of changes, in units of each weight's ``STEP``."""
SHARES = (2 / NUM_WEIGHTS, 0.2, 0.5)
"""Shares of the weights that a change alters, one of them drawn for each change."""
FROM_ANOTHER = 0.2
"""Share of changes that start from another rule of the set than the one they replace."""


@dataclass(frozen=True)
class RuleTrainingOptions:
    """Hyper-parameters of the training. Raises OptionError for a value out of range."""

    rules: int = 16
    """Number of rules in the set, each of which makes one schedule of a round."""

    def __post_init__(self) -> None:
        if self.rules < 1:
            raise OptionError(f"rules must be at least 1, not {self.rules}")


JOBS, MOST_PROBLEMS = 4, 8
"""Least number of jobs for each worker, so that workers end at about the same time; and most problems of a job,
approximately, so that a lost worker loses little."""


class RuleProblem:
    """A problem to train rules on.

    Attributes:
        unit_s: Time of all ops on their fastest devices, in seconds.
    """

    def __init__(self, problem: TrainingProblem) -> None:
        costs = self._costs = problem.costs
        self._evaluator = problem.evaluator
        self._scheduler = RuleScheduler(tables_of(costs))
        self.unit_s = unit_s(costs)

    def values(self, rules: Sequence[FloatArray]) -> FloatArray:
        """Return the logarithms [R] of the values, relative to ``unit_s``, of the plans that rules make.

        A plan that fails is repaired to fit into memory. If it still fails, or is worse than WORST, its value is WORST.
        """
        plans = [self._scheduler.schedule(rule).plan for rule in rules]
        values = np.array([score.value for score in self._evaluator.evaluate(plans)])
        if len(failed := np.flatnonzero(~np.isfinite(values))):
            mended = [Plan(repaired(self._costs, plans[i].placement, Semantics()), plans[i].priority) for i in failed]
            values[failed] = [score.value for score in self._evaluator.evaluate(mended)]
        return np.asarray(np.log(np.fmin(values / self.unit_s, WORST)))


@dataclass(frozen=True, eq=False)
class ValuesJob(Job[FloatArray]):
    """A job that computes the values [R, P] of rules [R, W] on problems [P]."""

    rules: FloatArray
    problems: tuple[RuleProblem, ...]

    def run(self, exchange: Exchange) -> FloatArray:  # noqa: ARG002
        """Return the values [R, P]."""
        return np.stack([problem.values(list(self.rules)) for problem in self.problems], axis=1)


@dataclass(eq=False)
class RuleTraining:
    """A training of a set of rules on problems, whose randomness comes from one generator.

    Attributes:
        rules: Rules of the set [R, W].
        curve: Loss after each update: the mean over problems of the logarithm of the set's best value.
        check: Function that raises SearchStopped if the training should stop; the current update is then undone.
        pool: Workers that compute the values of rules; the rules are the same without them.
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
        self.rules = np.tile(first_rule(), (options.rules, 1))
        self._values = np.zeros((0, len(problems)))  # [R, P]
        self.curve: list[float] = []

    def begin(self) -> None:
        """Draw candidates, and choose the rules of the set among them, one by one."""
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
        """Change one rule in several ways, and keep the best change unless it makes the set worse.

        Raises SearchStopped as ``check`` does, before anything has changed.
        """
        before = self._rng.bit_generator.state
        try:
            self._improve()
        except SearchStopped:
            self._rng.bit_generator.state = before  # so that a resumed training repeats the update exactly
            raise
        self.curve.append(float(self._values.min(axis=0).mean()))
        self.num_updates += 1

    def _changed(self, rule: FloatArray) -> FloatArray:
        """Return a rule [W] with random changes of some of its weights."""
        size = np.exp(self._rng.uniform(np.log(SMALLEST), np.log(LARGEST)))
        which = self._rng.random(NUM_WEIGHTS) < self._rng.choice(SHARES)
        return np.asarray(rule + size * STEP * self._rng.standard_normal(NUM_WEIGHTS) * which)

    def _improve(self) -> None:
        """Replace a random rule by the best of CHANGES changed ones, unless that makes the set worse."""
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
        """Return the values [R, P] of rules on the problems with these indices."""
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
        """Return the state to resume from: the rules, their values, the curve, and the state of the generator."""
        arrays = {"rules": self.rules, "values": self._values, "curve": np.array(self.curve)}
        tensors = {name: torch.tensor(array) for name, array in arrays.items()}
        return tensors, {"random": self._rng.bit_generator.state, "done": self.num_updates}

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Continue from the state that ``state`` returned."""
        self.rules, self._values = tensors["rules"].numpy().copy(), tensors["values"].numpy().copy()
        self.curve = tensors["curve"].tolist()
        self._rng.bit_generator.state = state["random"]
        self.num_updates = state["done"]

    def policy(self) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Return the weights of a policy file by name, and the entries that the training adds to its card."""
        curve = np.round(self.curve, 5).tolist()
        return {WEIGHTS: self.rules}, {"method": METHOD, "rules": len(self.rules), "curve": curve}

    def worth(self, problem: TrainingProblem) -> tuple[float, float]:
        """Return the best value on a problem after one round of schedules and after 16, in the objective's unit.

        In all rounds but the first, the rules are changed at random.
        """
        of_rules = RuleProblem(problem)
        rng = np.random.default_rng(self.seed)
        rounds = [changed(self.rules, spread, rng) for spread in (0.0, *[SPREAD] * (NUM_FIRST - 1))]
        values = [of_rules.unit_s * float(np.exp(of_rules.values(list(rules)).min())) for rules in rounds]
        return values[0], min(values)


AHEAD = (0.0, 1.0, 3.0)
"""Weights of the remaining path by an op's consumers, around which candidates are drawn (see ``first_rule``)."""


def first_rule(ahead: float = 0.0) -> FloatArray:
    """Return a rule [W] close to HEFT.

    The op with the longest remaining path comes first, on the device where it and the path after it can end first.

    Args:
        ahead: Weight of the remaining path by an op's consumers. If it is not 0, the op takes the device from which
            its consumers can end first.
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
