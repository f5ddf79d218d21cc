"""Moves: small random changes of a chain's plan, compiled. Legend: U placement units, D devices.

Every move leaves units on devices that support them. Some draws change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np

from hsdag.ir.compiled import bare, inlined
from hsdag.ir.graph import FloatArray
from hsdag.placers.local.chain import Chain, below, change, groups_of, uniform
from hsdag.runtime.problems.problem import Problem

LONGEST_STRETCH = 0.5
"""Share of all units that one move may put on one device."""
FARTHEST = 0.05
"""Share of all ranks that a unit may go up or down."""


class Move(IntEnum):
    """The kinds of moves."""

    UNIT = 0  # a unit goes to another device
    JOIN = 1  # a unit goes to the device of a neighbour
    SWAP = 2  # two units change devices
    TWINS = 3  # two units of a group change devices
    GROUP = 4  # a group goes to one device
    CLUSTER = 5  # a unit and about half of its neighbours go to one device
    STRETCH = 6  # a stretch of the topological order goes to one device, short stretches as often as long ones
    EXCHANGE = 7  # two devices exchange a stretch of the topological order
    SHIFT = 8  # a unit goes up or down in the order
    BESIDE = 9  # a unit goes next to another one in the order
    TURN = 10  # two units change their places in the order
    FLIPS = 11  # each unit goes to another device with probability one by their number; at least one does


OF_ORDER = (Move.SHIFT, Move.BESIDE, Move.TURN)
OF_GROUPS = (Move.TWINS, Move.GROUP)


def shares_of(problem: Problem, often: Mapping[Move, float], *, takes_order: bool) -> FloatArray:
    """[K] how often each kind of move is drawn, none where it can change nothing in this problem."""
    can_move, has_groups = bool((problem.supported.sum(axis=1) > 1).any()), len(groups_of(problem).indices) > 0
    share = np.zeros(len(Move))
    for move, weight in often.items():
        applies = takes_order and problem.num_units > 1 if move in OF_ORDER else can_move
        share[move] = weight * (applies and (has_groups or move not in OF_GROUPS))
    return share


@bare
def draw_move(c: Chain) -> None:
    """Change the plan by a move of a kind drawn by the chain's shares."""
    at, kind = uniform(c), 0
    while at >= c.share[kind]:
        kind += 1
    if kind == Move.SHIFT or kind == Move.BESIDE or kind == Move.TURN:
        _reorder(c, kind)
        return
    u = c.movable[below(c, len(c.movable))]
    if kind == Move.UNIT:
        change(c, u, _other_device(c, u), c.rank[u])
    elif kind == Move.JOIN:
        _join(c, u)
    elif kind == Move.SWAP:
        _swap_devices(c, u, c.movable[below(c, len(c.movable))])
    elif kind == Move.TWINS:
        _twins(c)
    elif kind == Move.GROUP:
        _move_group(c)
    elif kind == Move.CLUSTER:
        _move_cluster(c, u)
    elif kind == Move.STRETCH or kind == Move.EXCHANGE:
        _move_stretch(c, kind == Move.EXCHANGE)
    else:
        _flip(c)


@inlined
def _other_device(c: Chain, u: int) -> int:
    """Another device that supports u, uniformly."""
    device = c.able[u, below(c, c.num_able[u] - 1)]
    return c.able[u, c.num_able[u] - 1] if device == c.device[u] else device  # type: ignore[no-any-return]


@inlined
def _join(c: Chain, u: int) -> None:
    """To the device of a neighbour; to any other where that changes nothing."""
    count = c.near_first[u + 1] - c.near_first[u]
    if count > 0:
        change(c, u, c.device[c.near[c.near_first[u] + below(c, count)]], c.rank[u])
    if c.state[0].num_changed == 0:
        change(c, u, _other_device(c, u), c.rank[u])


@inlined
def _swap_devices(c: Chain, u: int, w: int) -> None:
    """Where both devices support both."""
    a, b = c.device[u], c.device[w]
    if c.supported[u, b] and c.supported[w, a]:
        change(c, u, b, c.rank[u])
        change(c, w, a, c.rank[w])


@inlined
def _twins(c: Chain) -> None:
    g = below(c, len(c.group_first) - 1)
    first, count = c.group_first[g], c.group_first[g + 1] - c.group_first[g]
    _swap_devices(c, c.group[first + below(c, count)], c.group[first + below(c, count)])


@inlined
def _move_group(c: Chain) -> None:
    g, device = below(c, len(c.group_first) - 1), below(c, c.able.shape[1])
    for k in range(c.group_first[g], c.group_first[g + 1]):
        change(c, c.group[k], device, c.rank[c.group[k]])


@inlined
def _move_cluster(c: Chain, u: int) -> None:
    device = c.able[u, below(c, c.num_able[u])]
    change(c, u, device, c.rank[u])
    for k in range(c.near_first[u], c.near_first[u + 1]):
        if uniform(c) < 0.5:
            change(c, c.near[k], device, c.rank[c.near[k]])


@inlined
def _move_stretch(c: Chain, exchanges: bool) -> None:
    """All of a stretch goes to one device; or what is there on one goes to another, and the other way round."""
    num, num_devices = len(c.order), c.able.shape[1]
    length = 1 + int(np.exp(uniform(c) * np.log(max(1.0, LONGEST_STRETCH * num))))
    first = below(c, num + length - 1) - length + 1
    a, b = below(c, num_devices), below(c, num_devices)
    for i in range(max(first, 0), min(first + length, num)):
        u = c.order[i]
        if not exchanges or c.device[u] == b:
            change(c, u, a, c.rank[u])
        elif c.device[u] == a:
            change(c, u, b, c.rank[u])


@inlined
def _flip(c: Chain) -> None:
    """Units are skipped by a geometric number at a time."""
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
    """Ranks are those of all units, movable or not."""
    num = len(c.rank)
    u, w = below(c, num), below(c, num)
    if kind == Move.SHIFT:
        change(c, u, c.device[u], c.rank[u] + FARTHEST * num * (2.0 * uniform(c) - 1.0))
    elif kind == Move.BESIDE:
        change(c, u, c.device[u], c.rank[w] + uniform(c) - 0.5)
    else:
        rank = c.rank[u]
        change(c, u, c.device[u], c.rank[w])
        change(c, w, c.device[w], rank)
