"""Annealing of placements and priorities together, with a price for what loads devices, compiled.

A step is a change of placement [N, G] or of priorities, timed by the dispatcher. What counts is the makespan and a
share of the load at the prices of devices: most changes alter no makespan, and of these the cheap ones make room for
others. Legend: N ops, E edges, D devices, G groups of inputs, M ops that can move.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hsdag.batching.dispatch import Room, Tables, dispatched_s, loaded
from hsdag.ir.compiled import bare, inlined
from hsdag.ir.graph import BoolArray, Csr, FloatArray, IntArray
from hsdag.placers.exact.batches import BatchedProblem

NUM_KINDS = 16
"""Cases among which a step draws."""
LONGEST_WALK = 7
JITTER = 0.01
"""How far, as a share, a priority may lie from the one that it is copied from."""


class Moves(NamedTuple):
    """What a step may change."""

    ops: IntArray  # [M]
    devices: IntArray  # [N, D] those of an op, then -1
    num_devices: IntArray  # [N]
    can: BoolArray  # [N, D] whether an op may be there
    pair_first: IntArray  # [N + 1] to 2 E
    pair: IntArray  # [2 E] neighbours of an op
    price: FloatArray  # [D] of a second of load


class State(NamedTuple):
    """A walk: where it is, what its last step changed, and the best it has met."""

    device: IntArray  # [N, G]
    priority: FloatArray  # [N]
    best_device: IntArray  # [N, G]
    best_priority: FloatArray  # [N]
    value_s: FloatArray  # [3] makespan and price where it is, least makespan
    random: NDArray[np.uint64]  # [1] state of the random numbers
    changed: IntArray  # [1 + N + 2] how many ops, and which
    old_device: IntArray  # [N + 2, G]
    old_priority: FloatArray  # [N + 2]


def moves_of(problem: BatchedProblem, price: FloatArray) -> Moves:
    """Every change of placement; ``price`` [D] adds up to 1."""
    p, can = problem.costs, np.asarray(np.isfinite(problem.group_time_s[:, :, 1:]).any(axis=2))
    devices = np.where(np.sort(~can, axis=1), -1, np.argsort(~can, axis=1, kind="stable"))
    ends = np.concatenate([p.edge_src, p.edge_dst]), np.concatenate([p.edge_dst, p.edge_src])
    pairs = Csr.build(p.num_ops, *ends)
    return Moves(np.flatnonzero(can.sum(axis=1) > 1), devices, can.sum(axis=1), can, pairs.indptr, pairs.indices, price)


def state_of(device: IntArray, priority: FloatArray, seed: int) -> State:
    """A walk that begins with a placement [N, G] and priorities [N]."""
    n, groups = device.shape
    room = max(n, LONGEST_WALK) + 2
    return State(
        device.copy(),
        priority.copy(),
        device.copy(),
        priority.copy(),
        np.array([np.inf, 0.0, np.inf]),
        np.random.SeedSequence(seed).generate_state(1, np.uint64).astype(np.uint64),
        np.zeros(1 + room, dtype=np.int64),
        np.zeros((room, groups), dtype=np.int64),
        np.zeros(room),
    )


@bare
def anneal(t: Tables, r: Room, m: Moves, s: State, steps: int, heat_s: float, weight: float) -> None:
    """Steps at one temperature; ``weight`` is what a second of load at its price counts in seconds of makespan."""
    for _ in range(steps):
        s.changed[0] = 0
        _step(m, s)
        if s.changed[0] == 0:
            continue
        limit_s = s.value_s[0] + weight * s.value_s[1] - heat_s * np.log(_unit(s))
        makespan_s, load_s = _valued(t, r, m, s, limit_s, weight)
        if makespan_s + weight * load_s > limit_s or makespan_s == np.inf:
            _undo(s)
            continue
        s.value_s[0], s.value_s[1] = makespan_s, load_s
        if makespan_s < s.value_s[2]:
            _keep(s)


@bare
def evaluate(t: Tables, r: Room, m: Moves, s: State) -> None:
    """Value the placement where the walk is, and take it for the best if it is."""
    s.value_s[0], s.value_s[1] = _valued(t, r, m, s, np.inf, 0.0)
    if s.value_s[0] < s.value_s[2]:
        _keep(s)


@inlined
def _valued(t: Tables, r: Room, m: Moves, s: State, limit_s: float, weight: float) -> tuple[float, float]:
    """Makespan and price of the load; infinite where both together are more than the limit."""
    if not loaded(t, r, s.device):
        return np.inf, 0.0
    load_s, most_s = 0.0, 0.0
    for d in range(len(m.price)):
        load_s += m.price[d] * r.load_s[d]
        most_s = max(most_s, r.load_s[d])
    cutoff_s = limit_s - weight * load_s
    if most_s > cutoff_s:
        return np.inf, load_s
    return dispatched_s(t, r, s.device, s.priority, cutoff_s), load_s


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
def _step(m: Moves, s: State) -> None:
    """One group of an op, a whole op, a copy of a neighbour, a walk, an exchange, two groups, or a priority."""
    v, kind = m.ops[_below(s, len(m.ops))], _below(s, NUM_KINDS)
    groups = s.device.shape[1]
    if 6 <= kind < 9:
        if m.pair_first[v + 1] > m.pair_first[v]:
            _remember(s, v)
            _divide_like(m, s, v, _neighbour(m, s, v))
        return
    if 9 <= kind < 11:
        _walk(m, s, v, 2 + _below(s, LONGEST_WALK - 1))
        return
    _remember(s, v)
    if kind < 4:
        s.device[v, _below(s, groups)] = m.devices[v, _below(s, m.num_devices[v])]
    elif kind < 6:
        d = m.devices[v, _below(s, m.num_devices[v])]
        for g in range(groups):
            s.device[v, g] = d
    elif kind < 13:
        w = m.ops[_below(s, len(m.ops))]
        _remember(s, w)
        for g in range(groups):
            a, b = s.device[v, g], s.device[w, g]
            if m.can[v, b] and m.can[w, a]:
                s.device[v, g], s.device[w, g] = b, a
    elif kind < 14:
        g, h = _below(s, groups), _below(s, groups)
        s.device[v, g], s.device[v, h] = s.device[v, h], s.device[v, g]
    else:
        w = m.ops[_below(s, len(m.ops))]
        if kind == 14 and m.pair_first[v + 1] > m.pair_first[v]:
            w = _neighbour(m, s, v)
        s.priority[v] = s.priority[w] * (1 + JITTER * (2 * _unit(s) - 1))


@inlined
def _walk(m: Moves, s: State, v: int, length: int) -> None:
    """From op to neighbour, each divided like the first."""
    w = v
    for _ in range(length):
        if m.pair_first[w + 1] == m.pair_first[w]:
            return
        w = _neighbour(m, s, w)
        _remember(s, w)
        _divide_like(m, s, w, v)


@inlined
def _divide_like(m: Moves, s: State, v: int, source: int) -> None:
    for g in range(s.device.shape[1]):
        if m.can[v, s.device[source, g]]:
            s.device[v, g] = s.device[source, g]


@inlined
def _neighbour(m: Moves, s: State, v: int) -> int:
    neighbour: int = m.pair[m.pair_first[v] + _below(s, m.pair_first[v + 1] - m.pair_first[v])]
    return neighbour


@inlined
def _bits(s: State) -> int:
    """53 random bits: splitmix64 (Steele et al. 2014)."""
    s.random[0] += np.uint64(0x9E3779B97F4A7C15)
    z = s.random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int(np.int64((z ^ (z >> np.uint64(31))) >> np.uint64(11)))


@inlined
def _below(s: State, n: int) -> int:
    return _bits(s) % n


@inlined
def _unit(s: State) -> float:
    """Between 0 and 1, neither included."""
    return (_bits(s) + 0.5) / 9007199254740992.0
