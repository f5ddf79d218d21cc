"""MincutPlacer: sequential execution as a graph cut, exact for two devices; see docs/exact.md.

Legend: U placement units, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from hsdag.evaluators.memory import MemoryCheck
from hsdag.ir.graph import IntArray
from hsdag.placers.base import NoOptions, Placer
from hsdag.placers.cuts.alpha_expansion import best_cut, cheapest, simple
from hsdag.placers.cuts.boundary_costs import BoundaryCosts, Launches
from hsdag.placers.cuts.candidate_round import Refinement, evaluate_each
from hsdag.placers.cuts.cut_graph import pair_cut
from hsdag.placers.cuts.cut_program import solved_program
from hsdag.placers.cuts.memory_prices import fitting
from hsdag.placers.cuts.pipeline import stages
from hsdag.placers.incumbent import Incumbent, Status
from hsdag.runtime.problems.bounds import Bound
from hsdag.runtime.problems.packing import TIME_LIMIT_S, pack_weights
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.simulator import Execution

SCALES = (1.0, 2.0, 0.5, 4.0, 1.4, 0.7)
"""Factors on what transfers and launches cost: the real cost of a boundary is less certain than that of an op."""

MAX_CANDIDATES = 14
"""Different placements that are evaluated at most."""

CUT_SHARE = 0.8
"""Share of the time of a search that cuts may take, so that what they found is still evaluated."""

MAX_PROVEN_CHOICES = 200
"""Units times devices up to which more than two devices are solved as an integer program too."""

MAX_ENUMERATED = 4096
"""Placements up to which all are tried before it is said that none fits into memory."""

ROUNDING = 1e-12
"""Share by which a bound is lowered: sums of many costs round."""


class MincutPlacer(Placer[NoOptions]):
    """Minimum cuts at several prices of a boundary; the evaluator, which may measure, has the last word.

    For throughput balanced stages are candidates too. The same problem gives the same placements; there is no
    randomness.
    """

    name = "mincut"
    objectives = ("latency", "throughput")

    def _search(self, incumbent: Incumbent) -> Status:
        nothing = "method mincut found no placement that fits into memory; try --method cpsat"
        tried = evaluate_each(self._candidates(incumbent), incumbent, MAX_CANDIDATES, nothing)
        if incumbent.problem.hetero is not None or np.isfinite(incumbent.costs.memory_bytes).any():
            evaluate_each(Refinement(incumbent).refined(tried), incumbent, MAX_CANDIDATES, nothing)
        return Status.FEASIBLE

    def _candidates(self, incumbent: Incumbent) -> Iterator[IntArray]:
        """Placements that fit into memory, the plainest first."""
        problem, costs = incumbent.problem, incumbent.costs

        def left_s() -> float:
            incumbent.check()
            return incumbent.left_s

        def is_over() -> bool:
            incumbent.check()
            return incumbent.elapsed_s > CUT_SHARE * incumbent.limits.seconds

        judge = MemoryCheck(costs, problem.semantics)
        plain = simple(BoundaryCosts.of(costs))
        plain.sort(key=lambda placement: len(np.unique(placement)) > 1)  # single devices first
        yield from itertools.islice((placement for placement in plain if judge.fits(placement)), 1)
        bound_s, proven = proven_bound(problem, costs)
        if bound_s is not None:
            incumbent.prove(Bound(bound_s, "the minimum cut"))
        cuts = _within(judge, left_s) if judge.has_limits else itertools.chain(proven, _cuts(costs, is_over))
        if problem.objective.is_steady:
            yield from itertools.islice(cuts, 1)
            yield from stages(problem)
        yield from cuts


def proven_bound(units: Problem, problem: ScheduleProblem) -> tuple[float | None, list[IntArray]]:
    """Seconds that no placement beats in sequential execution, and the placements [U] of the program that proved it.

    With two devices the bound is the cut, the optimum but for rounding, as long as memories have no limits. For more
    devices it is known for small problems. Where units are several ops, or HETERO's submodels are what is launched, it
    is the cut without launches and then one launch on each of two devices, or a single device if that takes less. The
    period of a model, and other executions, have no such bound.
    """
    how, bound_s, found = units.semantics, None, []
    counts_runs = units.hetero is None and units.num_units == units.units.partition.num_items
    costs = BoundaryCosts.of(problem, Launches.RUNS if counts_runs else Launches.NOTHING)
    if problem.num_devices <= 2:
        cut = pair_cut(costs, 0, problem.num_devices - 1)
        bound_s = cut.bound_s if cut is not None else np.inf
    elif problem.num_ops * problem.num_devices <= MAX_PROVEN_CHOICES:
        nothing = np.zeros(problem.num_devices)
        charged = problem if counts_runs else replace(problem, launch_s=nothing)
        program = solved_program(units, charged, best_cut(costs))
        if program is not None:
            found, bound_s = [program[0]], program[1]
    is_sequential = how.execution is Execution.SEQUENTIAL and how.noise_sigma == 0
    if bound_s is None or not is_sequential or (units.hetero is not None and units.objective.is_steady):
        return None, found
    if not counts_runs:
        alone_s = float(np.min(costs.time_s.sum(axis=0) + problem.launch_s)) + costs.constant_s
        bound_s = min(alone_s, bound_s + float(np.sort(problem.launch_s)[:2].sum()))
    return bound_s * (1 - ROUNDING), found


def _cuts(problem: ScheduleProblem, is_over: Callable[[], bool]) -> Iterator[IntArray]:
    """The cuts at all prices, with launches charged to runs, as the simulator does, and to transfers."""
    each = _by_launches(problem)
    for costs in each:
        found = list(cheapest(costs, is_over))
        yield from reversed(found[1:] or found)
    for scale in SCALES[1:]:
        for costs in each:
            if is_over():
                return
            yield best_cut(costs.scaled(scale), is_over)


def _within(judge: MemoryCheck, left_s: Callable[[], float]) -> Iterator[IntArray]:
    """The same where memories are limited, as far as ``left_s``, asked again and again, says that there is time."""

    def is_over() -> bool:
        return left_s() <= 0

    first, *others = _by_launches(judge.problem)
    found = False
    for costs in [first, *others, *(first.scaled(scale) for scale in SCALES[1:])]:
        if is_over():
            break
        each = fitting(costs, judge, is_over)
        quick = next(each, None)
        if quick is not None:
            if not found:
                yield quick
            found = True
            yield min([quick, *each], key=costs.cost_s)
    if not found:
        yield from _last_resorts(first, judge, left_s())


def _by_launches(problem: ScheduleProblem) -> list[BoundaryCosts]:
    """The costs with launches charged to runs, and where there are any, also to transfers.

    The simulator counts runs; the submodels that HETERO makes are fewer where runs of one device do not touch,
    more where a run falls apart.
    """
    kinds = (Launches.RUNS, Launches.TRANSFERS) if problem.launch_s.any() else (Launches.RUNS,)
    return [BoundaryCosts.of(problem, kind) for kind in kinds]


def _last_resorts(costs: BoundaryCosts, judge: MemoryCheck, left_s: float) -> Iterator[IntArray]:
    """What holds the weights, where results fit beside them, and of few placements the best [U] that fits."""
    problem = judge.problem
    units = problem_of(problem)
    packed = pack_weights(problem, units, left_s if np.isfinite(left_s) else TIME_LIMIT_S).placement
    if packed is not None and judge.fits(units.expand(packed)):
        yield units.expand(packed)
    if problem.num_ops * np.log2(problem.num_devices) <= np.log2(MAX_ENUMERATED):
        able = [np.flatnonzero(row).tolist() for row in problem.supported]
        every = sorted((np.asarray(choice, dtype=np.int64) for choice in itertools.product(*able)), key=costs.cost_s)
        yield from itertools.islice((placement for placement in every if judge.fits(placement)), 1)
