"""Search one block of a graph with repeated structure, and use its plan for all blocks.

Legend: U placement units, P positions, M units of a block.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hsdag.ir.graph.coarsen import CoarseGraph
from hsdag.methods.anneal.windows import has_schedule
from hsdag.methods.base import NoOptions, Placer
from hsdag.methods.exact.base import TOLERANCE
from hsdag.methods.exact.formulation import induced
from hsdag.methods.exact.stages import Stages, cuts_of
from hsdag.methods.incumbent import GaveUp, Incumbent, Limits, Status
from hsdag.methods.registry import make_placer
from hsdag.methods.repeated.apart import PARTS, considered, searched_apart
from hsdag.methods.repeated.blocks import Blocks, between_cuts, find_blocks, in_periods, outside_inputs, part_of
from hsdag.methods.repeated.tied import Expanded
from hsdag.methods.repeated.tiling import Layer, PlanLibrary
from hsdag.runtime.objectives import LATENCY
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import Simulation
from hsdag.search.evaluators.schedule import ScheduleEvaluator

BLOCKS, APART = 0.5, 0.95
"""Share of the time for searching blocks by themselves: if blocks may overlap in time, and if they do not."""


class RepeatedPlacer(Placer[NoOptions]):
    """Search of repeated structure: the plan of one block is used for all blocks of its kind.

    If plans are schedules, a block of each kind is searched by itself, with the results that it reads as inputs that
    cost nothing. Its schedule is repeated for all blocks, one after another, and then windows of the whole schedule are
    searched, across the boundaries of blocks. Otherwise, corresponding units of all blocks share a device, and ``auto``
    searches over positions in a block, with every plan evaluated as a whole. Gives up if nothing repeats.
    """

    name = "repeated"
    gives_order = True
    is_seeded = True

    def _search(self, incumbent: Incumbent) -> Status:
        if (blocks := find_blocks(incumbent.costs)) is None:
            raise GaveUp("nothing in the graph repeats")
        if incumbent.limits.known:
            incumbent.evaluate(incumbent.limits.known)
        problem, costs = incumbent.problem, incumbent.costs
        is_small = False
        if problem.objective == LATENCY and len(cuts_of(costs)[1]):
            stages = Stages(costs, problem.semantics.execution, incumbent.check)
            is_small = stages.are_small
            if _is_optimal_in_a_row(incumbent, stages):
                return Status.OPTIMAL
        if not has_schedule(problem):
            _search_positions(incumbent, blocks)
            return Status.FEASIBLE
        if not is_small:
            parts, share = between_cuts(costs, blocks), APART
            if parts is blocks:
                parts, share = in_periods(costs, blocks), BLOCKS
            libraries = _searched_blocks(incumbent, parts, share)
            considered(incumbent, *Layer(costs, parts).lay(_best_together(incumbent, parts, libraries)))
        if incumbent.best is not None:
            limits = replace(incumbent.limits, seconds=incumbent.left_s, known=(incumbent.best,), pool=None)
            make_placer("windows").search(problem, incumbent, limits)
        return Status.FEASIBLE

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        if problem.costs is None or find_blocks(problem.costs) is None:
            return  # where nothing repeats, no kernel is used
        for method in ("sa", "rules", "beam") if has_schedule(problem) else ("sa", "mincut"):
            make_placer(method, is_cheap=True).prepare(problem, takes_order=takes_order)


OF_STAGES, FIRST, GROWTH = 0.8, 0.05, 3.0
"""Share of the time for searching stages; share of what is left of it for one stage at first; factor of its growth.

A stage that is searched again gets a share, and a limit of seconds, that are larger by this factor.
"""


def _is_optimal_in_a_row(incumbent: Incumbent, stages: Stages) -> bool:
    """Search small stages exactly, put their schedules one after another, and return whether the result is optimal.

    Stages are searched for the devices that they begin and end on in the best combination by their bounds. Nothing is
    proven for units of several ops.
    """
    are_ops = incumbent.problem.units.fine.num_ops == incumbent.costs.num_ops

    def search(part: ScheduleProblem, tries: int, least_s: float) -> tuple[Simulation | None, float]:
        one = problem_of(part, incumbent.problem.objective, incumbent.problem.semantics)
        share = FIRST * GROWTH ** (tries - 1)
        seconds = share * max(OF_STAGES * incumbent.limits.seconds - incumbent.elapsed_s, 0.0)
        budget = min(seconds, GROWTH**tries), share * incumbent.evaluations_left
        runs, bound_s = searched_apart(incumbent, one, "cpsat", *budget, least_s=least_s)
        return next(runs, None), max(bound_s, least_s)

    is_left = True
    while is_left:
        if are_ops:
            incumbent.report(bound=stages.bound)
        is_left = stages.are_small and not incumbent.is_over(OF_STAGES) and stages.improve(search)
        if is_left and (plan := stages.lay()) is not None:
            considered(incumbent, *plan)
    bound = incumbent.lower_bound
    return bound is not None and incumbent.best_score <= bound.value * (1 + TOLERANCE)


WEIGHT, OFTEN, LEAST_S = 1.5, 0.5, 0.1
"""Exponents of a block's size and of the number of its repetitions in its share of the time; and its least seconds."""
MOST_TRIED, TRYING = 12, 0.15
"""Number of first blocks on which plans of a block are tried one after another, and share of the left time for that.

Devices never wait while an op is ready, so the plan that is best for a block alone may be poor for several in a row.
"""


