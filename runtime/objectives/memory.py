"""Memory: the largest peak of any device while an inference runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.runtime.objectives.base import Objective
from hsdag.runtime.problem.semantics import Execution, Links, Semantics

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from hsdag.ir.graph.computation_graph import FloatArray, IntArray
    from hsdag.runtime.costs.placement_costs import PlacementCosts, Ranks
    from hsdag.runtime.objectives.base import Meter
    from hsdag.runtime.problem.bounds import Bound
    from hsdag.runtime.problem.schedule_problem import ScheduleProblem


@dataclass(frozen=True)
class Memory(Objective):
    """The bytes of weights and results that the fullest device holds at its fullest moment, by simulation."""

    name = "memory"
    unit = "B"
    meaning = "less memory on the fullest device"
    value_name = "peak_bytes"
    shown_unit = "MB"
    shown_factor = 1e-6
    takes = "times the memory"

    @property
    def counts_memory(self) -> bool:
        return True

    def check(self, semantics: Semantics) -> None:
        if semantics.links is Links.BLOCKING:
            raise OptionError("--links blocking is for --objective throughput only; choose other links")

    def uses_order(self, execution: Execution) -> bool:
        return execution is Execution.WORK_CONSERVING

    def simulated(
        self, problem: ScheduleProblem, placements: IntArray, semantics: Semantics, priority: ArrayLike | None = None
    ) -> FloatArray:
        from hsdag.runtime.simulator.simulation import all_supported, simulate

        exact, values = replace(semantics, noise_sigma=0.0), np.full(len(placements), np.inf)
        for b in np.flatnonzero(all_supported(problem, placements)).tolist():
            values[b] = simulate(problem, placements[b], exact, priority).peak_memory_bytes.max()
        return values

    def lower_bound(self, problem: ScheduleProblem, execution: Execution) -> Bound:
        from hsdag.runtime.problem.bounds import Bound

        weights = problem.weight_bytes
        return Bound(float(max(weights.sum() / problem.num_devices, weights.max())), "weights in equal shares")

    def of_model(
        self,
        costs: PlacementCosts,
        placements: IntArray,
        ranks: Ranks | None = None,
        peak_bytes: FloatArray | None = None,
    ) -> FloatArray:
        assert peak_bytes is not None, "the objective counts memory"
        return peak_bytes

    def calibrated(
        self, costs: PlacementCosts, placements: IntArray, measured: FloatArray, ranks: Ranks | None = None
    ) -> tuple[PlacementCosts, float]:
        """Nothing is measured that could correct a peak."""
        return costs, 1.0

    def measured(self, meter: Meter, runs: int) -> list[float]:
        return [meter.peak_bytes()]


OBJECTIVE = MEMORY = Memory()
