"""Throughput: the time from one result to the next while inferences follow each other without a gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hsdag.runtime.objectives.base import Meter, Objective
from hsdag.runtime.problem.semantics import Execution, Semantics

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from hsdag.ir.graph.computation_graph import FloatArray, IntArray
    from hsdag.runtime.costs.placement_costs import PlacementCosts, Ranks
    from hsdag.runtime.problem.bounds import Bound
    from hsdag.runtime.problem.schedule_problem import ScheduleProblem

LEAST_IN_FLIGHT, RUNS_IN_FLIGHT = 8, 4
"""Inferences that one measured period takes at least, and for each requested run."""


@dataclass(frozen=True)
class Throughput(Objective):
    """The seconds per inference with many in flight: the period, the load of the busiest resource."""

    name = "throughput"
    unit = "s"
    meaning = "more inferences a second"
    value_name = "period_s"
    is_steady = True
    properties = {"PERFORMANCE_HINT": "THROUGHPUT"}  # noqa: RUF012 - a class variable of the base

    def check(self, semantics: Semantics) -> None:
        """All semantics have a period."""

    def uses_order(self, execution: Execution) -> bool:
        return False

    def simulated(
        self, problem: ScheduleProblem, placements: IntArray, semantics: Semantics, priority: ArrayLike | None = None
    ) -> FloatArray:
        from hsdag.runtime.simulator.throughput import period_s

        return period_s(problem, placements, semantics)

    def lower_bound(self, problem: ScheduleProblem, execution: Execution) -> Bound:
        from hsdag.runtime.problem.bounds import period_bound, sequential_bound

        return sequential_bound(problem) if execution is Execution.SEQUENTIAL else period_bound(problem)

    def of_model(
        self,
        costs: PlacementCosts,
        placements: IntArray,
        ranks: Ranks | None = None,
        peak_bytes: FloatArray | None = None,
    ) -> FloatArray:
        return costs.period_s(placements)

    def calibrated(
        self, costs: PlacementCosts, placements: IntArray, measured: FloatArray, ranks: Ranks | None = None
    ) -> tuple[PlacementCosts, float]:
        """One factor for all: a period depends on the busiest device alone."""
        ratios = measured / costs.period_s(placements)
        usable = np.isfinite(ratios) & (ratios > 0)
        return costs, float(np.median(ratios[usable])) if usable.any() else 1.0

    def measured(self, meter: Meter, runs: int) -> list[float]:
        return [meter.in_flight(max(RUNS_IN_FLIGHT * runs, LEAST_IN_FLIGHT))]


OBJECTIVE = THROUGHPUT = Throughput()
