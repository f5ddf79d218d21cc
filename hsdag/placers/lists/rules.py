"""RulesPlacer: list scheduling by rules that were learned on other problems.

A rule is a linear function of features of ops, of the moment and of devices. A set of rules is trained together, so
that the best of their schedules is good on most problems (hsdag.commands.train): one rule stays on few devices where
links are slow, another one spreads ops. Legend: N ops, D devices, R rules, W weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hsdag.evaluators.policy_file import read_policy
from hsdag.ir.errors import FileFormatError, OptionError
from hsdag.ir.graph import FloatArray
from hsdag.placers.lists.base import ListPlacer
from hsdag.placers.lists.idle_time import IdleTime
from hsdag.placers.lists.rule_kernel import NUM_WEIGHTS, PARTS, Rule, Work, fill_tails, schedule_by_rule
from hsdag.placers.lists.schedule import ListSchedule, Room
from hsdag.policies import SHIPPED
from hsdag.runtime.problems.op_features import PATH_THROUGH, STATIC_WAY, op_features
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.tables import Tables, lengths_of, levels_of, tables_of

METHOD, WEIGHTS = "rules", "rules"
SPREAD = 0.2
"""Standard deviation by which the rules of all rounds but the first are changed, in steps of each weight."""
LUCK = 0.02
"""In these rounds, scores of ops are multiplied by a random factor between 1 - LUCK and 1 + LUCK, too."""
STEP = np.repeat((4.0, 1.0, 0.7, 0.7, 0.7, 0.1), PARTS)
"""[W] how far a weight is changed for a difference that shows."""


@dataclass(frozen=True)
class RulesOptions:
    """Raises OptionError for a value out of range."""

    rounds: int = 4
    """Rounds of schedules, one by every rule; in all but the first, rules are changed and ties broken at random."""
    spread: float = SPREAD
    """Standard deviation of these changes, in steps of each weight."""
    initial: str | None = None
    """Policy file of 'hsdag train --method rules'; None: the one that comes with this release."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or not 0 <= self.spread < math.inf:
            raise OptionError("rules takes rounds of at least 1 and a finite spread of at least 0")


class RulesPlacer(ListPlacer[RulesOptions]):
    """List scheduling by learned rules: no training on the problem at hand, about a millisecond a schedule.

    An op may go to a device that is busy while another is idle, so that devices may wait. Idle time between ops is
    used, as the work-conserving machine will.
    """

    tries_few = False
    name = METHOD
    options_type = RulesOptions
    objectives = ("latency",)

    def __init__(self, options: RulesOptions | None = None) -> None:
        super().__init__(options)
        self._rules = read_rules(Path(self.options.initial or SHIPPED))

    def proposals(self, problem: Problem, seed: int) -> Iterator[Plan]:
        """Rounds times rules plans; the same seed gives the same ones."""
        assert problem.costs is not None
        scheduler, rng = RuleScheduler(tables_of(problem.costs)), np.random.default_rng(seed)
        yield from (scheduler.plan(rule) for rule in self._rules)
        for _ in range(1, self.options.rounds):
            for rule in changed(self._rules, self.options.spread, rng):
                yield scheduler.plan(rule, rng)


class RuleScheduler:
    """Schedules one problem by any rule; what does not depend on the rule is computed once."""

    def __init__(self, tables: Tables) -> None:
        n, d = tables.time_s.shape
        self._tables = tables
        self._x = op_features(tables, levels_of(tables))
        self._factor = np.ascontiguousarray(self._x[:, [PATH_THROUGH, STATIC_WAY]])
        self._tail_s = np.zeros((n, d))
        fill_tails(tables, self._tail_s)
        self._length_s, self._op_s = lengths_of(tables)

    def plan(self, weights: FloatArray, luck: np.random.Generator | None = None) -> Plan:
        """The plan by a rule's weights [W]; ops by start, as ``list_schedule`` ranks them."""
        schedule = self.schedule(weights, luck)
        return Plan(schedule.device, schedule.ranks)

    def schedule(self, weights: FloatArray, luck: np.random.Generator | None = None) -> ListSchedule:
        """The schedule by a rule's weights [W].

        With ``luck``, devices of equal scores are taken in random order, and so are ops whose scores hardly differ.
        """
        of_op, moment, device, by_path, by_way, memory = np.split(weights, np.cumsum(PARTS)[:-1])
        of_device = np.zeros((3, len(device)))
        of_device[0], of_device[1, : len(by_path)], of_device[2, : len(by_way)] = device, by_path, by_way
        room, (n, d) = Room.of(self._tables), self._tables.time_s.shape
        score, device_order = self._x @ of_op, np.arange(d)
        if luck is not None:
            score, device_order = score * luck.uniform(1 - LUCK, 1 + LUCK, n), luck.permutation(d)
        rule = Rule(
            score,
            np.ascontiguousarray(moment),
            of_device,
            self._factor,
            self._tail_s,
            self._op_s,
            self._length_s,
            float(memory[0]),
            device_order,
        )
        schedule_by_rule(self._tables, rule, room, IdleTime.of(d, n), Work.of(self._tables))
        return room.schedule()


def changed(rules: FloatArray, spread: float, rng: np.random.Generator) -> FloatArray:
    """[R, W] rules, each with all its weights changed at random, by ``spread`` steps in the standard deviation."""
    return np.asarray(rules + spread * STEP * rng.standard_normal(rules.shape))


def read_rules(path: Path) -> FloatArray:
    """[R, W] the rules of a policy file. Raises FileFormatError for any other file."""
    rules = read_policy(path, METHOD).weights.get(WEIGHTS)
    if rules is None or rules.ndim != 2 or rules.shape[1] != NUM_WEIGHTS or not len(rules):
        raise FileFormatError(f"{path} does not hold rules of {NUM_WEIGHTS} weights; write one with 'hsdag train'")
    return np.asarray(rules, dtype=np.float64)


PLACER = RulesPlacer
