from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from ortools.sat.python import cp_model

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.ir.graph.partition import Partition
from hsdag.methods.base import NoOptions, Placer
from hsdag.methods.cuts.alpha_expansion import best_cut, cheapest, simple
from hsdag.methods.cuts.cut_graph import BoundaryCosts, Launches, pair_cut
from hsdag.methods.cuts.memory_prices import fitting
from hsdag.methods.cuts.pipeline import evaluate_each, stages
from hsdag.methods.exact.assignment import AssignmentModel, WholeModel
from hsdag.methods.exact.formulation import Formulation
from hsdag.methods.exact.solving import Ticks
from hsdag.methods.incumbent import Incumbent, Status
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.packing import TIME_LIMIT_S, pack_weights
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Order
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.values import simulated_values
from hsdag.scoring.memory import MemoryCheck

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

WORK_LIMIT = 2.0
"""Deterministic seconds of the solver: its answer does not depend on how busy the machine is."""


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


def solved_program(units: Problem, costs: ScheduleProblem, hint: IntArray) -> tuple[IntArray, float] | None:
    """A placement [U] of units with these costs, and seconds that none beats in sequential execution without limits.

    Starts from ``hint`` [U]; None where nothing was found within ``WORK_LIMIT``. Costs are rounded down to ticks, and
    so is the bound; where the solver ended, it is what the placement takes, but for rounding.
    """
    formulation = Formulation(replace(costs, memory_bytes=np.full(costs.num_devices, np.inf)))
    horizon_s = BoundaryCosts.of(costs).cost_s(hint)
    ticks = Ticks.choose(formulation.durations_s, max(horizon_s, 1e-12))
    sequential = replace(units, semantics=replace(units.semantics, execution=Execution.SEQUENTIAL))
    assignment = AssignmentModel(formulation, sequential, ticks.down)
    model = WholeModel(assignment, int(ticks.down(horizon_s)) + 1)
    model.hint(hint)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = WORK_LIMIT
    if solver.solve(model.model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return model.read(solver.value), solver.best_objective_bound * ticks.length_s


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
                found = problem.hetero.values(problem.objective, problem.expand(some))
            else:
                found = simulated_values(problem.objective, self._incumbent.costs, some, self._semantics)
            values[i : i + BATCH] = np.where(legal, found, np.inf)
        self._left = max(self._left - len(placements), 0)
        return values
