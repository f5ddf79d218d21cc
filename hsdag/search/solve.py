"""Solving problem files: a placer searches over simulated plans, and the answer comes with a bound.

Legend: N ops, U placement units, D devices.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hsdag.evaluators.memory import one_inference, over_memory
from hsdag.evaluators.recording import Budget, Event
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.ir.errors import SearchError
from hsdag.placers.base import Placer
from hsdag.placers.incumbent import Result, Status
from hsdag.runtime.problems.packing import TIME_LIMIT_S, Packing, pack_weights, running_bytes
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.simulator import Order, simulate
from hsdag.search.driver import Driver, Watcher
from hsdag.search.solution import PROVEN_GAP, SolveOptions, SolveResult, relative_gap

ORDERED = "try --method cpsat, which looks for an order that does"

MAX_ENUMERATED = 4096
"""Placements up to which all are tried before it is said that none is legal."""


def solve(
    problem: ScheduleProblem, placer: Placer[Any], options: SolveOptions, watcher: Watcher | None = None
) -> SolveResult:
    """Search with ``placer``; the answer is never worse than the best single device that is legal.

    Single devices are simulated first, whatever the budget, and count as evaluations. Raises SearchError when
    the method ended and found nothing legal, OptionError before anything is evaluated for what the
    objective or the method cannot do.
    """
    return _Search(problem, placer, options, watcher or Watcher()).run()


class _Search:
    """One search, from the single devices to the answer."""

    def __init__(self, problem: ScheduleProblem, placer: Placer[Any], options: SolveOptions, watcher: Watcher) -> None:
        self._problem, self._options, self._watcher = problem, options, watcher
        objective, semantics = options.objective, options.semantics
        objective.check(semantics)
        self._begin = time.monotonic()
        self._bound = objective.lower_bound(problem, semantics.execution)
        self._units = problem_of(problem, objective, semantics)
        self._evaluator = ScheduleEvaluator(problem, semantics, objective, self._units.units.partition.labels)
        budget = Budget(options.budget_s, np.inf if options.max_evaluations is None else options.max_evaluations)
        self._driver = Driver(
            placer, self._units, self._evaluator, budget, watcher, seed=options.seed, is_done=self._is_proven
        )
        self._alone: list[Event] = []

    def run(self) -> SolveResult:
        self._watcher.on_phase("simulating every single device")
        packing = pack_weights(self._problem, self._units, min(TIME_LIMIT_S, self._options.budget_s))
        if packing.status is Packing.IMPOSSIBLE:
            return self._conclude(None, Status.INFEASIBLE)
        self._alone = self._driver.guess()
        if packing.placement is not None and not self._driver.recorder.best():
            self._driver.recorder.evaluate_all([Plan(packing.placement)])
        self._watcher.on_phase("searching")
        result = self._driver.search()
        is_cut_off = result is None or result.status is Status.TIME_LIMIT
        ended = Status.TIME_LIMIT if is_cut_off and not self._watcher.should_stop() else Status.FEASIBLE
        # of units of several ops nothing is proven, and exact methods send all results of an op as one
        is_proof = self._units.num_units == self._problem.num_ops and not self._problem.has_ports
        if result is not None and is_proof:
            self._bound = max(self._bound, result.lower_bound or 0.0)
        best = next(iter(self._driver.recorder.best()), None)
        if best is None:
            return self._without_answer(ended, result, is_proof=is_proof)
        if self._is_proven(best.score.value) or (result is not None and is_proof and result.status is Status.OPTIMAL):
            ended = Status.OPTIMAL
        return self._conclude(best, ended)

    def _is_proven(self, value: float) -> bool:
        """Whether nothing better can be found."""
        return relative_gap(value, self._bound) <= PROVEN_GAP

    def _without_answer(self, ended: Status, result: Result | None, *, is_proof: bool) -> SolveResult:
        """Where there are few placements, all are tried before an answer is given up."""
        is_infeasible = result is not None and is_proof and result.status is Status.INFEASIBLE
        if self._units.num_units * np.log(self._units.num_devices) <= np.log(MAX_ENUMERATED):
            every = itertools.product(range(self._units.num_devices), repeat=self._units.num_units)
            table = [Plan(np.asarray(choice)) for choice in every]
            scores = self._evaluator.evaluate(table)
            best = int(np.argmin([score.value for score in scores]))
            if scores[best].failure is None:
                return self._conclude(Event(table[best], scores[best], 0.0), ended)
            if is_infeasible or self._fits_in_no_order(table):
                return self._conclude(None, Status.INFEASIBLE)
            default = f"no placement fits into memory in the order that devices take ops by themselves; {ORDERED}"
            raise SearchError((result.note if result is not None else "") or default)
        if is_infeasible:
            return self._conclude(None, Status.INFEASIBLE)
        if ended is Status.TIME_LIMIT:
            return self._conclude(None, Status.TIME_LIMIT)
        raise SearchError(
            (result.note if result is not None else "")
            or f"method {self._options.method!r} found no placement that fits into memory, in "
            f"{self._driver.recorder.num_evaluations} evaluations; try another method or a larger budget"
        )

    def _fits_in_no_order(self, table: Sequence[Plan]) -> bool:
        """Whether every plan needs too much memory for some op alone, or the order does not matter."""
        if not self._evaluator.takes_order:
            return True
        supported, ops = self._problem.supported, np.arange(self._problem.num_ops)
        devices = [self._evaluator.devices(plan) for plan in table]
        return all(
            not supported[ops, device].all() or over_memory(self._problem, running_bytes(self._problem, device)).any()
            for device in devices
        )

    def _conclude(self, found: Event | None, status: Status) -> SolveResult:
        self._watcher.on_phase("done")
        device = ranks = run = None
        if found is not None:
            device, ranks = self._evaluator.devices(found.plan), self._evaluator.ranks(found.plan)
            order = self._options.semantics.order if ranks is None else Order.PRIORITY
            semantics = one_inference(replace(self._options.semantics, order=order))
            run = simulate(self._problem, device, semantics, ranks)
        return SolveResult(
            problem=self._problem,
            options=self._options,
            status=status,
            lower_bound_s=self._bound,
            device=device,
            priority=ranks,
            value_s=None if found is None else found.score.value,
            run=run,
            single_s={
                self._problem.device_names[event.plan.placement[0]]: event.score.value
                for event in self._alone
                if event.score.failure is None
            },
            num_evaluations=self._driver.recorder.num_evaluations,
            elapsed_s=time.monotonic() - self._begin,
            interrupted=self._watcher.should_stop(),
            best_after_s=0.0 if found is None else found.elapsed_s,
        )
