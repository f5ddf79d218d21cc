"""Solving problem files: a placer searches over simulated placements, and the answer is put beside a bound.

Legend: N ops, U placement units, D devices.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from hsdag.evaluators.base import Evaluation, SearchStopped
from hsdag.evaluators.recording import Budget, Event, RecordingEvaluator
from hsdag.evaluators.schedule import ScheduleEvaluator, one_inference, over_memory
from hsdag.ir.errors import OptionError, SearchError
from hsdag.ir.graph import IntArray
from hsdag.placers.base import Placer
from hsdag.runtime.problems.packing import TIME_LIMIT_S, Packing, pack_weights, running_bytes
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import op_ranks, problem_of
from hsdag.runtime.simulator import Execution, Order, simulate
from hsdag.search.searching import NoJournal, Watcher
from hsdag.search.solution import PROVEN_GAP, Solution, SolveOptions, Status, relative_gap
from hsdag.search.threads import one_torch_thread

TELL_EVERY_S = 0.1
"""Between two events that a watcher hears of."""

ORDERED = "try --method cpsat, which looks for an order that does"

MAX_ENUMERATED = 4096
"""Placements up to which all are tried before it is said that none is legal."""


@runtime_checkable
class RanksUnits(Protocol):
    """A placer that also says in which order a device takes its units, as list schedulers and solvers do."""

    def ranks(self, placement: IntArray) -> IntArray | None:
        """[U] ranks, the smallest first, for the placement [U] that ``search`` returned; None where it has none."""


@runtime_checkable
class HoldsIncumbent(Protocol):
    """A placer whose best placement counts with the order that it knows, also when the search was stopped."""

    @property
    def incumbent(self) -> IntArray | None:
        """[U] the best so far; None before there is one."""


@runtime_checkable
class ProvesBound(Protocol):
    """A placer that proves a lower bound on what any placement of its units costs."""

    @property
    def lower_bound_s(self) -> float | None:
        """The bound in seconds, after ``search`` ended or was stopped; None where there is none."""


@runtime_checkable
class EndsWithProof(ProvesBound, Protocol):
    """A placer whose end is a proof, of an optimum up to a gap or of there being no legal placement of ops."""

    @property
    def proven_gap(self) -> float:
        """The share of the value that the bound may leave open where the answer is proven; 0 without a proof."""

    @property
    def is_proven_infeasible(self) -> bool:
        """Whether no placement of units that are ops fits into memory, whatever the order."""


def solve(problem: ScheduleProblem, placer: Placer, options: SolveOptions, watcher: Watcher | None = None) -> Solution:
    """Search with ``placer``; the answer is never worse than the best single device that is legal.

    Single devices are simulated first, whatever the budget, and count as evaluations. Raises SearchError when
    the method came to its end and found nothing legal, OptionError for an order that the method has not.
    """
    return _Search(problem, placer, options, watcher or Watcher()).run()


@dataclass(frozen=True)
class _Found:
    """A legal placement of the search."""

    device: IntArray  # [N]
    value_s: float
    priority: IntArray | None = None


class _Search:
    """One search, from the single devices to the answer."""

    def __init__(self, problem: ScheduleProblem, placer: Placer, options: SolveOptions, watcher: Watcher) -> None:
        self._problem, self._placer, self._options, self._watcher = problem, placer, options, watcher
        self._begin = time.monotonic()
        self._bound_s = options.objective.lower_bound(problem, options.semantics.execution)
        self._units: Problem = problem_of(problem, options.objective)
        order = None if options.semantics.order is Order.PRIORITY else options.semantics.order
        has_order = options.objective.uses_order(options.semantics.execution)
        self._needs_ranks = has_order and options.semantics.order is Order.PRIORITY
        # no placement has ranks until the method says so
        self._semantics = replace(options.semantics, order=order)
        self._unit_of_op = self._units.units.partition.labels
        self._evaluator = ScheduleEvaluator(problem, self._semantics, options.objective, self._unit_of_op)
        self._best_s = np.inf
        self._proven_gap = PROVEN_GAP
        self._num_singles = 0
        self._told_s = 0.0
        self._failure: SearchError | None = None

    def run(self) -> Solution:
        self._watcher.on_phase("simulating every single device")
        packing = pack_weights(self._problem, self._units, min(TIME_LIMIT_S, self._options.budget_s))
        is_impossible = packing.status is Packing.IMPOSSIBLE
        self._recorder = self._record([] if is_impossible else self._first_guesses(packing.placement))
        if is_impossible:
            return self._conclude(None, Status.INFEASIBLE)
        self._watcher.on_phase("searching")
        stopped, returned = False, None
        with one_torch_thread():
            try:
                self._stop_where_proven()
                returned = self._placer.search(self._units, self._recorder)
            except SearchStopped:
                stopped = True
            except SearchError as error:  # the method gave up; what was evaluated before still counts
                self._failure = error
        self._take_bound()
        found = self._best(returned)
        if found is not None and relative_gap(found.value_s, self._bound_s) <= self._proven_gap:
            return self._conclude(found, Status.OPTIMAL)
        ended_by_budget = (stopped or getattr(self._placer, "hit_limit", False)) and not self._watcher.should_stop()
        if found is None:
            return self._without_answer(ended_by_budget)
        return self._conclude(found, Status.TIME_LIMIT if ended_by_budget else Status.FEASIBLE)

    def _first_guesses(self, packed: IntArray | None) -> list[Event]:
        """Every single device that supports all; where none is legal, what at least holds the weights."""
        alone = [np.full(self._units.num_units, d, dtype=np.int64) for d in range(self._units.num_devices)]
        legal = [placement for placement in alone if self._units.is_legal(placement)]
        self._num_singles = len(legal)
        events = [Event(p, e, 0.0) for p, e in zip(legal, self._evaluator.evaluate(legal), strict=True)]
        if packed is not None and all(event.evaluation.latency_s is None for event in events):
            events += [Event(packed, self._evaluator.evaluate([packed])[0], 0.0)]
        return events

    def _record(self, first: Sequence[Event]) -> RecordingEvaluator:
        for event in first:
            self._note(event)
        limit = self._options.max_evaluations
        return RecordingEvaluator(
            self._evaluator,
            Budget(self._options.budget_s, limit if limit is not None else np.inf),
            NoJournal(),
            first,
            should_stop=lambda: self._watcher.should_stop() or self._is_proven(),
            on_event=self._heard,
        )

    def _note(self, event: Event) -> None:
        if event.evaluation.latency_s is not None:
            self._best_s = min(self._best_s, event.evaluation.latency_s)

    def _heard(self, event: Event) -> None:
        self._note(event)
        if event.elapsed_s - self._told_s >= TELL_EVERY_S:  # simulations may come by the ten thousand a second
            self._told_s = event.elapsed_s
            self._watcher.on_event(event, self._recorder)

    def _is_proven(self) -> bool:
        """Whether nothing better can be found; where ranks are asked for, the method must come to its end."""
        if self._needs_ranks or not np.isfinite(self._best_s):
            return False
        return relative_gap(self._best_s, self._bound_s) <= PROVEN_GAP

    def _stop_where_proven(self) -> None:
        if self._is_proven():
            raise SearchStopped

    def _take_bound(self) -> None:
        """Take over what the method proved; of units of several ops it proves nothing about their ops."""
        if self._units.num_units < self._problem.num_ops:
            return
        if isinstance(self._placer, ProvesBound):
            self._bound_s = max(self._bound_s, self._placer.lower_bound_s or 0.0)
        if isinstance(self._placer, EndsWithProof):
            self._proven_gap = max(PROVEN_GAP, self._placer.proven_gap)

    def _best(self, returned: IntArray | None) -> _Found | None:
        """The best of what was evaluated, and of what the method returned with the ranks it gave."""
        legal = [event for event in self._recorder.events if event.evaluation.latency_s is not None]
        best = min(legal, key=lambda event: _seconds(event.evaluation), default=None)
        known = self._placer.incumbent if isinstance(self._placer, HoldsIncumbent) else None
        candidates = [returned, known, best.placement if best is not None else None]
        with_ranks = [found for found in map(self._ranked, candidates) if found is not None]
        ranked = min(with_ranks, key=lambda found: found.value_s, default=None)
        if self._needs_ranks:
            if not isinstance(self._placer, RanksUnits):
                raise OptionError(f"order 'priority' needs priorities; method {self._options.method!r} gives none")
            return min([*with_ranks, *self._ranked_singles()], key=lambda found: found.value_s, default=None)
        if best is None:
            return ranked
        found = _Found(self._units.expand(best.placement), _seconds(best.evaluation))
        return ranked if ranked is not None and ranked.value_s <= found.value_s else self._as_asked(found)

    def _as_asked(self, found: _Found) -> _Found:
        """With ranks by start where order has no say but was asked to be by priority."""
        if self._options.semantics.order is not Order.PRIORITY:
            return found
        run = simulate(self._problem, found.device, one_inference(self._semantics))
        position = np.argsort(self._problem.topological_order)
        ranks = np.argsort(np.lexsort((position, run.end_s, run.start_s)))
        return self._with_op_ranks(found.device, ranks) or found

    def _ranked(self, returned: IntArray | None) -> _Found | None:
        """What the method returned, with its ranks; None without ranks, or where it is not legal."""
        wanted = self._options.semantics.order in (None, Order.PRIORITY)
        if returned is None or not wanted or not isinstance(self._placer, RanksUnits):
            return None
        ranks = self._placer.ranks(returned)
        return None if ranks is None else self._with_ranks(returned, ranks)

    def _ranked_singles(self) -> list[_Found]:
        """Single devices that are legal in topological order."""
        singles = [event.placement for event in self._recorder.events[: self._num_singles]]
        found = [self._with_ranks(placement, np.arange(self._units.num_units)) for placement in singles]
        return [single for single in found if single is not None]

    def _with_ranks(self, placement: IntArray, unit_ranks: IntArray) -> _Found | None:
        """A placement [U] simulated with ranks [U]; None where it is not legal."""
        return self._with_op_ranks(self._units.expand(placement), op_ranks(self._problem, self._unit_of_op, unit_ranks))

    def _with_op_ranks(self, device: IntArray, ranks: IntArray) -> _Found | None:
        """A placement [N] simulated with ranks [N]; None where it is not legal."""
        semantics = replace(self._semantics, order=Order.PRIORITY)
        value_s = float(self._options.objective.simulated(self._problem, device[None], semantics, ranks)[0])
        if not np.isfinite(value_s):
            return None
        peak = simulate(self._problem, device, one_inference(semantics), ranks).peak_memory_bytes
        return None if over_memory(self._problem, peak).any() else _Found(device, value_s, ranks)

    def _without_answer(self, ended_by_budget: bool) -> Solution:
        """Where there are few placements, all are tried before an answer is given up."""
        if self._units.num_units * np.log(self._units.num_devices) <= np.log(MAX_ENUMERATED):
            every = itertools.product(range(self._units.num_devices), repeat=self._units.num_units)
            table = [np.asarray(choice, dtype=np.int64) for choice in every]
            costs = [_seconds(evaluation) for evaluation in self._evaluator.evaluate(table)]
            best = int(np.argmin(costs))
            if not np.isfinite(costs[best]) and (self._is_proven_infeasible() or self._fits_in_no_order(table)):
                return self._conclude(None, Status.INFEASIBLE)
            if not np.isfinite(costs[best]):
                raise self._failure or SearchError(
                    f"no placement fits into memory in the order that devices take ops by themselves; {ORDERED}"
                )
            found = self._as_asked(_Found(self._units.expand(table[best]), costs[best]))
            return self._conclude(found, Status.TIME_LIMIT if ended_by_budget else Status.FEASIBLE)
        if self._is_proven_infeasible():
            return self._conclude(None, Status.INFEASIBLE)
        if ended_by_budget:
            return self._conclude(None, Status.TIME_LIMIT)
        if self._failure is not None:
            raise self._failure
        raise SearchError(
            f"method {self._options.method!r} found no placement that fits into memory, in "
            f"{self._recorder.num_evaluations} evaluations; try another method or a larger budget"
        )

    def _is_proven_infeasible(self) -> bool:
        """Whether the method has proven of single ops that nothing fits into memory."""
        if self._units.num_units < self._problem.num_ops or not isinstance(self._placer, EndsWithProof):
            return False
        return self._placer.is_proven_infeasible

    def _fits_in_no_order(self, table: Sequence[IntArray]) -> bool:
        """Whether every placement [U] needs too much memory for some op alone, or order has no say."""
        semantics = self._options.semantics
        if semantics.execution is Execution.SEQUENTIAL or semantics.order not in (None, Order.PRIORITY):
            return True
        devices = [self._units.expand(placement) for placement in table]
        supported = self._problem.supported
        ops = np.arange(self._problem.num_ops)
        return all(
            not supported[ops, device].all() or over_memory(self._problem, running_bytes(self._problem, device)).any()
            for device in devices
        )

    def _conclude(self, found: _Found | None, status: Status) -> Solution:
        self._watcher.on_phase("done")
        priority = found.priority if found is not None else None
        single_s = {
            self._problem.device_names[event.placement[0]]: event.evaluation.latency_s
            for event in self._recorder.events[: self._num_singles]
            if event.evaluation.latency_s is not None
        }
        run = None
        if found is not None:
            order = self._semantics.order if priority is None else Order.PRIORITY
            semantics = replace(one_inference(self._semantics), order=order)
            run = simulate(self._problem, found.device, semantics, priority)
        return Solution(
            problem=self._problem,
            options=self._options,
            status=status,
            lower_bound_s=self._bound_s,
            device=found.device if found is not None else None,
            priority=priority,
            value_s=found.value_s if found is not None else None,
            run=run,
            single_s=single_s,
            num_evaluations=self._recorder.num_evaluations,
            elapsed_s=time.monotonic() - self._begin,
            interrupted=self._watcher.should_stop(),
        )


def _seconds(evaluation: Evaluation) -> float:
    return np.inf if evaluation.latency_s is None else evaluation.latency_s
