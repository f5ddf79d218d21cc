"""Batched local search: the biased (1+1) EA and simulated annealing of DiviML (section V-A).

A placement [N, G] is the string of integers, timed with batches in breadth-first order. Legend: N ops, D devices,
G groups of inputs.
"""

from __future__ import annotations

import numpy as np

from hsdag.batching.incumbent import BatchIncumbent
from hsdag.batching.lists import search_met, warm_start
from hsdag.ir.graph import IntArray
from hsdag.placers.local.moves import LocalMoves

PATIENCE, PATIENCE_PER_GENE = 5000, 100
"""The EA ends after this many neighbours without a gain, and this many more for each op and group."""
NUM_SAMPLES = 64
"""Neighbours of the start that show annealing how large a worsening is."""
FIRST_ACCEPTANCE, LAST_TEMPERATURE = 0.2, 1e-3
"""A round begins where the mean worsening is taken with this probability, and ends at this share of that heat."""
FIRST_ROUND, MOST_IDLE_ROUNDS = 4000, 3
"""Rounds double in length; after this many in a row without a gain annealing ends."""
ASK_EVERY = 64
"""Neighbours between two looks at the clock."""


def search_ea(incumbent: BatchIncumbent) -> None:
    """From bMET; a neighbour moves each group of each op with probability one by their number."""
    search_met(incumbent)
    moves = _Moves(incumbent)
    current, current_s = moves.first()
    idle, patience = 0, PATIENCE + PATIENCE_PER_GENE * current.size
    while moves.can_move and idle < patience:
        for _ in range(ASK_EVERY):
            neighbour = moves.flipped(current)
            seconds = incumbent.timer.makespan_s(neighbour)
            idle = 0 if seconds < current_s else idle + 1
            if seconds < current_s:
                incumbent.consider(neighbour)
            if seconds <= current_s:
                current, current_s = neighbour, seconds
        incumbent.num_considered += ASK_EVERY
        incumbent.wake()


def search_sa(incumbent: BatchIncumbent) -> None:
    """Annealing in rounds of doubling length from the best so far; the start is the best of the list schedulers."""
    warm_start(incumbent)
    moves = _Moves(incumbent)
    best, best_s = moves.first()
    heat_s = _first_heat_s(incumbent, moves, best, best_s)
    length, idle_rounds = FIRST_ROUND, 0
    while moves.can_move and idle_rounds < MOST_IDLE_ROUNDS:
        found, found_s = _round(incumbent, moves, best, best_s, heat_s * 2.0**idle_rounds, length)
        idle_rounds = 0 if found_s < best_s else idle_rounds + 1
        if found_s < best_s:
            best, best_s = found, found_s
        length *= 2


def _round(
    incumbent: BatchIncumbent, moves: _Moves, start: IntArray, start_s: float, heat_s: float, length: int
) -> tuple[IntArray, float]:
    """Cool down once; the best placement of it."""
    current, current_s, best, best_s = start, start_s, start, start_s
    for done in range(length):
        if done % ASK_EVERY == 0:
            incumbent.num_considered += ASK_EVERY
            incumbent.wake()
        proposal = moves.proposal(current)
        seconds = incumbent.timer.makespan_s(proposal)
        warmth_s = heat_s * LAST_TEMPERATURE ** (done / length)
        if seconds <= current_s or moves.rng.random() < np.exp(-(seconds - current_s) / max(warmth_s, 1e-300)):
            current, current_s = proposal, seconds
            if seconds < best_s:
                best, best_s = proposal, seconds
                incumbent.consider(proposal)
    return best, best_s


def _first_heat_s(incumbent: BatchIncumbent, moves: _Moves, start: IntArray, start_s: float) -> float:
    if not moves.can_move or not np.isfinite(start_s):
        return 0.0
    values_s = np.array([incumbent.timer.makespan_s(moves.flipped(start)) for _ in range(NUM_SAMPLES)])
    worse_s = (values_s - start_s)[np.isfinite(values_s) & (values_s > start_s)]
    return float(worse_s.mean()) / -np.log(FIRST_ACCEPTANCE) if len(worse_s) else 0.0


class _Moves:
    """Neighbours of placements [N, G], whose genes are the devices of groups of ops."""

    def __init__(self, incumbent: BatchIncumbent) -> None:
        problem, p = incumbent.problem, incumbent.problem.costs
        self._incumbent, self._num_groups, self._order = incumbent, problem.num_groups, p.topological_order
        self.rng = np.random.default_rng(incumbent.seed)
        self._can = np.asarray(np.isfinite(problem.group_time_s[:, :, 1:]).any(axis=2))  # [N, D]
        self._genes = LocalMoves(np.repeat(self._can, self._num_groups, axis=0), self.rng)
        self._pairs = np.concatenate([[p.edge_src, p.edge_dst], [p.edge_dst, p.edge_src]], axis=1).T
        self.can_move = len(self._genes.movable) > 0

    def first(self) -> tuple[IntArray, float]:
        """The placement to begin with and its seconds in breadth-first order."""
        best = self._incumbent.best
        device = self._can.argmax(axis=1)[:, None].repeat(self._num_groups, axis=1) if best is None else best.device
        return device, self._incumbent.timer.makespan_s(device)

    def flipped(self, placement: IntArray) -> IntArray:
        """Each gene goes elsewhere with probability one by their number, at least one."""
        return self._genes.flipped(placement.ravel()).reshape(placement.shape)

    def proposal(self, placement: IntArray) -> IntArray:
        """One group of one op moved, an op divided as a neighbour is, or a group moved over a stretch of ops."""
        kind = int(self.rng.integers(4))
        if kind <= 1 or not len(self._pairs):
            return self._genes.moved(placement.ravel()).reshape(placement.shape)
        if kind == 2:
            return self._joined(placement)
        genes = self._order * self._num_groups + int(self.rng.integers(self._num_groups))
        return self._genes.stretched(placement.ravel(), genes).reshape(placement.shape)

    def _joined(self, placement: IntArray) -> IntArray:
        found = placement.copy()
        u, v = self._pairs[self.rng.integers(len(self._pairs))].tolist()
        if self._can[v, placement[u]].all():
            found[v] = placement[u]
        return found