def _searched_blocks(incumbent: Incumbent, blocks: Blocks, share: float) -> list[list[PlanLibrary]]:
    """Return plans for each kind of block, the best one first; ``share`` of the left time and evaluations is used."""
    problem, costs = incumbent.problem, incumbent.costs
    chosen = [blocks.fullest(kind) for kind in range(int(blocks.kind.max()) + 1)]
    weight = np.array([len(units) for units in chosen]) ** WEIGHT * np.bincount(blocks.kind + 1)[1:] ** OFTEN
    parts = (share * weight / weight.sum()).tolist()
    seconds, evaluations, begin_s = incumbent.left_s, incumbent.evaluations_left, incumbent.elapsed_s
    libraries: list[list[PlanLibrary]] = []
    for units, part, until in zip(chosen, parts, np.cumsum(parts).tolist(), strict=True):
        left_s = max(until * seconds - (incumbent.elapsed_s - begin_s), LEAST_S)
        inputs = outside_inputs(costs, units)
        block = problem_of(part_of(costs, inputs, units), problem.objective, problem.semantics)
        libraries.append([])
        for run in searched_apart(incumbent, block, "auto", left_s, part * evaluations)[0]:
            library = PlanLibrary.empty(blocks, problem.num_devices)
            library.learn(blocks, units, run.device[len(inputs) :], run.priority[len(inputs) :])
            libraries[-1].append(library)
    return libraries


def _best_together(incumbent: Incumbent, blocks: Blocks, by_kind: Sequence[Sequence[PlanLibrary]]) -> PlanLibrary:
    """Return one plan of each kind, chosen in turn so that together they are best on the first blocks of the graph."""
    until_s = incumbent.elapsed_s + TRYING * incumbent.left_s
    library = PlanLibrary.empty(blocks, incumbent.problem.num_devices)
    ops = np.flatnonzero(blocks.block < MOST_TRIED)
    costs = induced(incumbent.costs, ops)
    blocks = Blocks(blocks.block[ops], blocks.position[ops], blocks.kind[:MOST_TRIED])
    layer = Layer(costs, blocks)
    evaluator = ScheduleEvaluator(costs, incumbent.problem.semantics, incumbent.problem.objective)

    def value(library: PlanLibrary) -> float:
        incumbent.check()
        return evaluator.evaluate([Plan(*layer.lay(library))])[0].value

    for plans in by_kind:
        library = library.joined(plans[0]) if plans else library
    best = value(library)
    for others in itertools.zip_longest(*(plans[1:] for plans in by_kind)):
        for plan in filter(None, others):
            if incumbent.elapsed_s < until_s and (other := value(library.joined(plan))) < best:
                library = library.joined(plan)
                best = other
    return library


def _search_positions(incumbent: Incumbent, blocks: Blocks) -> None:
    """Search over positions in a block; all units of a position share a device."""
    costs = incumbent.costs
    tied = tuple(f"position {p}" if p >= 0 else "" for p in blocks.position.tolist())
    costs = replace(costs, labels=replace(costs.labels, colocate=tied))
    problem = problem_of(costs, incumbent.problem.objective, incumbent.problem.semantics)
    of_unit = problem.units.partition.labels
    if incumbent.problem.ops is not None:
        partition = problem.units.partition.refine(incumbent.problem.units.partition)
        units = CoarseGraph(incumbent.problem.units.fine, partition, problem.units.graph)
        problem = replace(problem, units=units, ops=incumbent.problem.ops)
    limits = Limits(incumbent.left_s, incumbent.limits.num_workers, incumbent.limits.seed)
    make_placer("auto", changes=PARTS, is_cheap=True).search(problem, Expanded(incumbent, of_unit), limits)
