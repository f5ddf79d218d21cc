"""One round over few candidates, and moves from the best of them where cuts know the costs of placements badly.

Legend: U placement units, N ops, B placements.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from hsdag.evaluators.memory import MemoryCheck
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.ir.partition import Partition
from hsdag.placers.incumbent import GaveUp, Incumbent
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.simulator import Order

MAX_REFINED = 6
"""Candidates that moves start from, the best first."""

MAX_SCORED_OPS = 4_000_000
"""Ops of all placements together that the moves of one search are scored for."""

MAX_SHARE = 0.2
"""Share of the time of a search that moves may take, scoring being slow where many submodels wait for each other."""

BATCH = 64
"""Placements scored at once, and moves that are tried together."""

LEAST_GAIN = 1e-12
"""A move has to gain more than this share: rounding."""


def evaluate_each(candidates: Iterable[IntArray], incumbent: Incumbent, most: int, otherwise: str) -> list[IntArray]:
    """Evaluate the first ``most`` different legal candidates [U], one after the other; those that were.

    Raises GaveUp with ``otherwise`` where all failed, SearchStopped when the evaluator does.
    """
    seen: dict[Plan, None] = {}
    for plan in map(Plan, candidates):
        if plan in seen or not incumbent.problem.is_legal(plan.placement):
            continue
        seen[plan] = None
        incumbent.evaluate([plan])
        if len(seen) == most:
            break
    if incumbent.best is None:
        raise GaveUp(otherwise)
    return [plan.placement for plan in seen]


class Refinement:
    """Moves that gain by simulated values: of the model under HETERO, else of the units."""

    def __init__(self, incumbent: Incumbent) -> None:
        self._incumbent, self._problem = incumbent, incumbent.problem
        self._judge = MemoryCheck(incumbent.costs, self._problem.semantics)
        order = None if self._problem.semantics.order is Order.PRIORITY else self._problem.semantics.order
        self._semantics = replace(self._problem.semantics, order=order)
        self._left = MAX_SCORED_OPS // self._problem.units.fine.num_ops

    def refined(self, starts: list[IntArray]) -> Iterator[IntArray]:
        """The best of ``starts`` [U] and of the single devices, each after all moves that gain."""
        alone = [np.full(self._problem.num_units, d, dtype=np.int64) for d in range(self._problem.num_devices)]
        starts = [each for each in [*alone, *starts] if self._problem.is_legal(each) and self._judge.fits(each)]
        values = self._values(starts)
        for i in np.argsort(values, kind="stable")[:MAX_REFINED].tolist():
            better: tuple[IntArray, float] | None = (starts[i], values[i])
            while better is not None:
                placement, value = better
                better = self._improved(placement, value)
            yield placement

    def _improved(self, placement: IntArray, value: float) -> tuple[IntArray, float] | None:
        """The best that moves which gain by themselves make of a placement together; None where nothing gains."""
        moves = list(itertools.islice(self._moves(placement), self._left))
        values = self._values(moves)
        better = (moves[i] for i in np.argsort(values, kind="stable") if values[i] < value * (1 - LEAST_GAIN))
        gaining = list(itertools.islice((move for move in better if self._judge.fits(move)), BATCH))
        merged = list(itertools.accumulate(gaining, lambda so_far, move: np.where(move != placement, move, so_far)))
        values = self._values(merged)
        for i in np.argsort(values, kind="stable").tolist():
            if values[i] < value * (1 - LEAST_GAIN) and self._judge.fits(merged[i]):
                return merged[i], float(values[i])
        return None

    def _moves(self, placement: IntArray) -> Iterator[IntArray]:
        """A placement [U] after one move to a device: of the units there that edges join, of one, of an edge's two."""
        graph = self._problem.units.graph
        src, dst = graph.edge_src, graph.edge_dst
        away = placement[src] != placement[dst]
        region = Partition.from_pairs(len(placement), src[~away], dst[~away]).labels
        unit, device = np.concatenate([src[away], dst[away]]), placement[np.concatenate([dst[away], src[away]])]
        for r, d in np.unique(np.stack([region[unit], device]), axis=1).T.tolist():
            yield np.where(region == r, d, placement)
        at_edge_first = dict.fromkeys([*unit.tolist(), *range(len(placement))])
        for units in [*zip(at_edge_first), *zip(src.tolist(), dst.tolist(), strict=True)]:
            for d in range(self._problem.num_devices):
                moved = placement.copy()
                moved[list(units)] = d
                if (moved != placement).any():
                    yield moved
        for u, v in np.stack([src[away], dst[away]], axis=1).tolist():
            moved = placement.copy()
            moved[[u, v]] = placement[[v, u]]
            yield moved

    def _values(self, placements: list[IntArray]) -> FloatArray:
        """[B] values of placements [U]; infinite where one is illegal, or no more may be scored."""
        problem, values = self._problem, np.full(len(placements), np.inf)
        for i in range(0, min(len(placements), self._left), BATCH):
            self._incumbent.check()
            if self._incumbent.elapsed_s > MAX_SHARE * self._incumbent.limits.seconds:
                self._left = 0
                break
            some = np.stack(placements[i : i + BATCH])
            legal = problem.supported[np.arange(problem.num_units), some].all(axis=1)
            if problem.hetero is not None:
                found = problem.objective.of_model(problem.hetero, problem.expand(some))
            else:
                found = problem.objective.simulated(self._incumbent.costs, some, self._semantics)
            values[i : i + BATCH] = np.where(legal, found, np.inf)
        self._left = max(self._left - len(placements), 0)
        return values
