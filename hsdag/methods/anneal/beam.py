"""Beam search: extends many list schedules op by op, and keeps those that leave devices idle the least.

A state is a partial schedule. Its open ops read the result of an op that it has placed, or have no inputs; the ready
ones, whose inputs are all placed, come first.

Legend: N ops, E edges, D devices, B states in the beam, S = 2 B slots for states, O open ops of a state, L turns, in
each of which every state places one op.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hsdag.base.kernels import ZERO, bare, inlined, inner, run_kernel
from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray, inverse_of
from hsdag.methods.anneal.values import Lists, lists_for, lists_of
from hsdag.methods.anneal.windows import WindowsPlacer
from hsdag.methods.base import NoOptions, Placer
from hsdag.methods.incumbent import GaveUp, Incumbent, Status
from hsdag.methods.lists.base import TWO_OPS
from hsdag.methods.lists.schedulers import HeftPlacer
from hsdag.runtime.problem.bounds.simple import shared_load
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution
from hsdag.runtime.problem.tables import levels_of, tables_of
from hsdag.runtime.simulator.machine import ENTRY, Records, pop, push

NARROW = 16
"""Number of states of the first beam."""
SHARE = 0.8
"""Share of the remaining time that the second, wider beam is sized to take."""
WIDEST = 1024
"""Largest number of states of a beam."""
MOST_PLACED = 1 << 25
"""Largest product of ops and states: wider beams would keep too many choices in memory."""
URGENCY = 0.003
"""Weight of remaining path length and of ready-op delay against device time, all in seconds."""
MOST_OPEN = 256
"""Largest number of open ops of a state; drop a state that would have more."""
HORIZON = 64
"""Turns by which an op without inputs opens before its place in the order of levels."""
MOST_CHILDREN = 2
"""Largest number of successors of one state, so that the beam stays diverse."""
NUM_COMPARED = 12
"""Number of states, the last chosen ones, that a new state is compared with to find duplicates."""
ROUNDING = 1e-9
"""Share of the total work below which values count as equal: states with the same ops placed and equal values differ
only by an exchange of devices or in the order of choices, and are duplicates."""
SLICE = 1_000_000
"""Number of placed ops, over all states, between two checks whether the search has to end."""


PART = 0.3
"""Share of the search's time and evaluations for the beams; the rest is for windows."""


class BeamPlacer(Placer[NoOptions]):
    """Beam search, then ``windows`` from the best plan; for large graphs whose list schedules leave devices idle."""

    name = "beam"
    objectives = ("latency",)
    executions = (Execution.WORK_CONSERVING,)
    gives_order = True
    is_seeded = True

    def _search(self, incumbent: Incumbent) -> Status:
        limits = incumbent.limits
        incumbent.evaluate(list(limits.known) or list(HeftPlacer().proposals(incumbent.problem, 0)))
        budget = PART * incumbent.left_s, PART * incumbent.evaluations_left
        with suppress(GaveUp):
            incumbent.evaluate(list(beam_plans(incumbent.costs, *budget, incumbent.check)))
        known = () if incumbent.best is None else (incumbent.best,)
        WindowsPlacer().search(incumbent.problem, incumbent, replace(limits, seconds=incumbent.left_s, known=known))
        return Status.FEASIBLE

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        WindowsPlacer().prepare(problem, takes_order=takes_order)
        list(beam_plans(TWO_OPS, 0.0, 1.0, int))


