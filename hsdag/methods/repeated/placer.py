"""RepeatedPlacer: one block of a graph that repeats itself is searched, and its plan is laid over all blocks.

Legend: U placement units, P positions, M units of a block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.coarsen import CoarseGraph
from hsdag.methods.base import Placer
from hsdag.methods.exact.formulation import twins_of
from hsdag.methods.incumbent import GaveUp, Incumbent, Limits, Status
from hsdag.methods.local.windows import has_schedule
from hsdag.methods.memory_repair import repaired
from hsdag.methods.registry import make_placer
from hsdag.methods.repeated.blocks import Blocks, between_barriers, find_blocks, first_blocks, inputs_of, part_of
from hsdag.methods.repeated.bound import chained_bound
from hsdag.methods.repeated.tiling import Layer, Library
from hsdag.methods.tied import Expanded, tied
from hsdag.runtime.problem.plan import Plan, unit_priority
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import Simulation
from hsdag.scoring.recording import Budget, RecordingEvaluator
from hsdag.scoring.schedule import ScheduleEvaluator

WITHOUT = {"without": "repeated,cpsat"}
"""What searches a block or its positions: ``auto`` without what would look for blocks again."""
ALONE, MOST_IN_ROW, ROW = 0.3, 4, 0.7
"""Where devices are unlike: how much less time a block has alone; blocks that are searched in a row then, and for what
share of the time that is left."""
APART = 1.9
"""Where nothing overlaps with what is searched alone: how much more time that has."""


@dataclass(frozen=True)
class RepeatedOptions:
    """Raises OptionError for a value out of range."""

    blocks: float = 0.5
    """Share of the time that blocks are searched for by themselves; the whole schedule has the rest."""

    def __post_init__(self) -> None:
        if not 0 < self.blocks <= 1:
            raise OptionError("repeated takes a share of blocks above 0 and up to 1")


class RepeatedPlacer(Placer[RepeatedOptions]):
    """Repeated structure: what is found for one block counts for all of its kind.

    Where an order matters, a block of each kind is searched by itself, with what it reads as inputs that cost nothing.
    Its schedule is laid over all blocks, one behind the other, and windows of the whole schedule are searched across
    the seams. Elsewhere counterparts in all blocks share a device, and ``auto`` searches over positions; every plan is
    evaluated as a whole. Gives up where nothing repeats.
    """

    name = "repeated"
    options_type = RepeatedOptions
    gives_order = True
    is_seeded = True

    def _search(self, incumbent: Incumbent) -> Status:
        if (blocks := find_blocks(incumbent.costs)) is None:
            raise GaveUp("nothing in the graph repeats")
        if incumbent.limits.known:
            incumbent.evaluate(incumbent.limits.known)
        if has_schedule(incumbent.problem):
            self._lay(incumbent, blocks)
        else:
            _search_positions(incumbent, blocks)
        return Status.FEASIBLE

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        if problem.costs is None or find_blocks(problem.costs) is None:
            return  # where nothing repeats, nothing is called
        for each in ("sa", "rules", "multilevel") if has_schedule(problem) else ("sa", "mincut"):
            make_placer(each, is_cheap=True).prepare(problem, takes_order=takes_order)

    def _lay(self, incumbent: Incumbent, blocks: Blocks) -> None:
        """Search blocks, lay them side by side, and search across the seams."""
        costs, limits = incumbent.costs, incumbent.limits
        if incumbent.problem.units.fine.num_ops == costs.num_ops:  # of units of several ops nothing is proven
            incumbent.report(bound=chained_bound(costs, blocks, incumbent.check))
        are_alike = any(len(kind) == costs.num_devices for kind in twins_of(costs))
        parts = between_barriers(costs, blocks) if are_alike else blocks
        share = self.options.blocks * (ALONE if not are_alike else 1.0 if parts is blocks else APART)
        library = _best_together(incumbent, parts, _searched_blocks(incumbent, parts, min(share, 1.0)))
        if not are_alike:
            library = searched_row(incumbent, blocks, library)
        placement, order = Layer(costs, parts).lay(library)
        if not np.isfinite(incumbent.consider(placement, order)):
            incumbent.consider(repaired(costs, placement, incumbent.problem.semantics), order)
        if incumbent.best is not None:
            limits = replace(limits, seconds=incumbent.left_s, known=(incumbent.best,), pool=None)
            make_placer("windows").search(incumbent.problem, incumbent, limits)


WEIGHT, OFTEN, LEAST_S = 1.5, 0.5, 0.1
"""The powers of a block's size and of how often it comes that its share of the time goes by; what it gets at least."""
CANDIDATES, MOST_TRIED, TRYING = 200, 12, 0.15
"""Plans of a block that are tried in a row, on how many blocks, and for what share of the time that is left: a device
that never waits takes what is ready, so that what is best alone may be far from that in a row."""


