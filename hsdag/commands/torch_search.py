"""search_measured: any placer on a workload, judged by measured times (Stage III). Legend: N ops, U units."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from hsdag.evaluators.base import SearchStopped
from hsdag.evaluators.recording import Budget, Event
from hsdag.evaluators.torch.measured import TorchEvaluator, TorchMeasurement
from hsdag.evaluators.torch.measured_costs import measured_problem
from hsdag.evaluators.torch.workload_graph import workload_graph
from hsdag.ir.errors import SearchError
from hsdag.ir.graph import IntArray
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
    seed: int = 0,
) -> MeasuredSearch:
    """Let ``method`` place a workload on torch devices; every placement it asks about is run.

    ``costs`` are what methods that compute start from, by default measured op by op. Single devices are run first,
    within the budget. Raises OptionError for an unknown method, ExecutionError where the costs cannot be measured,
    SearchError where no placement ran.
    """
    how, placer = measurement or TorchMeasurement(), make_placer(method)
    problem = problem_of(measured_problem(workload, devices, inputs, share=how.share) if costs is None else costs)
    graph, labels = workload_graph(workload), problem.units.partition.labels
    evaluator = TorchEvaluator(graph, devices, inputs, measurement=how, unit_of_op=labels)
    driver = Driver(placer, problem, evaluator, budget, Watcher(), seed=seed)
    with contextlib.suppress(SearchStopped):
        driver.guess()
        driver.search()
    events = tuple(driver.recorder.events)
    if not driver.recorder.best():
        reason = events[0].score.failure if events else "the budget allows none"
        raise SearchError(f"none of {len(events)} placements of {graph.name!r} ran on the torch devices: {reason}")
    (best,) = driver.recorder.best()
    order = None if best.plan.order is None else problem.expand(best.plan.order)
    return MeasuredSearch(problem.expand(best.plan.placement), order, best.score.value, events, problem)
