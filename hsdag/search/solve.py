"""Solve a problem: search over simulated plans, and bound what any plan can reach."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hsdag.base.errors import OptionError, PlacementError, SearchError, option
from hsdag.base.kernels import timed_compiling
from hsdag.methods.base import Placer
from hsdag.methods.incumbent import Limits, Status
from hsdag.runtime.objectives import Objective
from hsdag.runtime.problem.bounds.makespan import LITTLE_PAIRS_EFFORT, PAIRS_EFFORT, lower_bound
from hsdag.runtime.problem.bounds.simple import Bound, largest
from hsdag.runtime.problem.packing import TIME_LIMIT_S, Packing, pack_weights
from hsdag.runtime.problem.pins import with_pinned_ops
from hsdag.runtime.problem.plan import Plan, unit_priority
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Order, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate
from hsdag.runtime.simulator.values import simulated_values
from hsdag.search.driver import COMPILING, FEW_PLANS, Driver, Member, Watcher, compile_search
from hsdag.search.evaluators.memory import one_inference
from hsdag.search.evaluators.recording import Event
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.search.solution import Simulated, SolveResult, relative_gap
from hsdag.workers.option import pool_of
from hsdag.workers.pool import Pool

TELL_EVERY_S, TELLING_SHARE = 1.0, 0.05
"""Least seconds between two calls of ``on_better``, and the largest share of the time that these calls may take."""


def solve(
    problem: ScheduleProblem,
    placer: Placer[Any],
    options: SolveOptions,
    watcher: Watcher | None = None,
    on_better: Callable[[SolveResult], None] | None = None,
) -> SolveResult:
    """Search for a placement of a problem with ``placer``.

    Every single device and the start are simulated first, so the answer is at least as good as each of them that keeps
    to pins and memory.

    Args:
        watcher: Called about the progress of the search.
        on_better: Called with the best answer so far when it has improved, at most once a second.

    Raises SearchError if the method ended without a legal placement, PlacementError for a start that splits a
    co-location set, breaks a pin or uses a device that does not support an op, and OptionError, before anything is
    evaluated, for an objective or a method that does not fit the problem and for limits that cannot be kept.
    """
    watcher = watcher or Watcher()
    with pool_of(options.workers, watcher.note) as pool:
        return _SolveRun(problem, placer, options, watcher, pool, on_better).run()


class _SolveRun:
    """A search from the single devices to the answer."""

    def __init__(
        self,
        problem: ScheduleProblem,
        placer: Placer[Any],
        options: SolveOptions,
        watcher: Watcher,
        pool: Pool | None,
        on_better: Callable[[SolveResult], None] | None,
    ) -> None:
        self._free = with_memory(problem, options.memory_bytes)  # without pins
        self._problem = problem = with_pinned_ops(self._free, options.pins)
        options.semantics.check(options.objective)
        objective = scaled(options.objective, self._free, options.semantics)
        self._options = replace(options, objective=objective)
        self._watcher = watcher
        self._on_better = on_better
        self._told: Event | None = None
        self._begin = time.monotonic()
        self._tell_next_s = self._begin + TELL_EVERY_S
        self._units = problem_of(problem, objective, options.semantics)
        self._evaluator = ScheduleEvaluator.of(self._units)
        steps, takes_order = float(problem.num_ops + len(problem.edge_src)), self._evaluator.takes_order
        with timed_compiling(partial(watcher.on_phase, COMPILING)) as compiled_s:
            compile_search(placer, self._units, self._evaluate_first, steps=steps, takes_order=takes_order)
            effort = LITTLE_PAIRS_EFFORT if placer.num_tried <= FEW_PLANS else PAIRS_EFFORT
            self._bound = lower_bound(objective, problem, options.semantics.execution, effort)
        self._begin += compiled_s()
        self._driver = Driver(
            placer,
            self._units,
            self._evaluator,
            options.budget,
            replace(watcher, should_stop=self._should_stop),
            Limits(num_workers=options.num_threads, seed=options.seed, known=self._start(), pool=pool),
            is_done=self._is_proven,
        )
        self._alone: list[Event] = []
        # proofs are about units: they hold for ops only if every unit is one op, and has one result
        self._is_proof = self._units.num_units == problem.num_ops and not problem.edge_port.any()

    def _should_stop(self) -> bool:
        """Return whether the caller wants the search to end; report the best answer so far if that is due."""
        if self._on_better is not None and time.monotonic() >= self._tell_next_s:
            self._tell(self._on_better)
        return self._watcher.should_stop()

    def _tell(self, on_better: Callable[[SolveResult], None]) -> None:
        begin_s = time.monotonic()
        best = self.best
        if best is not None and best is not self._told:
            self._tell_next_s = float("inf")
            self._told = best  # before the answer is simulated, which may call _should_stop as well
            on_better(self._answer(best, Status.FEASIBLE))
        end_s = time.monotonic()
        self._tell_next_s = end_s + max(TELL_EVERY_S, (end_s - begin_s) / TELLING_SHARE)

    def _evaluate_first(self) -> None:
        """Evaluate and simulate one plan, so that the kernels of the search get compiled."""
        some = Plan(self._units.supported.argmax(axis=1))
        self._evaluator.evaluate([some])
        self._evaluator.run(some)

    def _start(self) -> tuple[Plan, ...]:
        if self._options.start is None:
            return ()
        plan = _of_units(self._units, self._options.start)
        if not self._units.is_legal(plan.placement):
            wrong = np.flatnonzero(~self._units.supported[np.arange(self._units.num_units), plan.placement])
            op, name = self._units.units.graph.op_names[wrong[0]], self._units.devices[plan.placement[wrong[0]]]
            forbidden = f"which {option('pins')} forbids or " if self._options.pins else ""
            where = f"the placement to start with has op {op!r} on {name}"
            raise PlacementError(f"{where}, {forbidden}which does not support it")
        return (plan,)

    def run(self) -> SolveResult:
        options, watcher, recorder = self._options, self._watcher, self._driver.recorder
        watcher.on_phase("simulating every single device")
        packing = pack_weights(self._problem, self._units, min(TIME_LIMIT_S, options.budget_s))
        if packing.status is Packing.IMPOSSIBLE:
            return self._answer(None, Status.INFEASIBLE)
        self._alone = self._driver.guess()
        if packing.placement is not None and not recorder.best():
            recorder.evaluate_all([Plan(packing.placement)])
        watcher.on_phase("searching")
        result = self._driver.search()
        if self._driver.note:
            watcher.note(self._driver.note)
        is_cut_off = result is None or result.status is Status.TIME_LIMIT
        ended = Status.TIME_LIMIT if is_cut_off and not watcher.should_stop() else Status.FEASIBLE
        proven = result.status if result is not None and self._is_proof else None
        if self.best is None and (proven is Status.INFEASIBLE or ended is Status.TIME_LIMIT):
            return self._answer(None, Status.INFEASIBLE if proven is Status.INFEASIBLE else ended)
        if self.best is None:
            raise SearchError(
                self._driver.note
                or f"method {options.method!r} found no placement that fits into memory, in "
                f"{recorder.num_evaluations} evaluations; try a larger budget, or {option('method')} cpsat, "
                "which also looks for orders that fit"
            )
        if self._is_proven(self.best.score.value) or proven is Status.OPTIMAL:
            ended = Status.OPTIMAL
        return self._answer(self.best, ended)

    def _is_proven(self, value: float) -> bool:
        return relative_gap(value, self._proven.value) == 0.0

    @property
    def _proven(self) -> Bound:
        """Return the largest lower bound that holds for placements of single ops."""
        return largest(self._bound, self._driver.recorder.bound if self._is_proof else None)

    def _singles(self) -> tuple[dict[str, float], tuple[str, ...]]:
        """Return the values of single devices, and the names of those among them that break a pin."""
        names = self._problem.device_names
        ran = [event for event in self._alone if event.score.failure is None]
        values = {names[event.plan.placement[0]]: event.score.value for event in ran}
        if not self._options.pins:
            return values, ()
        alone = [Plan(np.full(self._free.num_ops, d)) for d in range(self._free.num_devices)]
        free = ScheduleEvaluator(self._free, self._options.semantics, self._options.objective)
        scores = dict(zip(names, free.evaluate(alone), strict=True))
        others = {name: score.value for name, score in scores.items() if score.failure is None and name not in values}
        return {name: (values | others)[name] for name in names if name in values | others}, tuple(others)

    @property
    def best(self) -> Event | None:
        """Return the event of the best plan so far, if any succeeded."""
        return next(iter(self._driver.recorder.best()), None)

    def _answer(self, best: Event | None, status: Status) -> SolveResult:
        """Return the answer of the search for an evaluated plan, or for None if there is no plan."""
        device = priority = run = None
        options = self._options
        singles, breaking = self._singles()
        if best is not None:
            device, priority = self._evaluator.devices(best.plan), self._evaluator.priority(best.plan)
            order = options.semantics.order if priority is None else Order.PRIORITY
            run = simulate(self._problem, device, one_inference(replace(options.semantics, order=order)), priority)
        meant = options.semantics.order or (Order.FIFO if priority is None else Order.PRIORITY)
        bound, value = self._proven, None if best is None else best.score.value
        return SolveResult(
            **Simulated.about(self._problem, options.objective, replace(options.semantics, order=meant)),
            options=options,
            seed=options.seed,
            method=options.method,
            status=status,
            bound=bound,
            lower_bound=bound.value,
            bound_by=bound.argument,
            gap=None if value is None else relative_gap(value, bound.value),
            members=tuple(map(Member.of, self._driver.contributions)),
            note=self._driver.note,
            plan=None if device is None else Plan(device, priority),
            value=value,
            run=run,
            single_devices=singles,
            breaking=breaking,
            num_evaluations=self._driver.recorder.num_evaluations,
            elapsed_s=time.monotonic() - self._begin,
            interrupted=self._watcher.should_stop(),
            best_after_s=0.0 if best is None else best.elapsed_s,
            curve=tuple((event.elapsed_s, event.score.value) for event in self._driver.recorder.improvements),
        )


def with_memory(problem: ScheduleProblem, memory_bytes: Mapping[str, float]) -> ScheduleProblem:
    """Return a problem with other memory limits in bytes, by device. Raises OptionError for an unknown device."""
    limits = problem.memory_bytes.copy()
    for name, size in memory_bytes.items():
        if name not in problem.device_names:
            raise OptionError(
                f"{option('memory')} names device {name!r}; the devices are {', '.join(problem.device_names)}"
            )
        limits[problem.device_names.index(name)] = size
    return replace(problem, memory_bytes=limits)


def scaled(objective: Objective, problem: ScheduleProblem, semantics: Semantics) -> Objective:
    """Return an objective whose terms are relative to the values of the best single device of a problem.

    If no device supports all ops, the values are those of every op on its fastest device. Raises OptionError if the
    problem lacks figures that the objective needs.
    """
    problem.check(objective)

    def best_single(term: Objective) -> float:
        alone = np.repeat(np.arange(problem.num_devices)[:, None], problem.num_ops, axis=1)
        fastest = np.nanargmin(problem.time_s, axis=1)[None]
        free = replace(semantics, order=None)
        values = [simulated_values(term, problem, placements.astype(np.int64), free) for placements in (alone, fastest)]
        return float(min(values[0]) if np.isfinite(values[0]).any() else values[1][0])

    return objective.scaled(best_single)


def _of_units(problem: Problem, plan: Plan) -> Plan:
    """Return a plan over ops as a plan over co-location sets, each with the rank of its first op.

    Raises PlacementError if a set is on several devices.
    """
    labels = problem.units.partition.labels
    placement = np.empty(problem.num_units, dtype=np.int64)
    placement[labels] = plan.placement
    if len(apart := np.flatnonzero(placement[labels] != plan.placement)):
        op = problem.units.fine.op_names[apart[0]]
        raise PlacementError(f"the placement to start with has op {op!r} on another device than the rest of its set")
    return Plan(placement, None if plan.priority is None else unit_priority(labels, plan.priority))