def _searched_blocks(incumbent: Incumbent, blocks: Blocks, share: float) -> list[list[Library]]:
    """Plans of a block of each kind, the best one first; kinds are searched in turn."""
    problem, costs = incumbent.problem, incumbent.costs
    chosen = [blocks.fullest(kind) for kind in range(int(blocks.kind.max()) + 1)]
    weight = np.array([len(units) for units in chosen]) ** WEIGHT * np.bincount(blocks.kind + 1)[1:] ** OFTEN
    parts = (share * weight / weight.sum()).tolist()
    seconds, evaluations, begin_s = incumbent.left_s, incumbent.evaluations_left, incumbent.elapsed_s
    found: list[list[Library]] = []
    for units, part, until in zip(chosen, parts, np.cumsum(parts).tolist(), strict=True):
        left_s = max(until * seconds - (incumbent.elapsed_s - begin_s), LEAST_S)
        inputs = inputs_of(costs, units)
        block = problem_of(part_of(costs, inputs, units), problem.objective, problem.semantics)
        found.append([])
        for run in _searched_apart(incumbent, block, "auto", left_s, part * evaluations):
            library = Library.empty(blocks, problem.num_devices)
            library.learn(blocks, units, run.device[len(inputs) :], run.priority[len(inputs) :])
            found[-1].append(library)
    return found


def _searched_apart(
    incumbent: Incumbent, part: Problem, method: str, seconds: float, evaluations: float, known: tuple[Plan, ...] = ()
) -> Iterator[Simulation]:
    """Runs of the best plans that a method finds for a part of the graph, the best one first.

    Each plan that is simulated counts as much as the part's share of all units.
    """
    share = part.num_units / incumbent.problem.num_units
    evaluator = ScheduleEvaluator.of(part)
    is_over = partial(incumbent.is_over, np.inf)  # never, but it raises what the incumbent does
    recorder = RecordingEvaluator(evaluator, Budget(evaluations=evaluations / share), should_stop=is_over)
    limits = replace(incumbent.limits, seconds=seconds, known=known, is_again=False, pool=None)
    try:
        make_placer(method, changes=WITHOUT if method == "auto" else {}, is_cheap=True).search(part, recorder, limits)
    finally:
        incumbent.report(count=int(recorder.num_evaluations * share))
    for event in recorder.best(CANDIDATES):
        yield evaluator.run(event.plan)


def _best_together(incumbent: Incumbent, blocks: Blocks, found: Sequence[Sequence[Library]]) -> Library:
    """Of the plans of each kind those that are best in a row on the first blocks of the graph, chosen in turn."""
    until_s = incumbent.elapsed_s + TRYING * incumbent.left_s
    library = Library.empty(blocks, incumbent.problem.num_devices)
    costs, blocks = first_blocks(incumbent.costs, blocks, MOST_TRIED)
    layer = Layer(costs, blocks)
    evaluator = ScheduleEvaluator(costs, incumbent.problem.semantics, incumbent.problem.objective)

    def value(each: Library) -> float:
        incumbent.check()
        return evaluator.evaluate([Plan(*layer.lay(each))])[0].value

    for plans in found:
        library = library.joined(plans[0]) if plans else library
    best = value(library)
    for others in itertools.zip_longest(*(plans[1:] for plans in found)):
        for plan in filter(None, others):
            if incumbent.elapsed_s < until_s and (other := value(library.joined(plan))) < best:
                library = library.joined(plan)
                best = other
    return library


def searched_row(incumbent: Incumbent, blocks: Blocks, library: Library) -> Library:
    """What annealing of a few blocks in a row makes of a library, where counterparts share a device.

    On unlike devices a block that is searched alone may well begin elsewhere than the one before it ends.
    """
    costs, blocks = first_blocks(incumbent.costs, blocks, MOST_IN_ROW)
    problem = tied(costs, blocks.position, incumbent.problem)
    device, order = Layer(costs, blocks).lay(library)
    placement = np.empty(problem.num_units, dtype=np.int64)
    placement[problem.units.partition.labels] = device
    known = Plan(problem.nearest(placement).placement, unit_priority(problem.units.partition.labels, order))
    seconds, evaluations = ROW * incumbent.left_s, ROW * incumbent.evaluations_left
    for run in itertools.islice(_searched_apart(incumbent, problem, "sa", seconds, evaluations, (known,)), 1):
        library.learn(blocks, np.arange(costs.num_ops), run.device, run.priority)
    return library


def _search_positions(incumbent: Incumbent, blocks: Blocks) -> None:
    """Search over positions, whose units share a device."""
    problem = tied(incumbent.costs, blocks.position, incumbent.problem)
    of_unit = problem.units.partition.labels
    if incumbent.problem.ops is not None:
        partition = problem.units.partition.refine(incumbent.problem.units.partition)
        units = CoarseGraph(incumbent.problem.units.fine, partition, problem.units.graph)
        problem = replace(problem, units=units, ops=incumbent.problem.ops)
    limits = Limits(incumbent.left_s, incumbent.limits.num_workers, incumbent.limits.seed)
    make_placer("auto", changes=WITHOUT, is_cheap=True).search(problem, Expanded(incumbent, of_unit), limits)
