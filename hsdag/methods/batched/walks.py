"""Walks: the (1+1) EA and annealing of one batched problem, from a schedule to better ones, compiled.

A step changes a placement [N, G] or priorities [N], timed by the dispatcher. Annealing counts the makespan and a share
of the load at the prices of devices: most changes alter no makespan, and of these the cheap ones make room for others.
Legend: N ops, E edges, D devices, G groups of inputs, M ops that can move.
"""

# ruff: noqa: NPY002 - compiled code has the legacy generator alone, one for each thread
from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from hsdag.ir.graph.computation_graph import BoolArray, Csr, FloatArray, IntArray
from hsdag.ir.kernels import bare, inlined
from hsdag.methods.batched.dispatch import Tables, dispatched_s, loaded, schedule_of
from hsdag.methods.batched.incumbent import BatchIncumbent
from hsdag.methods.exact.batches import BatchedProblem, BatchSchedule

NUM_WALKS, NUM_TEMPERATURES, LONGEST_SPREAD = 2, 400, 6
STEP_S = 3.5e-8
"""Seconds of a step for each op and edge: what a budget is turned into steps with."""
STEPS_PER_GENE = 20_000
"""Steps for each op and group after which nothing better is expected."""
JITTER = 0.01
"""How far, as a share, a priority may lie from the one that it is copied from."""


class Move(IntEnum):
    """What a step changes."""

    FLIPS = 0  # each group of each op with probability 1 / (N G), at least one
    GROUP = 1  # one group of an op
    OP = 2  # all groups of an op
    SPREAD = 3  # a path of neighbours, each divided like the first
    SWAP = 4  # two ops that exchange their devices
    PRIORITY = 5  # an op's priority is set beside that of another op


@dataclass(frozen=True)
class Walk:
    """Temperatures from the first to the last in equal ratios, as shares of the first makespan, and the moves drawn.

    ``weight`` is what a second of load, at the prices of devices, counts in seconds of makespan.
    """

    hot: float
    cold: float
    weight: float = 1.0
    moves: tuple[Move, ...] = (
        *(Move.GROUP,) * 4,
        *(Move.OP,) * 2,
        *(Move.SPREAD,) * 5,
        *(Move.SWAP,) * 2,
        *(Move.PRIORITY,) * 3,
    )


EVOLUTION = Walk(0.0, 0.0, weight=0.0, moves=(Move.FLIPS,))
ON_CHAINS, ON_OPS = Walk(3e-3, 2e-4), Walk(1e-3, 1e-4)
"""Chosen, like the weight of loads, on sdep-2 of the simulated costs of DiviML."""


class State(NamedTuple):
    """What a step may change, where the walk is, what its last step changed, and the best it has met."""

    ops: IntArray  # [M]
    devices: IntArray  # [N, D] those of an op, then -1
    num_devices: IntArray  # [N]
    can: BoolArray  # [N, D] whether an op may be there
    pair_first: IntArray  # [N + 1] to 2 E
    pair: IntArray  # [2 E] neighbours of an op
    moves: IntArray  # of which a step draws one
    price: FloatArray  # [D] of a second of load
    device: IntArray  # [N, G]
    priority: FloatArray  # [N]
    best_device: IntArray  # [N, G]
    best_priority: FloatArray  # [N]
    value_s: FloatArray  # [3] makespan and price where it is, least makespan
    changed: IntArray  # [1 + C] how many changes, and the op of each
    old_device: IntArray  # [C, G]
    old_priority: FloatArray  # [C]

    @staticmethod
    def begin(problem: BatchedProblem, walk: Walk, price: FloatArray, schedule: BatchSchedule) -> State:
        """A walk from a schedule, where what begins early has a high priority; ``price`` [D] adds up to 1."""
        p, can = problem.costs, np.asarray(np.isfinite(problem.group_time_s[:, :, 1:]).any(axis=2))
        ends = np.concatenate([p.edge_src, p.edge_dst]), np.concatenate([p.edge_dst, p.edge_src])
        pairs, most = Csr.build(p.num_ops, *ends), max(schedule.device.size, LONGEST_SPREAD) + 2
        priority = np.asarray(np.nanmax(schedule.start_s) - np.nanmin(schedule.start_s, axis=1), dtype=np.float64)
        return State(
            ops=np.flatnonzero(can.sum(axis=1) > 1),
            devices=np.where(np.sort(~can, axis=1), -1, np.argsort(~can, axis=1, kind="stable")),
            num_devices=can.sum(axis=1),
            can=can,
            pair_first=pairs.indptr,
            pair=pairs.indices,
            moves=np.array(walk.moves, dtype=np.int64),
            price=price,
            device=schedule.device.copy(),
            priority=priority,
            best_device=schedule.device.copy(),
            best_priority=priority.copy(),
            value_s=np.array([np.inf, 0.0, np.inf]),
            changed=np.zeros(1 + most, dtype=np.int64),
            old_device=np.zeros((most, schedule.device.shape[1]), dtype=np.int64),
            old_priority=np.zeros(most),
        )