def beam_plans(costs: ScheduleProblem, seconds: float, most: float, check: Callable[[], object]) -> Iterator[Plan]:
    """Yield the plan of a narrow beam, then that of a wider one if the time allows.

    This is beam search (Lowerre 1976) over ETF's choices (Hwang et al. 1989): the pairs of a ready op and a device with
    the earliest start. States with the same number of placed ops are compared by a bound on their load: the time until
    which each device is busy or has waited, plus the least work that is left, priced per device as in the bound of the
    whole problem. URGENCY adds the remaining path length. An op that takes no time and has no inputs goes with its
    first reader.

    Args:
        seconds: Time for both beams; it sets the width of the second one.
        most: Largest number of states.
        check: Called between slices of the search; may raise to end it.

    Raises GaveUp where too many ops are open at once.
    """
    began_s = time.monotonic()
    growth = Growth.of(costs)
    most = max(min(WIDEST, MOST_PLACED // costs.num_ops, most), 1)
    width = int(min(NARROW, most))
    yield grown(growth, width, check)
    took_s = max(time.monotonic() - began_s, 1e-9)
    if (wider := int(min(most, SHARE * (seconds - took_s) / took_s * width))) > width:
        yield grown(growth, wider, check)


class Growth(NamedTuple):
    """Constants of a beam search on one problem.

    Ops that go with their first reader get no turn; their results are sent from its device at time 0.
    """

    lists: Lists
    is_late: BoolArray  # [E] whether the result is sent when its op ends, not at time 0
    worth: FloatArray  # [N] seconds by which placing the op lowers the value of a state
    price: FloatArray  # [D] weight of a second of each device in the load bound
    rounding_s: float
    mark: NDArray[np.uint64]  # [N] random marks, whose exclusive or identifies a set of ops
    source: IntArray  # ops without inputs that have turns, in the order of levels
    due: IntArray  # turns of these, if ops were placed in the order of levels
    home: IntArray  # [N] the first reader of an op without a turn, else the op itself

    @staticmethod
    def of(costs: ScheduleProblem) -> Growth:
        """Return the constants for a problem."""
        tables, base = tables_of(costs), lists_of(costs)
        num = costs.num_ops
        level_s = levels_of(tables).static_s
        load_s, price = shared_load(costs)
        place = inverse_of(np.lexsort((inverse_of(costs.topological_order), -level_s)))
        first_reader = np.full(num, num)
        np.minimum.at(first_reader, costs.edge_src, place[costs.edge_dst])
        is_idle = (base.time_s == 0).all(axis=1) & (np.diff(tables.in_first) == 0) & (first_reader < num)
        home = np.where(is_idle, inverse_of(place)[np.minimum(first_reader, num - 1)], np.arange(num))
        kept = np.flatnonzero(home[costs.edge_src] != costs.edge_dst)
        kept = kept[np.argsort(home[costs.edge_src[kept]], kind="stable")]
        edges = np.stack([home[costs.edge_src[kept]], costs.edge_dst[kept]])
        lists = lists_for(base.time_s, edges, costs.edge_bytes[kept], base.latency_s, base.s_per_byte)
        due = np.cumsum(~is_idle[inverse_of(place)])[place] - 1
        sources = np.flatnonzero((lists.num_inputs == 0) & ~is_idle)
        sources = sources[np.argsort(due[sources])]
        return Growth(
            lists=lists,
            is_late=~is_idle[costs.edge_src[kept]],
            worth=(lists.time_s * price).min(axis=1) + URGENCY * level_s,
            price=price,
            rounding_s=ROUNDING * load_s,
            mark=np.random.default_rng(0).integers(1 << 63, size=num).astype(np.uint64),
            source=sources,
            due=due[sources],
            home=home,
        )


class Count(IntEnum):
    """Index of each counter in ``Beam.number``."""

    STATES = 0
    SOURCES = 1  # ops without inputs that are open or placed
    CANDIDATES = 2
    CHOSEN = 3
    SPARE = 4  # slots without a state


class Beam(NamedTuple):
    """Arrays that hold the states of a beam, their successors, and the choices that led to them."""

    state: IntArray  # [B] slots of the states
    next_state: IntArray  # [B] slots of the states of the next turn
    spare: IntArray  # [S] slots without a state
    number: IntArray  # counters, by Count
    num_children: IntArray  # [B] chosen successors of each state
    candidates: Records  # [B * O * D] ENTRY, a heap of possible choices
    chosen: Records  # [B] ENTRY
    chosen_mark: NDArray[np.uint64]  # [B] marks of the ops placed after each choice
    free_s: FloatArray  # [S, D] when devices become free
    worth: FloatArray  # [S] worth of the placed ops
    mark: NDArray[np.uint64]  # [S] mark of the placed ops
    num_ready: IntArray  # [S]
    num_open: IntArray  # [S]
    op: IntArray  # [S, O] open ops, ready ones first
    waiting: IntArray  # [S, O] number of inputs that are not placed yet
    arrival_s: FloatArray  # [S, O, D] when the placed inputs have reached each device
    choice: NDArray[np.int32]  # [L, B] device * N + op
    parent: NDArray[np.int16]  # [L, B] index of the previous turn's state that a state continues

    @staticmethod
    def of(growth: Growth, width: int) -> Beam:
        """Return a beam for ``width`` states that holds one, in which nothing is placed."""
        size = 2 * width
        turns = int((growth.home == np.arange(len(growth.home))).sum()), width
        return Beam(
            state=np.arange(width),
            next_state=np.zeros(width, dtype=np.int64),
            spare=np.append(np.arange(1, size), 0),
            number=np.array([1, 0, 0, 0, size - 1]),
            num_children=np.zeros(width, dtype=np.int64),
            candidates=np.zeros(width * MOST_OPEN * len(growth.price), ENTRY),
            chosen=np.zeros(width, ENTRY),
            chosen_mark=np.zeros(width, dtype=np.uint64),
            free_s=np.zeros((size, len(growth.price))),
            worth=np.zeros(size),
            mark=np.zeros(size, dtype=np.uint64),
            num_ready=np.zeros(size, dtype=np.int64),
            num_open=np.zeros(size, dtype=np.int64),
            op=np.zeros((size, MOST_OPEN), dtype=np.int64),
            waiting=np.zeros((size, MOST_OPEN), dtype=np.int64),
            arrival_s=np.zeros((size, MOST_OPEN, len(growth.price))),
            choice=np.empty(turns, dtype=np.int32),
            parent=np.empty(turns, dtype=np.int16),
        )


def grown(growth: Growth, width: int, check: Callable[[], object]) -> Plan:
    """Return the plan of a beam of ``width`` states; see ``beam_plans``."""
    beam = Beam.of(growth, width)
    step = max(SLICE // width, 1)
    for begin in range(0, len(beam.choice), step):
        check()
        end = min(begin + step, len(beam.choice))
        run_kernel(grow, float(width * (end - begin) * len(growth.price)), growth, beam, begin, end)
        if beam.number[Count.STATES] == 0:
            raise GaveUp(f"more than {MOST_OPEN} ops would wait for inputs at once")
    k = int(np.argmin(beam.free_s[beam.state[: beam.number[Count.STATES]]].max(axis=1)))
    device, turn = np.zeros(len(growth.home), dtype=np.int64), np.full(len(growth.home), -1)
    for i in range(len(beam.choice) - 1, -1, -1):
        where, v = divmod(int(beam.choice[i, k]), len(growth.home))
        device[v], turn[v] = where, i
        k = int(beam.parent[i, k])
    return Plan(device[growth.home], inverse_of(np.argsort(turn, kind="stable")))


@bare
def grow(g: Growth, b: Beam, begin: int, end: int) -> None:
    """Place an op in every state in each turn from ``begin`` to ``end``; no states are left if none can go on."""
    for turn in range(begin, end):
        _open_sources(g, b, turn)
        _offer(g, b)
        _choose(g, b)
        _follow(g, b, turn)


@inner
def _open_sources(g: Growth, b: Beam, turn: int) -> None:
    """Open, in all states, the ops without inputs that are due within HORIZON turns."""
    most: int = ZERO
    for k in range(b.number[Count.STATES]):
        most = max(most, b.num_open[b.state[k]])
    opened = b.number[Count.SOURCES]
    while opened < len(g.source) and g.due[opened] < turn + HORIZON and most < MOST_OPEN:
        most += 1
        for k in range(b.number[Count.STATES]):
            s = b.state[k]
            _open(g, b, s, g.source[opened])
            _exchange(b, s, b.num_open[s] - 1, b.num_ready[s])
            b.num_ready[s] += 1
        opened += 1
    b.number[Count.SOURCES] = opened


@inner
def _open(g: Growth, b: Beam, s: int, v: int) -> None:
    """Append op v to the open ops of the state in slot s."""
    i = b.num_open[s]
    b.num_open[s] += 1
    b.op[s, i], b.waiting[s, i] = v, g.lists.num_inputs[v]
    b.arrival_s[s, i, :] = 0.0


@inner
def _exchange(b: Beam, s: int, i: int, j: int) -> None:
    """Exchange the open ops at i and j of the state in slot s."""
    b.op[s, i], b.op[s, j] = b.op[s, j], b.op[s, i]
    b.waiting[s, i], b.waiting[s, j] = b.waiting[s, j], b.waiting[s, i]
    for d in range(b.free_s.shape[1]):
        b.arrival_s[s, i, d], b.arrival_s[s, j, d] = b.arrival_s[s, j, d], b.arrival_s[s, i, d]


@inlined
def _offer(g: Growth, b: Beam) -> None:
    """Fill the heap with all choices of all states, ordered by the value of the state that each leads to."""
    size = ZERO
    for k in range(b.number[Count.STATES]):
        s = b.state[k]
        first_s, starts_s = np.inf, 0.0
        for i in range(b.num_ready[s]):
            start_s = np.inf
            for d in range(len(g.price)):
                if g.lists.time_s[b.op[s, i], d] < np.inf:
                    start_s = min(start_s, max(b.free_s[s, d], b.arrival_s[s, i, d]))
            first_s, starts_s = min(first_s, start_s), starts_s + start_s
        until_s = URGENCY * (starts_s - b.num_ready[s] * first_s)
        for d in range(len(g.price)):
            until_s += g.price[d] * max(b.free_s[s, d], first_s)
        for i in range(b.num_ready[s]):
            u = b.op[s, i]
            for d in range(len(g.price)):
                if g.lists.time_s[u, d] < np.inf and max(b.free_s[s, d], b.arrival_s[s, i, d]) == first_s:
                    value = until_s + g.price[d] * g.lists.time_s[u, d] - b.worth[s] - g.worth[u]
                    push(b.candidates, ZERO, size, value, (k * MOST_OPEN + i) * len(g.price) + d)
                    size += 1
    b.number[Count.CANDIDATES] = size


@inlined
def _choose(g: Growth, b: Beam) -> None:
    """Take the best candidates off the heap, up to the width of the beam, and skip duplicates."""
    size = b.number[Count.CANDIDATES]
    num = 0
    b.num_children[:] = 0
    while size > 0 and num < len(b.state):
        value = b.candidates[0].value
        key = pop(b.candidates, ZERO, size)
        size -= 1
        k = key // (MOST_OPEN * len(g.price))
        s = b.state[k]
        u = b.op[s, key // len(g.price) % MOST_OPEN]
        mark = b.mark[s] ^ g.mark[u]
        is_new = (
            b.num_children[k] < MOST_CHILDREN and b.num_open[s] + g.lists.first[u + 1] - g.lists.first[u] <= MOST_OPEN
        )
        for other in range(max(num - NUM_COMPARED, 0), num):
            is_same = b.chosen_mark[other] == mark and value - b.chosen[other].value <= g.rounding_s
            is_new = is_new and not is_same
        if is_new:
            b.chosen[num].value, b.chosen[num].key, b.chosen_mark[num] = value, key, mark
            b.num_children[k] += 1
            num += 1
    b.number[Count.CHOSEN] = num


@inlined
def _follow(g: Growth, b: Beam, turn: int) -> None:
    """Replace the states by the chosen ones, each in the slot of the state that it continues or in a spare slot."""
    num, num_spare = b.number[Count.CHOSEN], b.number[Count.SPARE]
    for k in range(b.number[Count.STATES]):
        if b.num_children[k] == 0:
            b.spare[num_spare] = b.state[k]
            num_spare += 1
    for c in range(num):
        key = b.chosen[c].key
        k, i, d = key // (MOST_OPEN * len(g.price)), key // len(g.price) % MOST_OPEN, key % len(g.price)
        s = b.state[k]
        b.num_children[k] -= 1
        if b.num_children[k] > 0:
            num_spare -= 1
            _copy(b, s, b.spare[num_spare])
            s = b.spare[num_spare]
        b.next_state[c] = s
        b.choice[turn, c] = d * len(g.home) + b.op[s, i]
        b.parent[turn, c] = k
        b.mark[s] = b.chosen_mark[c]
        _place(g, b, s, i, d)
    for c in range(num):
        b.state[c] = b.next_state[c]
    b.number[Count.STATES], b.number[Count.SPARE] = num, num_spare


@inner
def _copy(b: Beam, s: int, to: int) -> None:
    """Copy the state in slot s to the spare slot ``to``."""
    b.worth[to], b.num_ready[to], b.num_open[to] = b.worth[s], b.num_ready[s], b.num_open[s]
    for d in range(b.free_s.shape[1]):
        b.free_s[to, d] = b.free_s[s, d]
    for i in range(b.num_open[s]):
        b.op[to, i], b.waiting[to, i] = b.op[s, i], b.waiting[s, i]
        for d in range(b.free_s.shape[1]):
            b.arrival_s[to, i, d] = b.arrival_s[s, i, d]


@inlined
def _place(g: Growth, b: Beam, s: int, i: int, d: int) -> None:
    """Place the ready op at i of the state in slot s on device d, and update when its readers can start."""
    u = b.op[s, i]
    end_s = max(b.free_s[s, d], b.arrival_s[s, i, d]) + g.lists.time_s[u, d]
    b.free_s[s, d] = end_s
    b.worth[s] += g.worth[u]
    b.num_ready[s] -= 1
    b.num_open[s] -= 1
    _exchange(b, s, i, b.num_ready[s])
    _exchange(b, s, b.num_ready[s], b.num_open[s])
    for e in range(g.lists.first[u], g.lists.first[u + 1]):
        j = b.num_ready[s]
        while j < b.num_open[s] and b.op[s, j] != g.lists.reader[e]:
            j += 1
        if j == b.num_open[s]:
            _open(g, b, s, g.lists.reader[e])
        for other in range(len(g.price)):
            sent_s = end_s if g.is_late[e] else 0.0
            sent_s += g.lists.latency_s[d, other] + g.lists.size_bytes[e] * g.lists.s_per_byte[d, other]
            b.arrival_s[s, j, other] = max(b.arrival_s[s, j, other], sent_s)
        b.waiting[s, j] -= 1
        if b.waiting[s, j] == 0:
            _exchange(b, s, j, b.num_ready[s])
            b.num_ready[s] += 1
