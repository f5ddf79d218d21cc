"""Chain: a plan that changes by small random moves, one at a time, and the best that it has been.

Legend: U placement units, D devices, G groups, K kinds of moves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.ir.compiled import bare, inlined
from hsdag.ir.graph import BoolArray, Csr, FloatArray, IntArray, inverse_of
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.simulator.heaps import Records

STATE = np.dtype(
    [
        ("random", "u8"),
        ("value", "f8"),  # of the plan; with a penalty where it does not fit into memory
        ("best", "f8"),  # of the best plan that fits
        ("temperature", "f8"),
        ("cooling", "f8"),  # what every proposal multiplies the temperature with
        ("excess", "f8"),  # share of memory by which the plan proposed last exceeds what there is
        ("num_changed", "i8"),  # units of the present proposal
        ("num_proposals", "i8"),
        ("gained_at", "i8"),  # the proposal that found the best
    ],
    align=True,
)


class Chain(NamedTuple):
    """A plan, the room for one proposal, and what proposals are drawn from; ranks are any numbers, smallest first."""

    device: IntArray  # [U]
    rank: FloatArray  # [U]
    best_device: IntArray  # [U]
    best_rank: FloatArray  # [U]
    changed: IntArray  # [U] units of the present proposal, each once
    old_device: IntArray  # [U] where they were
    old_rank: FloatArray  # [U]
    is_changed: BoolArray  # [U]
    able: IntArray  # [U, D] devices, those first that support the unit
    num_able: IntArray  # [U]
    supported: BoolArray  # [U, D]
    movable: IntArray  # units that more than one device supports
    near_first: IntArray  # [U + 1] the neighbours of u are near[near_first[u]:near_first[u + 1]]
    near: IntArray
    group_first: IntArray  # [G + 1]
    group: IntArray  # units by group
    order: IntArray  # [U] a topological order
    share: FloatArray  # [K] cumulative shares of the kinds of moves
    state: Records  # [1] STATE


def chain_for(problem: Problem, share: FloatArray, seed: int, *, has_pins: bool = False) -> Chain:
    """A chain over the units of a problem, without a plan; ``share`` [K] is how often each kind of move is drawn.

    With ``has_pins`` its devices are pins, and one more, D, says that a unit has none.
    """
    num, graph, supported = problem.num_units, problem.units.graph, problem.supported
    if has_pins:
        supported = np.pad(supported, ((0, 0), (0, 1)), constant_values=True)
    near = Csr.build(num, np.append(graph.edge_src, graph.edge_dst), np.append(graph.edge_dst, graph.edge_src))
    groups = groups_of(problem)
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
        group_first=groups.indptr,
        group=groups.indices,
        order=graph.topological_order.copy(),
        share=np.cumsum(share) / np.cumsum(share)[-1],
        state=state,
    )


def groups_of(problem: Problem) -> Csr:
    """Units by the op that they are shards of, as far as that is known."""
    names = () if problem.costs is None else problem.costs.labels.meta_ops
    named = np.array([v for v, name in enumerate(names) if name], dtype=np.int64)
    number = np.unique([names[v] for v in named.tolist()], return_inverse=True)[1]
    return Csr.build(int(number.max(initial=-1)) + 1, number.astype(np.int64), named)


def places_of(rank: FloatArray) -> IntArray:
    """[U] the place of each unit by ``rank`` [U], ties by index."""
    return inverse_of(np.argsort(rank, kind="stable"))


@inlined
def uniform(c: Chain) -> float:
    """A number in [0, 1) by SplitMix64 (Steele, Lea and Flood 2014), whose state is the chain's own."""
    c.state[0].random += np.uint64(0x9E3779B97F4A7C15)
    z = c.state[0].random
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = (z ^ (z >> np.uint64(31))) >> np.uint64(11)
    number: float = np.float64(z) * 2.0**-53
    return number


@inlined
def below(c: Chain, count: int) -> int:
    """A whole number in [0, count)."""
    return int(uniform(c) * count)


@bare
def change(c: Chain, u: int, device: int, rank: float) -> None:
    """In this proposal unit u is on ``device``, if that supports it, at ``rank``."""
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


@bare
def settle(c: Chain) -> None:
    """The proposal is over, and the next one begins with nothing."""
    for k in range(c.state[0].num_changed):
        c.is_changed[c.changed[k]] = False
    c.state[0].num_changed = 0


@bare
def restore(c: Chain) -> None:
    """Put back what the proposal has changed."""
    for k in range(c.state[0].num_changed):
        u = c.changed[k]
        c.device[u] = c.old_device[k]
        c.rank[u] = c.old_rank[k]


@bare
def note_best(c: Chain) -> None:
    """The plan is the best so far."""
    c.state[0].best = c.state[0].value
    c.state[0].gained_at = c.state[0].num_proposals
    for u in range(len(c.device)):
        c.best_device[u] = c.device[u]
        c.best_rank[u] = c.rank[u]