def search_walks(incumbent: BatchIncumbent, price: FloatArray, walk: Walk, seconds: float) -> None:
    """Walk on from the best schedule, if any, for ``seconds`` at most, in steps that the time is enough for by far.

    The number of steps is that of the budget, not of the machine: where they fit, two runs are equal. Where they do
    not, the clock cools instead.
    """
    start, problem = incumbent.best, incumbent.problem
    if start is None:
        return
    walks = [(Tables.of(problem), State.begin(problem, walk, price, start)) for _ in range(NUM_WALKS)]
    with incumbent.off_the_clock():  # the first call compiles
        for tables, state in walks:
            anneal(tables, state, 0, 0.0, walk.weight, 0)
    if not len(walks[0][1].ops) or np.isinf(walks[0][1].value_s[0]):
        return
    most = STEPS_PER_GENE * start.device.size
    steps = min(seconds / (STEP_S * (problem.costs.num_ops + len(problem.costs.edge_src))), most)
    incumbent.hit_limit |= steps < most
    each, begin, makespan_s = max(int(steps / NUM_TEMPERATURES), 1), time.monotonic(), incumbent.best_s
    done, share = 0, 0.0
    with ThreadPoolExecutor(NUM_WALKS) as pool:
        while share < 1.0 and not incumbent.is_closed:
            heat_s = makespan_s * walk.hot * (walk.cold / walk.hot) ** share if walk.hot else 0.0
            seeds = [hash((incumbent.seed, k, done)) % 2**31 for k in range(NUM_WALKS)]
            for running in [
                pool.submit(anneal, *walks[k], each, heat_s, walk.weight, seed) for k, seed in enumerate(seeds)
            ]:
                running.result()
            for tables, state in walks:
                if state.value_s[2] < incumbent.best_s:
                    incumbent.consider_schedule(schedule_of(tables, state.best_device, state.best_priority))
            incumbent.num_considered += NUM_WALKS * each
            incumbent.wake()
            done += 1
            share = max(done / NUM_TEMPERATURES, (time.monotonic() - begin) / seconds)


@bare
def anneal(t: Tables, s: State, steps: int, heat_s: float, weight: float, seed: int) -> None:
    """Steps at one temperature, from the value of where the walk is."""
    np.random.seed(seed)
    s.value_s[0], s.value_s[1] = _valued(t, s, np.inf, 0.0)
    if s.value_s[0] < s.value_s[2]:
        _keep(s)
    for _ in range(steps):
        s.changed[0] = 0
        _step(s)
        limit_s = s.value_s[0] + weight * s.value_s[1]
        if heat_s > 0.0:
            limit_s -= heat_s * np.log(1.0 - np.random.random())
        makespan_s, load_s = _valued(t, s, limit_s, weight)
        if makespan_s + weight * load_s > limit_s or makespan_s == np.inf:
            _undo(s)
            continue
        s.value_s[0], s.value_s[1] = makespan_s, load_s
        if makespan_s < s.value_s[2]:
            _keep(s)


@inlined
def _valued(t: Tables, s: State, limit_s: float, weight: float) -> tuple[float, float]:
    """Makespan and price of the load; infinite where both together are more than the limit."""
    if not loaded(t, s.device):
        return np.inf, 0.0
    load_s, most_s = 0.0, 0.0
    for d in range(len(s.price)):
        load_s += s.price[d] * t.load_s[d]
        most_s = max(most_s, t.load_s[d])
    cutoff_s = limit_s - weight * load_s
    if most_s > cutoff_s:
        return np.inf, load_s
    return dispatched_s(t, s.device, s.priority, cutoff_s), load_s


@inlined
def _keep(s: State) -> None:
    s.value_s[2] = s.value_s[0]
    for v in range(s.device.shape[0]):
        s.best_priority[v] = s.priority[v]
        for g in range(s.device.shape[1]):
            s.best_device[v, g] = s.device[v, g]


@inlined
def _undo(s: State) -> None:
    """Backwards, as a step may change an op twice."""
    for i in range(s.changed[0], 0, -1):
        v = s.changed[i]
        s.priority[v] = s.old_priority[i - 1]
        for g in range(s.device.shape[1]):
            s.device[v, g] = s.old_device[i - 1, g]


@inlined
def _remember(s: State, v: int) -> None:
    i = s.changed[0]
    s.old_priority[i] = s.priority[v]
    for g in range(s.device.shape[1]):
        s.old_device[i, g] = s.device[v, g]
    s.changed[0] = i + 1
    s.changed[i + 1] = v


@inlined
def _step(s: State) -> None:
    move, groups = s.moves[np.random.randint(len(s.moves))], s.device.shape[1]
    v, w = _any_op(s), _any_op(s)
    _remember(s, v)
    if move == Move.FLIPS:
        for _ in range(min(max(1, np.random.poisson(1.0)), len(s.old_priority) - 1)):
            _remember(s, v)
            s.device[v, np.random.randint(groups)] = _any_device(s, v)
            v = _any_op(s)
    elif move == Move.GROUP:
        s.device[v, np.random.randint(groups)] = _any_device(s, v)
    elif move == Move.OP:
        s.device[v, :] = _any_device(s, v)
    elif move == Move.SPREAD:
        _spread(s, v)
    elif move == Move.SWAP:
        _remember(s, w)
        for g in range(groups):
            a, b = s.device[v, g], s.device[w, g]
            if s.can[v, b] and s.can[w, a]:
                s.device[v, g], s.device[w, g] = b, a
    else:
        s.priority[v] = s.priority[w] * (1 + JITTER * (2 * np.random.random() - 1))


@inlined
def _spread(s: State, v: int) -> None:
    u = v
    for _ in range(1 + np.random.randint(LONGEST_SPREAD)):
        if s.pair_first[u + 1] > s.pair_first[u]:
            u = s.pair[np.random.randint(s.pair_first[u], s.pair_first[u + 1])]
            _remember(s, u)
            for g in range(s.device.shape[1]):
                if s.can[u, s.device[v, g]]:
                    s.device[u, g] = s.device[v, g]


@inlined
def _any_op(s: State) -> int:
    v: int = s.ops[np.random.randint(len(s.ops))]
    return v


@inlined
def _any_device(s: State, v: int) -> int:
    d: int = s.devices[v, np.random.randint(s.num_devices[v])]
    return d
