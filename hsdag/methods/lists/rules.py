"""List scheduling by rules that were learned on other problems.

A rule is a linear function of features of ops, of the moment and of devices. The rules of a set are trained together so
that the best of their schedules is good on most problems (hsdag.commands.train): one rule keeps to few devices where
links are slow, another spreads ops. Legend: N ops, D devices, R rules, W weights.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hsdag.base.errors import FileFormatError, OptionError
from hsdag.base.kernels import bare, inlined, run_kernel
from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray
from hsdag.methods.lists.base import ListPlacer
from hsdag.methods.lists.schedule import (
    IdleTime,
    ListSchedule,
    ListState,
    Outlook,
    assign_and_free,
    earliest,
    first_candidates,
    look,
    occupy,
    offer,
    permit,
    send,
    tails_of,
    way_by_consumers,
)
from hsdag.methods.policy_file import SHIPPED, read_policy
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.tables import (
    OP_FEATURES,
    PATH_THROUGH,
    STATIC_WAY,
    Tables,
    lengths_of,
    levels_of,
    op_features,
    tables_of,
)

MOMENT_FEATURES = (
    "earliest start, later than that of the first candidate",
    "earliest end, later than that of the first candidate",
    "end on the second best device, later than on the best",
)
"""Features of a candidate op that change as ops are placed, in units of the mean op time, cut at ``MOST``."""
DEVICE_FEATURES = (
    "start, later than on the best device",
    "end, later than on the best device",
    "way to the end, longer than by the best device",
    "time of the op, longer than on the fastest device",
    "time of transfers to the device",
    "share of the op's input that is on the device",
    "end of the device's last op, later than the first device to be free",
    "work on the device, in units of a balanced schedule",
    "share of memory that is taken with the op",
    "how long the device would wait for the op's inputs",
    "way to the end by the op's consumers, longer than by the best device",
)
"""Features of a device for the op being placed; times are in units of the mean op time, cut at ``MOST``."""
MOST = 10.0
"""Upper limit of features."""
NUM_WEIGHED = 5
"""Number of first device features with three weights: by themselves, and times each of two features of the op.

The two are the longest path through the op, and the longest way to the end without transfers.
"""
PARTS = (len(OP_FEATURES), len(MOMENT_FEATURES), len(DEVICE_FEATURES), NUM_WEIGHED, NUM_WEIGHED, 1)
"""Numbers of weights of a rule: op, moment, device, device times path, device times way, and memory.

