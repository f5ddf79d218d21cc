"""Latency: the time of one inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hsdag.ir.errors import OptionError
from hsdag.runtime.objectives.base import Meter, Objective
from hsdag.runtime.problem.semantics import Execution, Links, Semantics

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from hsdag.ir.graph.computation_graph import FloatArray, IntArray
    from hsdag.runtime.costs.placement_costs import PlacementCosts, Ranks
    from hsdag.runtime.problem.bounds import Bound
    from hsdag.runtime.problem.schedule_problem import ScheduleProblem


@dataclass(frozen=True)
class Latency(Objective):
    """The seconds from the start of an inference to its end: the makespan of its ops."""

    name = "latency"
    unit = "s"
    meaning = "less time from an input to its result"
    value_name = "makespan_s"

    def check(self, semantics: Semantics) -> None:
        if semantics.links is Links.BLOCKING:
            raise OptionError("--links blocking is for --objective throughput only; choose other links")

    def uses_order(self, execution: Execution) -> bool:
        return execution is Execution.WORK_CONSERVING

    def simulated(
        self, problem: ScheduleProblem, placements: IntArray, semantics: Semantics, priority: ArrayLike | None = None
    ) -> FloatArray:
        from hsdag.runtime.simulator.simulation import simulate_makespans

        return simulate_makespans(problem, placements, semantics, priority)

    def lower_bound(self, problem: ScheduleProblem, execution: Execution) -> Bound:
        from hsdag.runtime.problem.bounds import makespan_bound, sequential_bound

        return sequential_bound(problem) if execution is Execution.SEQUENTIAL else makespan_bound(problem)

    def of_model(
        self,
        costs: PlacementCosts,
        placements: IntArray,
        ranks: Ranks | None = None,
        peak_bytes: FloatArray | None = None,
    ) -> FloatArray:
        return costs.latency_s(placements, ranks)

    def calibrated(
        self, costs: PlacementCosts, placements: IntArray, measured: FloatArray, ranks: Ranks | None = None
    ) -> tuple[PlacementCosts, float]:
        return costs.calibrated(placements, measured, ranks=ranks), 1.0

    def measured(self, meter: Meter, runs: int) -> list[float]:
        return meter.single_runs(runs)


OBJECTIVE = LATENCY = Latency()
