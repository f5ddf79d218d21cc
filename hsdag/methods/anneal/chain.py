"""Chain of local search: a plan that changes by small random moves, one at a time, and the best plan so far.

Metropolis' rule decides which proposals are kept, at a temperature that falls geometrically; at temperature 0 those are
kept that are not worse. Moves never put a unit on a device that does not support it. A draw may change nothing.

Legend: U placement units, D devices, K kinds of moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np

from hsdag.base.kernels import inlined, inner
from hsdag.ir.graph.computation_graph import BoolArray, Csr, FloatArray, IntArray, inverse_of
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.simulator.machine import Records

STATE = np.dtype(
    [
        ("random", "u8"),
        ("value", "f8"),  # value of the plan, with a penalty where it does not fit into memory
        ("best", "f8"),  # value of the best plan that fits
        ("temperature", "f8"),
        ("cooling", "f8"),  # factor of the temperature at each proposal
        ("excess", "f8"),  # excess of the last proposed plan's memory, as a share of the device's, over all devices
        ("num_changed", "i8"),  # units that the current proposal changes
        ("num_proposals", "i8"),
        ("gained_at", "i8"),  # number of the proposal that found the best plan
    ],
    align=True,
)


class Chain(NamedTuple):
    """Arrays of a chain: the current and best plan, the current proposal, and the choices that moves are drawn from.

    Ranks are any numbers; units with smaller ones run first.
    """

    device: IntArray  # [U]
    rank: FloatArray  # [U]
    best_device: IntArray  # [U]
    best_rank: FloatArray  # [U]
    changed: IntArray  # [U] units that the current proposal changes, each once
    old_device: IntArray  # [U] devices of these before
    old_rank: FloatArray  # [U] ranks of these before
    is_changed: BoolArray  # [U]
    able: IntArray  # [U, D] devices, those first that support the unit
    num_able: IntArray  # [U] number of devices that support the unit
    supported: BoolArray  # [U, D]
    movable: IntArray  # units that more than one device supports
    near_first: IntArray  # [U + 1] the neighbours of u are near[near_first[u]:near_first[u + 1]]
    near: IntArray
    order: IntArray  # [U] a topological order
    share: FloatArray  # [K] cumulative shares of the kinds of moves
    state: Records  # [1] STATE


def chain_for(problem: Problem, share: FloatArray, seed: int, *, has_pins: bool = False) -> Chain:
    """Return a chain over the units of a problem, still without a plan.

    Args:
        share: Relative frequency of each kind of move [K].
        has_pins: Whether the chain's devices are pins of a list schedule; device D then stands for no pin.
    """
    graph, supported = problem.units.graph, problem.supported
    if has_pins:
        supported = np.pad(supported, ((0, 0), (0, 1)), constant_values=True)
    return chain_of(supported, np.stack([graph.edge_src, graph.edge_dst]), graph.topological_order, share, seed)


def chain_of(supported: BoolArray, edges: IntArray, order: IntArray, share: FloatArray, seed: int) -> Chain:
    """Return a chain over units, still without a plan.

    Args:
        supported: Whether a device supports a unit [U, D].
        edges: Sources and targets of the edges [2, E].
        order: A topological order [U].
        share: Relative frequency of each kind of move [K].
    """
    num = len(supported)
    near = Csr.build(num, edges.ravel(), edges[::-1].ravel())
    state = np.zeros(1, STATE)
    state["random"], state["best"], state["value"] = seed, np.inf, np.inf
    count = supported.sum(axis=1)
    return Chain(
        device=np.zeros(num, dtype=np.int64),
        rank=np.zeros(num),
        best_device=np.zeros(num, dtype=np.int64),
        best_rank=np.zeros(num),
        changed=np.zeros(num, dtype=np.int64),
        old_device=np.zeros(num, dtype=np.int64),
        old_rank=np.zeros(num),
        is_changed=np.zeros(num, dtype=np.bool_),
        able=np.argsort(~supported, axis=1, kind="stable"),
        num_able=count,
        supported=supported.copy(),
        movable=np.flatnonzero(count > 1),
        near_first=near.indptr,
        near=near.indices,
        order=order.copy(),
        share=np.cumsum(share) / np.cumsum(share)[-1],
        state=state,
    )


def places_of(rank: FloatArray) -> IntArray:
    """Return the position [U] of each unit when sorted by ``rank`` [U], ties by index."""
    return inverse_of(np.argsort(rank, kind="stable"))


@inlined
def uniform(c: Chain) -> float:
    """Draw a number in [0, 1) by SplitMix64 (Steele, Lea and Flood 2014) from the chain's random state."""
    c.state[0].random += np.uint64(0x9E3779B97F4A7C15)
    z = c.state[0].random
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = (z ^ (z >> np.uint64(31))) >> np.uint64(11)
    number: float = np.float64(z) * 2.0**-53
    return number


