"""Annealing and the (1+1) EA of one batched problem, from a schedule to better ones, compiled.

A step changes a placement [N, G] or priorities [N], timed by the dispatcher. Annealing counts the makespan and a share
of the load at the prices of devices: most changes alter no makespan, and of these the cheap ones make room for others.
Legend: N ops, E edges, D devices, G groups of inputs, M ops that can move.
"""

# ruff: noqa: NPY002 - compiled code has the legacy generator alone, one for each thread
from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from hsdag.ir.graph.computation_graph import BoolArray, Csr, FloatArray, IntArray
from hsdag.ir.kernels import bare, inlined
from hsdag.methods.batched.dispatch import Tables, dispatched_s, loaded
from hsdag.methods.batched.problem import BatchedProblem, BatchSchedule

LONGEST_SPREAD = 6
JITTER = 0.01
"""How far, as a share, a priority may lie from the one that it is copied from."""


class Move(IntEnum):
    """What a step changes."""

    FLIPS = 0  # each group of each op with probability 1 / (N G), at least one
    GROUP = 1  # one group of an op
    OP = 2  # all groups of an op
    SPREAD = 3  # a path of neighbours, each divided like the first
    PRIORITY = 4  # an op's priority is set beside that of another op


@dataclass(frozen=True)
class Cooling:
    """Temperatures from the first to the last in equal ratios, as shares of the first makespan, and the moves drawn.

    ``weight`` is what a second of load, at the prices of devices, counts in seconds of makespan. ``by_chain`` divides
    the ops of a chain alike.
    """

    hot: float
    cold: float
    weight: float = 1.0
    moves: tuple[Move, ...] = (*(Move.GROUP,) * 4, *(Move.OP,) * 2, *(Move.SPREAD,) * 5, *(Move.PRIORITY,) * 3)
    by_chain: bool = False

    def heat(self, share: float) -> float:
        """The temperature after a share of the search."""
        return self.hot * (self.cold / self.hot) ** share if self.hot else 0.0


class State(NamedTuple):
    """What a step may change, where the search is, what its step proposes, and the best it has met."""

    ops: IntArray  # [M]
    can: BoolArray  # [N, D] whether an op may be there
    chain: IntArray  # [N] the chain of each op, or nothing where ops are divided one by one
    pair_first: IntArray  # [N + 1] to 2 E
    pair: IntArray  # [2 E] neighbours of an op
    moves: IntArray  # of which a step draws one
    price: FloatArray  # [D] of a second of load
    device: IntArray  # [N, G]
    priority: FloatArray  # [N]
    new_device: IntArray  # [N, G]
    new_priority: FloatArray  # [N]
    best_device: IntArray  # [N, G]
    best_priority: FloatArray  # [N]
    value_s: FloatArray  # [3] makespan and price where it is, least makespan

    @staticmethod
    def begin(problem: BatchedProblem, cooling: Cooling, price: FloatArray, schedule: BatchSchedule) -> State:
        """A search from a schedule, where what begins early has a high priority; ``price`` [D] adds up to 1."""
        p, can = problem.costs, np.asarray(np.isfinite(problem.group_time_s[:, :, 1:]).any(axis=2))
        ends = np.concatenate([p.edge_src, p.edge_dst]), np.concatenate([p.edge_dst, p.edge_src])
        pairs = Csr.build(p.num_ops, *ends)
        priority = np.asarray(np.nanmax(schedule.start_s) - np.nanmin(schedule.start_s, axis=1), dtype=np.float64)
        return State(
            ops=np.flatnonzero(can.sum(axis=1) > 1),
            can=can,
            chain=problem.chains if cooling.by_chain else np.zeros(0, dtype=np.int64),
            pair_first=pairs.indptr,
            pair=pairs.indices,
            moves=np.array(cooling.moves, dtype=np.int64),
            price=price,
            device=schedule.device.copy(),
            priority=priority,
            new_device=schedule.device.copy(),
            new_priority=priority.copy(),
            best_device=schedule.device.copy(),
            best_priority=priority.copy(),
            value_s=np.array([np.inf, 0.0, np.inf]),
        )