The last weight is the share of a device's memory that the rule fills.
"""
NUM_WEIGHTS = sum(PARTS)
"""Number of weights of a rule, W."""
METHOD, WEIGHTS = "rules", "rules"
"""Name of the method on the card of a policy file, and name of the rules among its weights."""
STEPS_AT_ONCE, MOST_ROUNDS, REPAIRING = 400_000, 64, 3
"""Pairs of unit and device that take about a second; most rounds; factor of the time if plans may need repair."""
SPREAD = 0.2
"""Standard deviation of the random change of rules after the first round, in steps of each weight."""
LUCK = 0.02
"""After the first round, scores of ops are multiplied by random factors between 1 - LUCK and 1 + LUCK."""
STEP = np.repeat((4.0, 1.0, 0.7, 0.7, 0.7, 0.1), PARTS)
"""Change of each weight that makes a noticeable difference, [W]."""


@dataclass(frozen=True)
class RulesOptions:
    """Hyper-parameters of method rules. Raises OptionError for a value out of range."""

    rounds: int | None = None
    """Rounds of schedules, one schedule per rule; None stands for as many as take about a second.

    After the first round, rules are changed and ties broken at random.
    """
    spread: float = SPREAD
    """Standard deviation of these changes, in steps of each weight."""
    initial: str | None = None
    """Policy file of 'hsdag train'; None or 'shipped': the one that comes with this release."""

    def __post_init__(self) -> None:
        if (self.rounds is not None and self.rounds < 1) or not 0 <= self.spread < math.inf:
            raise OptionError("rules takes rounds of at least 1 and a finite spread of at least 0")


class RulesPlacer(ListPlacer[RulesOptions]):
    """List scheduling by learned rules, without training on the problem; a schedule takes about a millisecond.

    An op may go to a busy device while another is idle. Idle time between ops is used, as the work-conserving machine
    does.
    """

    num_tried = float("inf")
    name = "rules"
    options_type = RulesOptions
    objectives = ("latency",)

    def __init__(self, options: RulesOptions | None = None) -> None:
        super().__init__(options)
        self._initial = None if self.options.initial is None else read_rules(Path(self.options.initial))

    def proposals(self, problem: Problem, seed: int) -> Iterator[Plan]:
        """Yield one plan per round and rule; the same seed gives the same plans."""
        scheduler = RuleScheduler(tables_of(problem.known_costs))
        rng = np.random.default_rng(seed)
        rules = shipped_rules() if self._initial is None else self._initial
        yield from (scheduler.schedule(rule).plan for rule in rules)
        steps = len(rules) * problem.num_units * problem.num_devices
        steps *= REPAIRING if np.isfinite(problem.known_costs.memory_bytes).any() else 1
        for _ in range(1, self.options.rounds or min(max(STEPS_AT_ONCE // steps, 1), MOST_ROUNDS)):
            for rule in changed(rules, self.options.spread, rng):
                yield scheduler.schedule(rule, rng).plan


class RuleScheduler:
    """Scheduler of one problem by any rule; what does not depend on the rule is computed once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._x = op_features(tables, levels_of(tables))
        self._factor = np.ascontiguousarray(self._x[:, [PATH_THROUGH, STATIC_WAY]])
        self._tail_s = tails_of(tables)
        self._length_s, self._op_s = lengths_of(tables)

    def schedule(self, weights: FloatArray, luck: np.random.Generator | None = None) -> ListSchedule:
        """Return the schedule of a rule's weights [W].

        With ``luck``, devices of equal score are taken in random order, and so are ops whose scores hardly differ.
        """
        of_op, moment, device, by_path, by_way, memory = np.split(weights, np.cumsum(PARTS)[:-1])
        of_device = np.zeros((3, len(device)))
        of_device[0], of_device[1, : len(by_path)], of_device[2, : len(by_way)] = device, by_path, by_way
        s = ListState.of(self._tables)
        n, d = self._tables.time_s.shape
        score = self._x @ of_op
        device_order = np.arange(d)
        if luck is not None:
            score = score * luck.uniform(1 - LUCK, 1 + LUCK, n)
            device_order = luck.permutation(d)
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
        starts = Starts(np.zeros(d), np.zeros(d, np.int64), np.zeros(d, np.bool_), np.zeros(d), np.zeros(len(device)))
        scratch = IdleTime.of(d, n), Outlook.of(self._tables), starts
        run_kernel(schedule_by_rule, 4.0 * d * (n + len(self._tables.in_op)), self._tables, rule, s, *scratch)
        return s.schedule()


def changed(rules: FloatArray, spread: float, rng: np.random.Generator) -> FloatArray:
    """Return rules [R, W] with random changes of all weights, of ``spread`` steps in standard deviation."""
    return np.asarray(rules + spread * STEP * rng.standard_normal(rules.shape))


@functools.cache
def shipped_rules() -> FloatArray:
    """Return the rules [R, W] that come with a release."""
    return read_rules(Path(SHIPPED))


def read_rules(path: Path) -> FloatArray:
    """Return the rules [R, W] of a policy file. Raises FileFormatError for any other file."""
    rules = read_policy(path, METHOD).weights.get(WEIGHTS)
    if rules is None or rules.ndim != 2 or rules.shape[1] != NUM_WEIGHTS or not len(rules):
        raise FileFormatError(f"{path} does not hold rules of {NUM_WEIGHTS} weights; write one with 'hsdag train'")
    return np.asarray(rules, dtype=np.float64)


class Rule(NamedTuple):
    """A rule as the kernel reads it for one problem."""

    score: FloatArray  # [N] scores of ops without the features of the moment
    moment: FloatArray  # [3] weights
    device: FloatArray  # [3, 11] weights by themselves, and times two features of the op
    factor: FloatArray  # [N, 2] those two features
    tail_s: FloatArray  # [N, D] least time after an op on a device until the end, transfers included
    op_s: float  # mean time of an op
    length_s: float  # length of a balanced schedule
    most_memory: float  # share of a device's memory that ops may fill
    device_order: IntArray  # [D] order in which devices of equal score are taken


class Starts(NamedTuple):
    """The possible starts of the op being placed, by device."""

    start_s: FloatArray  # [D]
    gap: IntArray  # [D] index of the gap that it would use
    able: BoolArray  # [D] whether the device may take it
    ahead_s: FloatArray  # [D] estimated end of the schedule by its consumers
    features: FloatArray  # [11] of the present device