@inlined
def below(c: Chain, count: int) -> int:
    """Draw an integer in [0, count)."""
    return int(uniform(c) * count)


@inner
def change(c: Chain, u: int, device: int, rank: float) -> None:
    """Propose unit u on ``device`` at ``rank``; change nothing if the device does not support the unit."""
    if not c.supported[u, device] or (c.device[u] == device and c.rank[u] == rank):
        return
    if not c.is_changed[u]:
        k = c.state[0].num_changed
        c.changed[k] = u
        c.old_device[k] = c.device[u]
        c.old_rank[k] = c.rank[u]
        c.is_changed[u] = True
        c.state[0].num_changed = k + 1
    c.device[u] = device
    c.rank[u] = rank


@inner
def end_proposal(c: Chain) -> None:
    """End the current proposal, so that the next one begins without changes."""
    for k in range(c.state[0].num_changed):
        c.is_changed[c.changed[k]] = False
    c.state[0].num_changed = 0


@inner
def restore(c: Chain) -> None:
    """Undo the changes of the current proposal."""
    for k in range(c.state[0].num_changed):
        u = c.changed[k]
        c.device[u] = c.old_device[k]
        c.rank[u] = c.old_rank[k]


LONGEST_STRETCH = 0.5
"""Largest share of all units that one move puts on one device."""
FARTHEST = 0.05
"""Largest change of a rank in one move, as a share of the number of units."""


class MoveKind(IntEnum):
    """Kinds of moves."""

    UNIT = 0  # a unit goes to another device
    JOIN = 1  # a unit goes to the device of a neighbour
    SWAP = 2  # two units exchange devices
    CLUSTER = 3  # a unit and about half of its neighbours go to one device
    STRETCH = 4  # a stretch of the topological order goes to one device; the logarithm of its length is uniform
    SHIFT = 5  # a unit goes up or down in the order
    BESIDE = 6  # a unit goes next to another one in the order
    TURN = 7  # two units exchange their places in the order
    FLIPS = 8  # each of n movable units goes to another device with probability 1 / n; at least one does


OF_ORDER = (MoveKind.SHIFT, MoveKind.BESIDE, MoveKind.TURN)
"""Moves that change the order alone."""


def shares_of(problem: Problem, often: Mapping[MoveKind, float], *, takes_order: bool) -> FloatArray:
    """Return the relative frequency [K] of each kind of move, 0 for those that can change nothing in this problem."""
    can_move, can_reorder = bool((problem.supported.sum(axis=1) > 1).any()), takes_order and problem.num_units > 1
    share = np.zeros(len(MoveKind))
    for move, weight in often.items():
        share[move] = weight * (can_reorder if move in OF_ORDER else can_move)
    return share


@inner
def draw_move(c: Chain) -> None:
    """Propose a move whose kind is drawn by the chain's shares."""
    at = uniform(c)
    kind = 0
    while at >= c.share[kind]:
        kind += 1
    if kind == MoveKind.SHIFT or kind == MoveKind.BESIDE or kind == MoveKind.TURN:
        _reorder(c, kind)
        return
    u = c.movable[below(c, len(c.movable))]
    if kind == MoveKind.UNIT or kind == MoveKind.JOIN:  # if the neighbour's device changes nothing, take any other
        count = c.near_first[u + 1] - c.near_first[u]
        if kind == MoveKind.JOIN and count > 0:
            change(c, u, c.device[c.near[c.near_first[u] + below(c, count)]], c.rank[u])
        if c.state[0].num_changed == 0:
            change(c, u, _other_device(c, u), c.rank[u])
    elif kind == MoveKind.SWAP:
        w = c.movable[below(c, len(c.movable))]
        a, b = c.device[u], c.device[w]
        if c.supported[u, b] and c.supported[w, a]:
            change(c, u, b, c.rank[u])
            change(c, w, a, c.rank[w])
    elif kind == MoveKind.CLUSTER:
        _move_cluster(c, u)
    elif kind == MoveKind.STRETCH:
        _move_stretch(c)
    else:
        _flip(c)