@bare
def anneal(t: Tables, s: State, steps: int, heat_s: float, weight: float, seed: int) -> None:
    """Steps at one temperature, from the value of where the search is."""
    np.random.seed(seed)
    _copy(s.device, s.priority, s.new_device, s.new_priority)
    s.value_s[0], s.value_s[1] = _valued(t, s, np.inf, 0.0)
    if s.value_s[0] < s.value_s[2]:
        s.value_s[2] = s.value_s[0]
        _copy(s.device, s.priority, s.best_device, s.best_priority)
    for _ in range(steps):
        _step(s)
        limit_s = s.value_s[0] + weight * s.value_s[1]
        if heat_s > 0.0:
            limit_s -= heat_s * np.log(1.0 - np.random.random())
        makespan_s, load_s = _valued(t, s, limit_s, weight)
        if makespan_s + weight * load_s > limit_s or makespan_s == np.inf:
            _copy(s.device, s.priority, s.new_device, s.new_priority)
            continue
        s.value_s[0], s.value_s[1] = makespan_s, load_s
        _copy(s.new_device, s.new_priority, s.device, s.priority)
        if makespan_s < s.value_s[2]:
            s.value_s[2] = makespan_s
            _copy(s.device, s.priority, s.best_device, s.best_priority)


@inlined
def _copy(device: IntArray, priority: FloatArray, to_device: IntArray, to_priority: FloatArray) -> None:
    for v in range(len(priority)):
        to_priority[v] = priority[v]
        for g in range(device.shape[1]):
            to_device[v, g] = device[v, g]


@inlined
def _valued(t: Tables, s: State, limit_s: float, weight: float) -> tuple[float, float]:
    """Makespan and price of the load of what is proposed; infinite where both together are more than the limit."""
    if not loaded(t, s.new_device):
        return np.inf, 0.0
    load_s, most_s = 0.0, 0.0
    for d in range(len(s.price)):
        load_s += s.price[d] * t.load_s[d]
        most_s = max(most_s, t.load_s[d])
    cutoff_s = limit_s - weight * load_s
    if most_s > cutoff_s:
        return np.inf, load_s
    return dispatched_s(t, s.new_device, s.new_priority, cutoff_s), load_s


@inlined
def _step(s: State) -> None:
    """Change what is proposed."""
    move, groups = s.moves[np.random.randint(len(s.moves))], s.device.shape[1]
    v, w = s.ops[np.random.randint(len(s.ops))], s.ops[np.random.randint(len(s.ops))]
    if move == Move.FLIPS:
        for _ in range(max(1, np.random.poisson(1.0))):
            s.new_device[v, np.random.randint(groups)] = _any_device(s, v)
            v = s.ops[np.random.randint(len(s.ops))]
    elif move == Move.PRIORITY:
        s.new_priority[v] = s.new_priority[w] * (1 + JITTER * (2 * np.random.random() - 1))
    elif move == Move.GROUP:
        s.new_device[v, np.random.randint(groups)] = _any_device(s, v)
        _divide_chain(s, v)
    elif move == Move.OP:
        s.new_device[v, :] = _any_device(s, v)
        _divide_chain(s, v)
    else:
        u = v
        for _ in range(1 + np.random.randint(LONGEST_SPREAD)):
            if s.pair_first[u + 1] > s.pair_first[u]:
                u = s.pair[np.random.randint(s.pair_first[u], s.pair_first[u + 1])]
                _divide_like(s, u, v)
                _divide_chain(s, u)


@inlined
def _divide_chain(s: State, v: int) -> None:
    """All ops of the chain of v like v."""
    for w in range(len(s.chain)):
        if s.chain[w] == s.chain[v] and w != v:
            _divide_like(s, w, v)


@inlined
def _divide_like(s: State, u: int, v: int) -> None:
    """Those groups of u like v's whose devices may have u."""
    for g in range(s.device.shape[1]):
        if s.can[u, s.new_device[v, g]]:
            s.new_device[u, g] = s.new_device[v, g]


@inlined
def _any_device(s: State, v: int) -> int:
    d = np.random.randint(s.can.shape[1])
    while not s.can[v, d]:
        d = np.random.randint(s.can.shape[1])
    return d
