"""RulesPlacer: list scheduling by rules that were learned on other problems.

A rule is a linear function of features of ops, of the moment and of devices. A set of rules is trained together, so
that the best of their schedules is good on most problems (hsdag.training.train): one rule stays on few devices where
links are slow, another one spreads ops. Legend: N ops, D devices, R rules, W weights.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hsdag.ir.errors import FileFormatError, OptionError
from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray
from hsdag.ir.kernels import bare, inlined, run
from hsdag.methods.incumbent import Incumbent
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
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.semantics import Execution
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
from hsdag.scoring.policy_file import read_policy

MOMENT_FEATURES = (
    "earliest start, later than that of the first candidate",
    "earliest end, later than that of the first candidate",
    "end on the second best device, later than on the best",
)
"""Of an op among the candidates, as they change while ops are placed; in units of the mean op, cut at ``MOST``."""
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
"""Of a device for the op at hand; times in units of the mean op, cut at ``MOST``."""
MOST = 10.0
NUM_WEIGHED = 5
"""The first features of a device count with three weights: by themselves, and times two features of the op, which are
the longest path through it and the longest way to the end without transfers."""
PARTS = (len(OP_FEATURES), len(MOMENT_FEATURES), len(DEVICE_FEATURES), NUM_WEIGHED, NUM_WEIGHED, 1)
"""Weights of a rule: of an op, of the moment, of a device, of a device by the op, and the share of memory it fills."""
NUM_WEIGHTS = sum(PARTS)
METHOD, WEIGHTS = "rules", "rules"
SHIPPED = Path(__file__).parents[1] / "policies" / "default.safetensors"
"""The rules that come with a release, for problems not seen before; their card says how 'hsdag train' made them."""
STEPS_AT_ONCE, MOST_ROUNDS, REPAIRING = 400_000, 64, 3
"""Units on devices that schedules of about a second look at, rounds of them at most, and how many times as long one
takes where plans may have to be repaired."""
ROUNDS_AT_ONCE = 4
"""Rounds where other methods begin with what the rules answer."""
SPREAD = 0.2
"""Standard deviation by which the rules of all rounds but the first are changed, in steps of each weight."""
LUCK = 0.02
"""In these rounds, scores of ops are multiplied by a random factor between 1 - LUCK and 1 + LUCK, too."""
STEP = np.repeat((4.0, 1.0, 0.7, 0.7, 0.7, 0.1), PARTS)
"""[W] how far a weight is changed for a difference that shows."""


@dataclass(frozen=True)
class RulesOptions:
    """Raises OptionError for a value out of range."""

    rounds: int | None = None
    """Rounds of schedules, one by every rule; in all but the first, rules are changed and ties broken at random. None:
    as many as take about a second."""
    spread: float = SPREAD
    """Standard deviation of these changes, in steps of each weight."""
    initial: str | None = None
    """Policy file of 'hsdag train'; None: the one that comes with this release."""

    def __post_init__(self) -> None:
        if (self.rounds is not None and self.rounds < 1) or not 0 <= self.spread < math.inf:
            raise OptionError("rules takes rounds of at least 1 and a finite spread of at least 0")

    @staticmethod
    def at_once(initial: str | None) -> RulesOptions:
        """Those with which searches by ``auto`` begin."""
        return RulesOptions(rounds=ROUNDS_AT_ONCE, initial=initial)


def are_asked(incumbent: Incumbent) -> bool:
    """Whether ``auto`` asks the rules: where plans are simulated as those they learned from."""
    return incumbent.is_cheap and incumbent.problem.semantics.execution is Execution.WORK_CONSERVING


class RulesPlacer(ListPlacer[RulesOptions]):
    """List scheduling by learned rules: no training on the problem at hand, about a millisecond a schedule.

    An op may go to a device that is busy while another is idle, so that devices may wait. Idle time between ops is
    used, as the work-conserving machine will.
    """

    num_tried = float("inf")
    name = "rules"
    options_type = RulesOptions
    objectives = ("latency",)

    def __init__(self, options: RulesOptions | None = None) -> None:
        super().__init__(options)
        self._given = None if self.options.initial is None else read_rules(Path(self.options.initial))

    def proposals(self, problem: Problem, seed: int) -> Iterator[Plan]:
        """Rounds times rules plans; the same seed gives the same ones."""
        scheduler = RuleScheduler(tables_of(problem.known_costs))
        rng = np.random.default_rng(seed)
        rules = shipped_rules() if self._given is None else self._given
        yield from (scheduler.plan(rule) for rule in rules)
        steps = len(rules) * problem.num_units * problem.num_devices
        steps *= REPAIRING if np.isfinite(problem.known_costs.memory_bytes).any() else 1
        for _ in range(1, self.options.rounds or min(max(STEPS_AT_ONCE // steps, 1), MOST_ROUNDS)):
            for rule in changed(rules, self.options.spread, rng):
                yield scheduler.plan(rule, rng)


class RuleScheduler:
    """Schedules one problem by any rule; what does not depend on the rule is computed once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._x = op_features(tables, levels_of(tables))
        self._factor = np.ascontiguousarray(self._x[:, [PATH_THROUGH, STATIC_WAY]])
        self._tail_s = tails_of(tables)
        self._length_s, self._op_s = lengths_of(tables)

    def plan(self, weights: FloatArray, luck: np.random.Generator | None = None) -> Plan:
        """The plan by a rule's weights [W]; ops by start, as ``list_schedule`` ranks them."""
        schedule = self.schedule(weights, luck)
        return Plan(schedule.device, schedule.priority)

    def schedule(self, weights: FloatArray, luck: np.random.Generator | None = None) -> ListSchedule:
        """The schedule by a rule's weights [W].

        With ``luck``, devices of equal scores are taken in random order, and so are ops whose scores hardly differ.
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
        run(schedule_by_rule, 4.0 * d * (n + len(self._tables.in_op)), self._tables, rule, s, *scratch)
        return s.schedule()


def changed(rules: FloatArray, spread: float, rng: np.random.Generator) -> FloatArray:
    """[R, W] rules, each with all its weights changed at random, by ``spread`` steps in the standard deviation."""
    return np.asarray(rules + spread * STEP * rng.standard_normal(rules.shape))


@functools.cache
def shipped_rules() -> FloatArray:
    """[R, W] the rules that come with a release."""
    return read_rules(SHIPPED)


def read_rules(path: Path) -> FloatArray:
    """[R, W] the rules of a policy file. Raises FileFormatError for any other file."""
    rules = read_policy(path, METHOD).weights.get(WEIGHTS)
    if rules is None or rules.ndim != 2 or rules.shape[1] != NUM_WEIGHTS or not len(rules):
        raise FileFormatError(f"{path} does not hold rules of {NUM_WEIGHTS} weights; write one with 'hsdag train'")
    return np.asarray(rules, dtype=np.float64)


class Rule(NamedTuple):
    """A rule as the kernel reads it for one problem."""

    score: FloatArray  # [N] of ops, without the moment
    moment: FloatArray  # [3]
    device: FloatArray  # [3, 11] by themselves, and times two features of the op
    factor: FloatArray  # [N, 2] those features
    tail_s: FloatArray  # [N, D] what comes at least behind an op on a device, transfers included
    op_s: float  # the mean op
    length_s: float  # of a balanced schedule
    most_memory: float  # share of a device's memory that ops may fill
    device_order: IntArray  # [D] by which devices of equal scores are taken


class Starts(NamedTuple):
    """Where and when the op at hand could start."""

    start_s: FloatArray  # [D]
    gap: IntArray  # [D] the idle time that it would take
    able: BoolArray  # [D]
    ahead_s: FloatArray  # [D] the way to the end by its consumers
    features: FloatArray  # [11] of the device that is looked at


@bare
def schedule_by_rule(t: Tables, rule: Rule, s: ListState, idle: IdleTime, w: Outlook, at: Starts) -> None:
    """Take the candidate of the largest score and place it on the device of the largest score, until all are placed.

    Near O(N (C + D) + E D) for C candidates at a time.
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
    """Take the candidate of the largest score off the list; ties by op index."""
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
    """Earliest start of v behind all that devices have, its earliest end, and that on the second best device."""
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
    """The device of the largest score; ties by ``device_order``."""
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
