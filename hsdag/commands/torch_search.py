"""search_measured: any placer on a workload, judged by measured times (Stage III). Legend: N ops, U units."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from hsdag.evaluators.base import SearchStopped
from hsdag.evaluators.recording import Budget, Event, RecordingEvaluator
from hsdag.evaluators.torch.measured import TorchEvaluator, TorchMeasurement
from hsdag.evaluators.torch.measured_costs import measured_problem
from hsdag.evaluators.torch.workload_graph import workload_graph
from hsdag.ir.errors import SearchError
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.models import Workload
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.torch_backend import Inputs, LogicalDevice
from hsdag.search.driver import Driver, Watcher

BUDGET = Budget(seconds=60.0)


@dataclass(frozen=True, eq=False)
class MeasuredSearch:
    """The fastest placement [N] that was measured, its ranks [N] and makespan; all that was measured, by unit [U]."""

    placement: IntArray
    ranks: IntArray | None
    latency_s: float
    events: tuple[Event, ...]
    problem: Problem


def search_measured(
    workload: Workload,
    devices: Sequence[LogicalDevice],
    method: str = "hsdag",
    budget: Budget = BUDGET,
    *,
    costs: ScheduleProblem | None = None,
    inputs: Inputs | None = None,
    measurement: TorchMeasurement | None = None,
    ranks: FloatArray | None = None,
    seed: int = 0,
) -> MeasuredSearch:
    """Let ``method`` place a workload on torch devices; every placement it asks about is run.

    ``costs`` are what methods that compute start from, by default measured op by op. Single devices are run first,
    within the budget. ``ranks`` [N] order what is ready, smallest first; without them the orders of plans do.

    Raises OptionError for an unknown method, ExecutionError where the costs cannot be measured, SearchError where no
    placement ran.
    """
    how = measurement or TorchMeasurement()
    placer = make_placer(method)
    known = measured_problem(workload, devices, inputs, share=how.share) if costs is None else costs
    problem = problem_of(known)
    labels = problem.units.partition.labels
    evaluator = TorchEvaluator(
        workload_graph(workload), devices, inputs, measurement=how, ranks=ranks, unit_of_op=labels
    )
    driver = Driver(placer, problem, evaluator, budget, Watcher(), seed=seed)
    with contextlib.suppress(SearchStopped):
        driver.guess()
        driver.search()
    return _concluded(driver.recorder, problem)


def _concluded(recorder: RecordingEvaluator, problem: Problem) -> MeasuredSearch:
    if not recorder.best():
        reason = recorder.events[0].score.failure if recorder.events else "the budget allows none"
        name = problem.units.graph.name
        raise SearchError(f"none of {len(recorder.events)} placements of {name!r} ran on the torch devices: {reason}")
    (best,) = recorder.best()
    ranks = None if best.plan.order is None else problem.expand(best.plan.order)
    placement = problem.expand(best.plan.placement)
    return MeasuredSearch(placement, ranks, best.score.value, tuple(recorder.events), problem)
