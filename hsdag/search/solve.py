"""Solving problem files: a search over simulated plans, whose answer comes with a bound. Legend: N ops."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hsdag.evaluators.memory import one_inference, over_memory
from hsdag.evaluators.recording import Event
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.ir.build import fingerprint
from hsdag.ir.errors import PlacementError, SearchError
from hsdag.ir.graph import IntArray
from hsdag.ir.placement import ExecutorName, LatencyRecord, ModelRecord, Placement
from hsdag.placers.base import Placer
from hsdag.placers.incumbent import Contribution, Result, Status
from hsdag.runtime.measuring.latency import Comparison, Ratio
from hsdag.runtime.problems.bounds import Bound, largest
from hsdag.runtime.problems.packing import TIME_LIMIT_S, Packing, pack_weights, running_bytes
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import graph_of_problem, problem_of, unit_ranks
from hsdag.runtime.simulator import Execution, Order, Semantics, Simulation, simulate
from hsdag.runtime.timeline.timeline import Timeline
from hsdag.search.compiling import compile_search
from hsdag.search.driver import Driver, Watcher
from hsdag.search.options import SolveOptions
from hsdag.version import __version__

ROUNDING = 1e-9
"""A gap up to which there is none, and any answer is optimal. Exact methods that come to their end say theirs."""

OUT_OF_ORDER = (
    "no placement fits into memory in the order that devices take ops by themselves; "
    "try --method cpsat, which looks for an order that does"
)

MAX_ENUMERATED = 4096
"""Placements up to which all are tried before it is said that none is legal."""


@dataclass(frozen=True, eq=False)
class Solution:
    """How a search over costs ended: ``value_s`` is None where nothing legal was found. All figures are simulated."""

    status: Status
    value_s: float | None
    best_after_s: float
    bound: Bound
    num_evaluations: int
    elapsed_s: float
    interrupted: bool

    @property
    def lower_bound_s(self) -> float:
        """What no plan is below."""
        return self.bound.value_s

    @property
    def gap(self) -> float | None:
        """The share of the value that the lower bound leaves open."""
        return None if self.value_s is None else relative_gap(self.value_s, self.lower_bound_s)

    def ending(self) -> dict[str, object]:
        """What every answer says in JSON, beside the value and the answer itself."""
        return {
            "lower_bound_s": self.lower_bound_s,
            "bound_by": self.bound.argument,
            "gap": self.gap,
            "status": self.status.value,
            "elapsed_s": self.elapsed_s,
            "evaluations": self.num_evaluations,
            "interrupted": self.interrupted,
            "simulated": True,
        }


@dataclass(frozen=True, eq=False)
class Measured:
    """An answer as an executor runs it, beside every single device, in common rounds.

    ``name`` is the answer's among the samples; ``ratios`` are over the fastest single device, ``versus``, which the
    ``sentence`` compares the answer with. ``timeline`` is that of the answer's median run, where it was requested.
    """

    executor: ExecutorName
    name: str
    comparison: Comparison
    ratios: Mapping[str, Ratio]
    versus: str | None
    sentence: str
    timeline: Timeline | None = None

    @property
    def records(self) -> dict[str, LatencyRecord]:
        """By candidate that ran, the fastest first."""
        names = sorted(self.comparison.samples, key=self.comparison.median_s)
        return {name: self.comparison.samples[name].record() for name in names}

    def document(self) -> dict[str, object]:
        """The JSON answer."""
        rows = [
            {"name": name, **record.model_dump(), "ratio": self.ratios[name].value, "ci95": self.ratios[name].interval}
            for name, record in self.records.items()
        ]
        return {
            "executor": self.executor,
            "answer": self.name,
            "versus": self.versus,
            "rows": rows,
            "failures": dict(self.comparison.failures),
            "sentence": self.sentence,
        }


@dataclass(frozen=True, eq=False)
class SolveResult(Solution):
    """The end of a search; ``value_s`` is the makespan, or the period for throughput.

    ``note`` says why the method gave up, where it did; the answer is then one of those that every search begins with,
    or what the method had before.
    """

    problem: ScheduleProblem
    options: SolveOptions
    device: IntArray | None  # [N]
    priority: IntArray | None  # [N]
    run: Simulation | None  # one inference
    single_s: dict[str, float]
    contributions: tuple[Contribution, ...]
    note: str
    measured: Measured | None = None

    @property
    def semantics(self) -> Semantics:
        """The semantics of the answer, with the order that was meant."""
        given = self.options.semantics
        return replace(given, order=given.order or (Order.FIFO if self.priority is None else Order.PRIORITY))

    @property
    def affinity(self) -> dict[str, str] | None:
        """Device name by op name."""
        if self.device is None:
            return None
        names = self.problem.device_names
        return {op: names[d] for op, d in zip(self.problem.op_names, self.device.tolist(), strict=True)}

    @property
    def ranks(self) -> dict[str, int] | None:
        """Rank by op name, where the answer has priorities."""
        if self.priority is None:
            return None
        return dict(zip(self.problem.op_names, self.priority.tolist(), strict=True))

    @property
    def timeline(self) -> Timeline | None:
        """The measured one where there is one, else that of ``run``."""
        if self.measured is not None and self.measured.timeline is not None:
            return self.measured.timeline
        return Timeline.of(self.run, self.problem) if self.run is not None else None

    @property
    def schedule(self) -> list[dict[str, str | float]]:
        """When each op of ``run`` is where, by start."""
        if self.run is None:
            return []
        names, ops = self.problem.device_names, self.problem.op_names
        begin, end, device = self.run.start_s.tolist(), self.run.end_s.tolist(), self.run.device.tolist()
        return [
            {"op": ops[v], "device": names[device[v]], "start_s": begin[v], "end_s": end[v]}
            for v in np.lexsort((self.run.end_s, self.run.start_s)).tolist()
        ]

    def document(self) -> dict[str, object]:
        """The JSON answer of ``hsdag solve``."""
        document: dict[str, object] = {
            "method": self.options.method,
            "placement": self.affinity,
            self.options.objective.value_name: self.value_s,
            "schedule": self.schedule,
            **self.ending(),
            "single_devices_s": self.single_s,
            **self.semantics.document(),
            "objective": self.options.objective.name,
            "seed": self.options.seed,
            "members": [each.document() for each in self.contributions],
            "note": self.note or None,
        }
        if self.measured is not None:
            document["measured"] = self.measured.document()
        return document | ({"priority": self.ranks} if self.ranks is not None else {})

    def placement(self) -> Placement:
        """The placement file of the answer. Raises SearchError where there is none."""
        if self.affinity is None or self.value_s is None:
            raise SearchError("the search found no placement to write")
        problem, options = self.problem, self.options
        names, sequential = problem.canonical_names, options.semantics.execution is Execution.SEQUENTIAL
        simulated = {name: record for name, s in self.single_s.items() if (record := _record(s)) is not None}
        executor: ExecutorName = "hetero" if sequential else "work-conserving"
        latency, baselines = _record(self.value_s), simulated
        if self.measured is not None:
            executor, baselines = self.measured.executor, self.measured.records
            latency = baselines.pop(self.measured.name, None)
        return Placement(
            model=problem.model or ModelRecord(name=problem.name, fingerprint=fingerprint(graph_of_problem(problem))),
            devices=list(problem.device_records),
            affinity=dict(zip(names, self.affinity.values(), strict=True)),
            names=dict(zip(names, problem.op_names, strict=True)),
            method=options.method,
            seed=options.seed,
            objective=options.objective.name,
            executor=executor,
            latency=latency,
            baselines=baselines,
            priority=None if self.priority is None else dict(zip(names, self.priority.tolist(), strict=True)),
            created_with={"hsdag": __version__, "problem": problem.name},
        )


def solve(
    problem: ScheduleProblem, placer: Placer[Any], options: SolveOptions, watcher: Watcher | None = None
) -> SolveResult:
    """Search with ``placer``; the answer is never worse than the best single device, which are all simulated first, nor
    than the options' start, where that fits into memory.

    Raises SearchError when the method ended and found nothing legal, PlacementError for a start that splits a
    co-location set, OptionError before anything is evaluated for what
    the objective or the method cannot do.
    """
    return _Search(problem, placer, options, watcher or Watcher()).run()


class _Search:
    """One search, from the single devices to the answer."""

    def __init__(self, problem: ScheduleProblem, placer: Placer[Any], options: SolveOptions, watcher: Watcher) -> None:
        self._problem, self._options, self._watcher = problem, options, watcher
        objective, semantics = options.objective, options.semantics
        objective.check(semantics)
        self._begin = time.monotonic()
        self._units = problem_of(problem, objective, semantics)
        self._evaluator = ScheduleEvaluator(problem, semantics, objective, self._units.units.partition.labels)
        some, takes_order = Plan(self._units.supported.argmax(axis=1)), self._evaluator.takes_order
        self._begin += compile_search(
            placer, self._units, lambda: self._evaluator.evaluate([some]), takes_order=takes_order, say=watcher.on_phase
        )
        self._bound = objective.lower_bound(problem, semantics.execution)
        self._driver = Driver(
            placer,
            self._units,
            self._evaluator,
            options.budget,
            watcher,
            seed=options.seed,
            known=[] if options.start is None else [_of_units(self._units, options.start)],
            is_done=self._is_proven,
        )
        self._alone: list[Event] = []
        self._note = ""
        # of units of several ops nothing is proven, and exact methods send all results of an op as one
        self._is_proof = self._units.num_units == problem.num_ops and not problem.has_ports

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
        self._note = result.note if result is not None else ""
        if self._note:
            self._watcher.on_phase(self._note)
        is_cut_off = result is None or result.status is Status.TIME_LIMIT
        ended = Status.TIME_LIMIT if is_cut_off and not self._watcher.should_stop() else Status.FEASIBLE
        is_proof = self._is_proof
        best = next(iter(self._driver.recorder.best()), None)
        if best is None:
            return self._without_answer(ended, result, is_proof=is_proof)
        if self._is_proven(best.score.value) or (result is not None and is_proof and result.status is Status.OPTIMAL):
            ended = Status.OPTIMAL
        return self._conclude(best, ended)

    def _is_proven(self, value: float) -> bool:
        """Whether nothing better can be found."""
        return relative_gap(value, self._proven.value_s) == 0.0

    @property
    def _proven(self) -> Bound:
        """The largest bound that holds for the ops."""
        return largest(self._bound, self._driver.recorder.bound if self._is_proof else None)

    def _without_answer(self, ended: Status, result: Result | None, *, is_proof: bool) -> SolveResult:
        """Where there are few placements, all are tried before an answer is given up."""
        is_infeasible = result is not None and is_proof and result.status is Status.INFEASIBLE
        reason = result.note if result is not None else ""
        is_small = self._units.num_units * np.log(self._units.num_devices) <= np.log(MAX_ENUMERATED)
        if is_small:
            every = itertools.product(range(self._units.num_devices), repeat=self._units.num_units)
            table = [Plan(np.asarray(choice)) for choice in every]
            scores = self._evaluator.evaluate(table)
            best = int(np.argmin([score.value for score in scores]))
            if scores[best].failure is None:
                return self._conclude(Event(table[best], scores[best], 0.0), ended)
            is_infeasible = is_infeasible or self._fits_in_no_order(table)
            reason = reason or OUT_OF_ORDER
        if is_infeasible or (ended is Status.TIME_LIMIT and not is_small):
            return self._conclude(None, Status.INFEASIBLE if is_infeasible else ended)
        num, method = self._driver.recorder.num_evaluations, self._options.method
        found_none = f"method {method!r} found no placement that fits into memory, in {num} evaluations"
        raise SearchError(reason or f"{found_none}; try another method or a larger budget")

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
        ran = [event for event in self._alone if event.score.failure is None]
        single_s = {self._problem.device_names[event.plan.placement[0]]: event.score.value for event in ran}
        if found is not None:
            device, ranks = self._evaluator.devices(found.plan), self._evaluator.ranks(found.plan)
            order = self._options.semantics.order if ranks is None else Order.PRIORITY
            semantics = one_inference(replace(self._options.semantics, order=order))
            run = simulate(self._problem, device, semantics, ranks)
        return SolveResult(
            problem=self._problem,
            options=self._options,
            status=status,
            bound=self._proven,
            contributions=tuple(self._driver.contributions),
            note=self._note,
            device=device,
            priority=ranks,
            value_s=None if found is None else found.score.value,
            run=run,
            single_s=single_s,
            num_evaluations=self._driver.recorder.num_evaluations,
            elapsed_s=time.monotonic() - self._begin,
            interrupted=self._watcher.should_stop(),
            best_after_s=0.0 if found is None else found.elapsed_s,
        )


def _of_units(problem: Problem, plan: Plan) -> Plan:
    """A plan over ops as one over co-location sets, each at the rank of its first op."""
    labels, placement = problem.units.partition.labels, np.empty(problem.num_units, dtype=np.int64)
    placement[labels] = plan.placement
    apart = np.flatnonzero(placement[labels] != plan.placement)
    if len(apart):
        op = problem.units.fine.op_names[apart[0]]
        raise PlacementError(f"the placement to start with has op {op!r} on another device than the rest of its set")
    if plan.order is None:
        return Plan(placement)
    return Plan(placement, unit_ranks(labels, plan.order))


def relative_gap(value_s: float, bound_s: float) -> float:
    """(value - bound) / value, 0 where rounding may account for the difference."""
    gap = (value_s - bound_s) / value_s if value_s > 0 else 0.0
    return gap if gap > ROUNDING else 0.0


def _record(seconds: float) -> LatencyRecord | None:
    """A simulated figure; None for 0, which no latency can be."""
    if seconds <= 0:
        return None
    return LatencyRecord(median_s=seconds, mean_s=seconds, p95_s=seconds, runs=1, measured=False)
