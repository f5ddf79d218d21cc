"""MincutPlacer: sequential execution as a graph cut, exact for two devices; see docs/mincut.md.

Legend: U placement units, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from hsdag.evaluators.base import Evaluator
from hsdag.ir.errors import OptionError, SearchError
from hsdag.ir.graph import IntArray
from hsdag.placers.alpha_expansion import best_cut, cheapest, simple
from hsdag.placers.base import Checkpoint, Placer, PlacerSettings
from hsdag.placers.boundary_costs import BoundaryCosts
from hsdag.placers.candidate_round import best_of
from hsdag.placers.cut_graph import pair_cut
from hsdag.placers.cut_program import solved_program
from hsdag.placers.memory_prices import MemoryJudge, fitting, repaired
from hsdag.runtime.problem import Problem
from hsdag.runtime.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Execution, Links, Semantics
from hsdag.search.packing import pack_weights
from hsdag.search.units import problem_of

SCALES = (1.0, 2.0, 0.5, 4.0, 1.4, 0.7)
"""Factors on what transfers and launches cost: the real cost of a boundary is less certain than that of an op."""

MAX_CANDIDATES = 7
"""Different placements that are evaluated at most: each may be measured."""

MAX_PROVEN_CHOICES = 200
"""Units times devices up to which more than two devices are solved as an integer program too."""

MAX_ENUMERATED = 4096
"""Placements up to which all are tried before it is said that none fits into memory."""

ROUNDING = 1e-12
"""Share by which a bound is lowered: sums of many costs round."""


class MincutPlacer(Placer):
    """Minimum cuts at several prices of a boundary; the evaluator, which may measure, has the last word.

    The same problem gives the same placements; there is no randomness.
    """

    def __init__(self, semantics: Semantics) -> None:
        self._semantics = semantics
        self._bound_s: float | None = None

    @property
    def lower_bound_s(self) -> float | None:
        """Seconds that no placement beats in sequential execution; None before a search, and where none is known.

        With two devices it is the cut without launches and then one launch on each, or a single device if that
        takes less. For more devices it is known for small problems. Other executions have no such bound.
        """
        return self._bound_s

    def search(self, problem: Problem, evaluator: Evaluator, checkpoint: Checkpoint | None = None) -> IntArray:  # noqa: ARG002
        """Evaluate single devices, the cut, and cuts at other prices; the best placement [U] of these.

        Raises OptionError without costs, SearchError where nothing that fits into memory was found.
        """
        costs = problem.costs
        if costs is None:
            raise OptionError("method mincut needs the costs of ops; use --reward hybrid, or hsdag solve with a file")
        best = best_of(self._candidates(costs), problem, evaluator, MAX_CANDIDATES)
        if best is None:
            raise SearchError("method mincut found no placement that fits into memory; try --method cpsat")
        return best

    def _candidates(self, problem: ScheduleProblem) -> Iterator[IntArray]:
        """Placements that fit into memory, the plainest first."""
        judge = MemoryJudge(problem, self._semantics)
        costs = BoundaryCosts.of(problem)
        plain = sorted(simple(costs), key=lambda placement: len(np.unique(placement)) > 1)  # single devices first
        yield from itertools.islice((placement for placement in plain if judge.fits(placement)), 1)
        self._bound_s = self._proven_bound_s(problem)
        if judge.has_limits:
            yield from self._within(costs, judge)
            return
        found = list(cheapest(costs))
        yield from found[1:] or found
        yield from _program_answer(costs, found[-1])
        for scale in SCALES[1:]:
            *_, last = cheapest(costs.scaled(scale))
            yield last

    def _within(self, costs: BoundaryCosts, judge: MemoryJudge) -> Iterator[IntArray]:
        """The same where memories are limited."""
        quick = repaired(costs, judge, best_cut(costs))
        found = quick is not None
        if quick is not None:
            yield quick
        for scale in SCALES:
            placement = fitting(costs.scaled(scale), judge)
            if placement is not None:
                found = True
                yield placement
        if not found:
            yield from _last_resorts(costs, judge)

    def _proven_bound_s(self, problem: ScheduleProblem) -> float | None:
        """What sequential execution takes at least, memories being without limits."""
        how = self._semantics
        if how.execution is not Execution.SEQUENTIAL or how.noise_sigma > 0:
            return None
        costs, launch_s = BoundaryCosts.of(problem, launches=False), np.sort(problem.launch_s)
        alone_s = float(np.min(costs.time_s.sum(axis=0) + problem.launch_s)) + costs.constant_s
        if problem.num_devices == 1:
            return alone_s * (1 - ROUNDING)
        if problem.num_devices == 2:
            cut = pair_cut(costs, 0, 1)
            spread_s = cut.bound_s if cut is not None else np.inf
        elif _is_small(costs) and how.links is not Links.EGRESS:
            *_, start = cheapest(costs)
            proven = solved_program(costs, start)
            if proven is None:
                return None
            spread_s = proven.bound_s
        else:
            return None
        return min(alone_s, spread_s + float(launch_s[:2].sum())) * (1 - ROUNDING)


def _is_small(costs: BoundaryCosts) -> bool:
    return costs.num_ops * costs.num_devices <= MAX_PROVEN_CHOICES


def _program_answer(costs: BoundaryCosts, start: IntArray) -> Iterator[IntArray]:
    """What the integer program finds for more than two devices, where the problem is small."""
    if costs.num_devices > 2 and _is_small(costs):
        proven = solved_program(costs, start)
        if proven is not None and costs.cost_s(proven.placement) < costs.cost_s(start):
            yield proven.placement


def _last_resorts(costs: BoundaryCosts, judge: MemoryJudge) -> Iterator[IntArray]:
    """What holds the weights, where results fit beside them, and of few placements the best [U] that fits."""
    problem = judge.problem
    units = problem_of(problem)
    packed = pack_weights(problem, units).placement
    if packed is not None and judge.fits(units.expand(packed)):
        yield units.expand(packed)
    if float(problem.num_devices) ** problem.num_ops <= MAX_ENUMERATED:
        able = [np.flatnonzero(row).tolist() for row in problem.supported]
        every = sorted((np.asarray(choice, dtype=np.int64) for choice in itertools.product(*able)), key=costs.cost_s)
        yield from itertools.islice((placement for placement in every if judge.fits(placement)), 1)


def make(settings: PlacerSettings) -> MincutPlacer:
    """The placer of this method."""
    return MincutPlacer(settings.semantics)