@bare
def schedule_by_rule(t: Tables, rule: Rule, s: ListState, idle: IdleTime, w: Outlook, at: Starts) -> None:
    """Place all ops, each time the candidate with the largest score on the device with the largest score.

    Takes about O(N (C + D) + E D) for C candidates at a time.
    """
    count = first_candidates(s, w)
    for turn in range(len(s.device)):
        v = _select(t, rule, s, w, count)
        look(t, s, w, v)
        permit(t, w, v, rule.most_memory, at.able)
        for d in range(len(s.free_s)):
            if t.time_s[v, d] < np.inf:
                at.start_s[d], at.gap[d] = earliest(idle, d, w.ready_s[v, d], t.time_s[v, d], t.op_overhead_s)
                end_s = at.start_s[d] + t.time_s[v, d]
                at.ahead_s[d] = way_by_consumers(t, rule.tail_s, s, w, v, d, end_s)
        d = _place(t, rule, s, w, at, v)
        occupy(idle, d, at.gap[d], at.start_s[d], at.start_s[d] + t.time_s[v, d] + t.op_overhead_s)
        assign_and_free(t, s, w, v, d, at.start_s[d])
        s.sequence[turn] = v
        send(t, s, w, v, d)
        count = offer(t, s, w, v, count - 1)


@inlined
def _select(t: Tables, rule: Rule, s: ListState, w: Outlook, count: int) -> int:
    """Remove the candidate with the largest score from the list and return it; ties by op index."""
    first_s, first_end_s, at, highest = np.inf, np.inf, 0, -np.inf
    for i in range(count):
        start_s, end_s, _ = _soonest(t, s, w, w.candidate[i])
        first_s, first_end_s = min(first_s, start_s), min(first_end_s, end_s)
    for i in range(count):
        v = w.candidate[i]
        start_s, end_s, second_s = _soonest(t, s, w, v)
        score = rule.score[v]
        score += rule.moment[0] * min((start_s - first_s) / rule.op_s, MOST)
        score += rule.moment[1] * min((end_s - first_end_s) / rule.op_s, MOST)
        score += rule.moment[2] * (min((second_s - end_s) / rule.op_s, MOST) if second_s < np.inf else MOST)
        if score > highest or (score == highest and v < w.candidate[at]):
            at, highest = i, score
    chosen: int = w.candidate[at]
    w.candidate[at] = w.candidate[count - 1]
    return chosen


@inlined
def _soonest(t: Tables, s: ListState, w: Outlook, v: int) -> tuple[float, float, float]:
    """Return the earliest start of v after all placed ops, its earliest end, and the end on the second best device."""
    start_s, end_s, second_s = np.inf, np.inf, np.inf
    for d in range(len(s.free_s)):
        if t.time_s[v, d] < np.inf:
            here_s = max(s.free_s[d], w.ready_s[v, d])
            start_s = min(start_s, here_s)
            second_s = min(second_s, max(end_s, here_s + t.time_s[v, d]))
            end_s = min(end_s, here_s + t.time_s[v, d])
    return start_s, end_s, second_s


@inlined
def _place(t: Tables, rule: Rule, s: ListState, w: Outlook, at: Starts, v: int) -> int:
    """Return the device with the largest score; ties by ``device_order``."""
    first_s, end_s, way_s, least_s, free_s, ahead_s = np.inf, np.inf, np.inf, np.inf, np.inf, np.inf
    for d in range(len(at.able)):
        free_s = min(free_s, s.free_s[d])
        if at.able[d]:
            first_s, least_s = min(first_s, at.start_s[d]), min(least_s, t.time_s[v, d])
            end_s = min(end_s, at.start_s[d] + t.time_s[v, d])
            way_s = min(way_s, at.start_s[d] + t.time_s[v, d] + rule.tail_s[v, d])
            ahead_s = min(ahead_s, at.ahead_s[d])
    best, highest = -1, -np.inf
    for d in rule.device_order:
        if not at.able[d]:
            continue
        here_s = at.start_s[d] + t.time_s[v, d]
        unit_s = rule.op_s
        x = at.features
        x[0] = min((at.start_s[d] - first_s) / unit_s, MOST)
        x[1] = min((here_s - end_s) / unit_s, MOST)
        x[2] = min((here_s + rule.tail_s[v, d] - way_s) / unit_s, MOST)
        x[3] = min((t.time_s[v, d] - least_s) / unit_s, MOST)
        x[4] = min(w.sent_s[d] / unit_s, MOST)
        x[5] = w.input_share[d]
        x[6] = min((s.free_s[d] - free_s) / unit_s, MOST)
        x[7] = w.work_s[d] / rule.length_s
        x[8] = min(w.memory[d], MOST)
        x[9] = max(min((w.ready_s[v, d] - s.free_s[d]) / unit_s, MOST), -MOST)
        x[10] = min((at.ahead_s[d] - ahead_s) / unit_s, MOST)
        score = 0.0
        for f in range(len(x)):
            by_op = rule.device[1, f] * rule.factor[v, 0] + rule.device[2, f] * rule.factor[v, 1]
            score += (rule.device[0, f] + by_op) * x[f]
        if best < 0 or score > highest:
            best, highest = d, score
    return best
