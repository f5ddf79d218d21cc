"""Place ops by minimum cuts at several prices of boundaries, within memory; see docs/exact.md.

If memory is short, bytes on full devices get a price, found by bisection, and what is still too full is repaired.
Legend: N ops, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from hsdag.base.errors import option
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.base import NoOptions, Placer
from hsdag.methods.cuts.alpha_expansion import best_cut, cheapest, expanded, simple
from hsdag.methods.cuts.cut_graph import BoundaryCosts, Launches, pair_cut
from hsdag.methods.cuts.pipeline import evaluate_each, stage_placements
from hsdag.methods.incumbent import Incumbent, Limits, Status
from hsdag.methods.memory_repair import repaired
from hsdag.methods.registry import make_placer
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.packing import TIME_LIMIT_S, pack_weights
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.memory import MemoryCheck
from hsdag.search.evaluators.recording import RecordingEvaluator
from hsdag.search.evaluators.schedule import evaluator_of

SCALES = (1.0, 2.0, 0.5, 4.0, 1.4, 0.7)
"""Factors on the costs of transfers and launches, since the cost of a boundary is less certain than that of an op."""

MAX_CANDIDATES = 14
"""Evaluate at most this many different placements."""

CUT_SHARE = 0.8
"""Share of the time limit that cuts may take, so that their placements are still evaluated."""

MAX_ENUMERATED = 4096
"""Try all placements, before reporting that none fits into memory, if there are at most this many."""

ROUNDING = 1e-12
"""Share by which a bound is lowered to allow for rounding in sums of many costs."""

MAX_SHARE = 0.2
"""Share of the time limit that single changes may take."""


class MincutPlacer(Placer[NoOptions]):
    """Minimum cuts at several prices of boundaries; the evaluator, which may measure, chooses among them.

    For throughput balanced stages are candidates, too. The method is deterministic.
    """

    name = "mincut"
    objectives = ("latency", "throughput")
    num_tried = float(MAX_CANDIDATES)

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:  # noqa: ARG002
        if _is_improved(problem):
            make_placer("ea").prepare(problem, takes_order=False)

    def _search(self, incumbent: Incumbent) -> Status:
        nothing = f"method mincut found no placement that fits into memory; try {option('method')} cpsat"
        tried = evaluate_each(self._candidates(incumbent), incumbent, MAX_CANDIDATES, nothing)
        problem = incumbent.problem
        if _is_improved(problem):  # by single changes of these placements and of single devices
            alone = [np.full(problem.num_units, d, dtype=np.int64) for d in range(problem.num_devices)]
            starts = tuple(Plan(placement) for placement in [*tried, *alone] if problem.is_legal(placement))
            recorder = RecordingEvaluator(evaluator_of(problem), should_stop=partial(incumbent.is_over, MAX_SHARE))
            improved = make_placer("ea").search(problem, recorder, Limits(num_workers=1, known=starts)).plan
            if improved is not None:
                incumbent.evaluate([improved])
        return Status.FEASIBLE

    def _candidates(self, incumbent: Incumbent) -> Iterator[IntArray]:
        """Yield placements that fit into memory, simple ones first."""
        problem, costs = incumbent.problem, incumbent.costs
        check = MemoryCheck(costs, problem.semantics)
        plain = simple(BoundaryCosts.of(costs))
        plain.sort(key=lambda placement: len(np.unique(placement)) > 1)  # single devices first
        yield from itertools.islice((placement for placement in plain if check.fits(placement)), 1)
        if (bound := proven_bound(problem)) is not None:
            incumbent.report(bound=bound)
        cuts = _within(check, incumbent) if check.has_limits else _cuts(costs, partial(incumbent.is_over, CUT_SHARE))
        if problem.objective.is_steady:
            yield from itertools.islice(cuts, 1)
            yield from stage_placements(problem)
        yield from cuts


def proven_bound(units: Problem) -> Bound | None:
    """Return a lower bound in seconds for placements on up to two devices in sequential execution.

    The bound is the minimum cut, which is the optimum up to rounding if memories are unlimited. Where a unit has
    several ops, or launches are those of HETERO's submodels, it is the cut without launches plus one launch on each of
    two devices, or a single device if that takes less. There is no such bound, and the result is None, for more
    devices, for the period of a model, and for other executions.
    """
    problem = units.known_costs
    is_sequential, is_model = units.semantics.execution is Execution.SEQUENTIAL, isinstance(units.ops, HeteroCosts)
    if problem.num_devices > 2 or not is_sequential or (is_model and units.objective.is_steady):
        return None
    counts_runs = not is_model and units.num_units == len(units.units.partition.labels)
    costs = BoundaryCosts.of(problem, Launches.RUNS if counts_runs else Launches.NOTHING)
    cut = pair_cut(costs, 0, problem.num_devices - 1)
    bound_s = cut.bound_s if cut is not None else np.inf
    if not counts_runs:
        alone_s = float(np.min(costs.time_s.sum(axis=0) + problem.launch_s)) + costs.constant_s
        bound_s = min(alone_s, bound_s + float(np.sort(problem.launch_s)[:2].sum()))
    return Bound(bound_s * (1 - ROUNDING), "the minimum cut")


def _cuts(problem: ScheduleProblem, is_over: Callable[[], bool]) -> Iterator[IntArray]:
    """Yield the cuts at all prices, with launches charged to runs, as in the simulator, and to transfers."""
    charged = _by_launches(problem)
    for costs in charged:
        placements = list(cheapest(costs, is_over))
        yield from reversed(placements[1:] or placements)
    for scale in SCALES[1:]:
        for costs in charged:
            if is_over():
                return
            yield best_cut(costs.scaled(scale), is_over)


def _within(check: MemoryCheck, incumbent: Incumbent) -> Iterator[IntArray]:
    """Yield cuts at all prices within limited memory, as time allows."""
    first, *others = _by_launches(check.problem)
    none_fits = True
    for costs in [first, *others, *(first.scaled(scale) for scale in SCALES[1:])]:
        if incumbent.is_over():
            break
        placements = fitting(costs, check, incumbent.is_over)
        if (quick := next(placements, None)) is not None:
            if none_fits:
                yield quick
            none_fits = False
            yield min([quick, *placements], key=costs.cost_s)
    if none_fits:
        yield from _last_resorts(first, check, incumbent.left_s)


def _by_launches(problem: ScheduleProblem) -> list[BoundaryCosts]:
    """Return the costs with launches charged to runs and, if there are any, also to transfers.

    The simulator counts runs. HETERO makes fewer submodels where runs of one device are independent and can be joined,
    and more where a run falls apart.
    """
    kinds = (Launches.RUNS, Launches.TRANSFERS) if problem.launch_s.any() else (Launches.RUNS,)
    return [BoundaryCosts.of(problem, kind) for kind in kinds]


def _last_resorts(costs: BoundaryCosts, check: MemoryCheck, left_s: float) -> Iterator[IntArray]:
    """Yield a placement that holds all weights, if its results fit, and for small problems the best that fits."""
    problem = check.problem
    units = problem_of(problem)
    packed = pack_weights(problem, units, left_s if np.isfinite(left_s) else TIME_LIMIT_S).placement
    if packed is not None and check.fits(units.expand(packed)):
        yield units.expand(packed)
    if problem.num_ops * np.log2(problem.num_devices) <= np.log2(MAX_ENUMERATED):
        able = [np.flatnonzero(row).tolist() for row in problem.supported]
        every = sorted((np.asarray(choice, dtype=np.int64) for choice in itertools.product(*able)), key=costs.cost_s)
        yield from itertools.islice((placement for placement in every if check.fits(placement)), 1)


def _is_improved(problem: Problem) -> bool:
    """Return whether cuts count costs differently from the simulator: under HETERO, and with limited memory."""
    has_limits = problem.costs is not None and bool(np.isfinite(problem.costs.memory_bytes).any())
    return isinstance(problem.ops, HeteroCosts) or has_limits


NUM_RAISES, NUM_HALVINGS = 16, 10
"""Most steps that multiply the price of a byte by four until it is high enough, and of the bisection that follows."""


def fitting(costs: BoundaryCosts, check: MemoryCheck, is_over: Callable[[], bool]) -> Iterator[IntArray]:
    """Yield placements [N] that fit into memory, the cheapest cut first.

    If that does not fit, the fullest device charges for bytes, as little as makes it fit (the Lagrangian of its limit),
    then the next device. What is still too full is repaired. ``is_over`` is called between any two steps.
    """
    if check.fits(placement := best_cut(costs, is_over)):
        yield placement
        return
    for cut in itertools.chain([placement], _priced(costs, check, placement, is_over)):
        if is_over():
            return
        if check.fits(mended := repaired(check.problem, cut, check.semantics)):
            yield mended


def _priced(
    costs: BoundaryCosts, check: MemoryCheck, placement: IntArray, is_over: Callable[[], bool]
) -> Iterator[IntArray]:
    """Yield placements just before and just after the price of bytes relieves a device, one device after another."""
    prices = np.zeros(costs.num_devices)
    for _ in range(costs.num_devices):
        device = int(np.argmin(check.problem.memory_bytes - check.peak_bytes(placement)))
        if is_over() or not check.overfull(placement)[device]:
            return
        just_not, placement = _relieved(costs, check, placement, prices, device, is_over)
        yield just_not
        yield placement


def _relieved(
    costs: BoundaryCosts,
    check: MemoryCheck,
    placement: IntArray,
    prices: FloatArray,
    device: int,
    is_over: Callable[[], bool],
) -> tuple[IntArray, IntArray]:
    """Return the placements [N] just before and just after a device is relieved; set its price in ``prices`` [D].

    If time runs out, return the nearest placements found so far.
    """

    def at(price: float) -> tuple[IntArray, bool]:
        """Return the placement at a price, and whether the device is still too full."""
        prices[device] = price
        dear = costs._replace(time_s=costs.time_s + check.resident_bytes[:, None] * prices)
        cut = best_cut(dear) if costs.num_devices == 2 else expanded(dear, placement, is_over)
        return cut, bool(check.overfull(cut)[device])

    finite_s = costs.time_s[np.isfinite(costs.time_s)]
    mean_price = max(float(finite_s.mean()), 1e-12) * costs.num_ops / max(float(check.resident_bytes.sum()), 1.0)
    low, below, high = 0.0, placement, 0.01 * mean_price
    above, is_full = at(high)
    for _ in range(NUM_RAISES):
        if is_over() or not is_full:
            break
        low, below, high = high, above, 4 * high
        above, is_full = at(high)
    for _ in range(NUM_HALVINGS):
        if is_over():
            break
        middle = (low + high) / 2
        cut, is_full = at(middle)
        if is_full:
            low, below = middle, cut
        else:
            high, above = middle, cut
    prices[device] = high
    return below, above