@inlined
def _other_device(c: Chain, u: int) -> int:
    """Draw another device that supports u, uniformly."""
    device = c.able[u, below(c, c.num_able[u] - 1)]
    return c.able[u, c.num_able[u] - 1] if device == c.device[u] else device  # type: ignore[no-any-return]


@inlined
def _move_cluster(c: Chain, u: int) -> None:
    device = c.able[u, below(c, c.num_able[u])]
    change(c, u, device, c.rank[u])
    for k in range(c.near_first[u], c.near_first[u + 1]):
        if uniform(c) < 0.5:
            change(c, c.near[k], device, c.rank[c.near[k]])


@inlined
def _move_stretch(c: Chain) -> None:
    """Put a random stretch of the topological order on one device."""
    device = below(c, c.able.shape[1])
    length = 1 + int(np.exp(uniform(c) * np.log(max(1.0, LONGEST_STRETCH * len(c.order)))))
    first = below(c, len(c.order) + length - 1) - length + 1
    for i in range(max(first, 0), min(first + length, len(c.order))):
        change(c, c.order[i], device, c.rank[c.order[i]])


@inlined
def _flip(c: Chain) -> None:
    """Put each movable unit on another device with probability one over their number, at least one of them.

    The gaps between chosen units are drawn from a geometric distribution.
    """
    num = len(c.movable)
    stays = np.log(1.0 - 1.0 / num) if num > 1 else -np.inf
    while c.state[0].num_changed == 0:
        i = int(np.log(1.0 - uniform(c)) / stays) if num > 1 else 0
        while i < num:
            u = c.movable[i]
            change(c, u, _other_device(c, u), c.rank[u])
            i += 1 + int(np.log(1.0 - uniform(c)) / stays) if num > 1 else 1


@inlined
def _reorder(c: Chain, kind: int) -> None:
    """Change ranks by a move of this kind; units that only one device supports take part too."""
    num = len(c.rank)
    u, w = below(c, num), below(c, num)
    if kind == MoveKind.SHIFT:
        change(c, u, c.device[u], c.rank[u] + FARTHEST * num * (2.0 * uniform(c) - 1.0))
    elif kind == MoveKind.BESIDE:
        change(c, u, c.device[u], c.rank[w] + uniform(c) - 0.5)
    else:
        rank = c.rank[u]
        change(c, u, c.device[u], c.rank[w])
        change(c, w, c.device[w], rank)


ROUNDING = 1e-12
"""Share by which a value must exceed the largest acceptable one for its computation to be cut off."""


class Values(Protocol):
    """Evaluation of a chain's proposals, in a compiled loop of its own."""

    def propose(self, c: Chain, num: int) -> None:
        """Make ``num`` proposals; with 0, evaluate the chain's current plan, which the caller may have set."""


@inlined
def draw(c: Chain, num: int) -> float:
    """Draw one of ``num`` proposals and return the largest value at which it is to be kept.

    The proposal may change nothing. If ``num`` is 0, propose the whole current plan, to be kept at any value.
    """
    if num == 0:
        c.state[0].num_changed = len(c.device)
        for u in range(len(c.device)):
            c.changed[u] = u
        return np.inf
    c.state[0].num_proposals += 1
    c.state[0].temperature *= c.state[0].cooling
    draw_move(c)
    if c.state[0].num_changed == 0:
        return 0.0
    limit: float = c.state[0].value - c.state[0].temperature * np.log(1.0 - uniform(c))
    return limit


@inlined
def is_kept(c: Chain, value: float, limit: float) -> bool:
    """Keep the proposal if its value is at most ``limit``, else undo it; return whether it was kept."""
    if value > limit:
        restore(c)
        return False
    c.state[0].value = value
    if value < c.state[0].best and c.state[0].excess == 0.0:
        c.state[0].best = value
        c.state[0].gained_at = c.state[0].num_proposals
        for u in range(len(c.device)):
            c.best_device[u] = c.device[u]
            c.best_rank[u] = c.rank[u]
    return True
