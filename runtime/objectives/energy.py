"""Energy: the joules of one inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

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
class Energy(Objective):
    """The joules of one inference.

    Simulated, what each device spends on ops times its power while it computes; measured, what the machine's counters
    count, idle devices included. Models have no power figures: there a search looks for short inferences, whose
    energy is measured.
    """

    name = "energy"
    unit = "J"
    meaning = "fewer joules for an inference"
    value_name = "energy_j"
    shown_unit = "mJ"
    takes = "times the energy"

    def check(self, semantics: Semantics) -> None:
        if semantics.links is Links.BLOCKING:
            raise OptionError("--links blocking is for --objective throughput only; choose other links")

    def check_problem(self, problem: ScheduleProblem) -> None:
        power_w = problem.power_w
        for d, name in enumerate(problem.device_names):
            if power_w is None or np.isnan(power_w[d]):
                raise OptionError(
                    f"--objective energy needs the power of every device, and device {name!r} of problem "
                    f"{problem.name!r} has none: give it a power_w, in watts while it computes"
                )

    def check_machine(self) -> None:
        from hsdag.runtime.machine.energy_counters import EnergyCounters

        EnergyCounters.find()

    def uses_order(self, execution: Execution) -> bool:
        return False

    def simulated(
        self, problem: ScheduleProblem, placements: IntArray, semantics: Semantics, priority: ArrayLike | None = None
    ) -> FloatArray:
        from hsdag.runtime.simulator.simulation import all_supported, simulate

        self.check_problem(problem)
        assert problem.power_w is not None
        if semantics.noise_sigma == 0 and not problem.excess.size:
            ops = np.arange(problem.num_ops)
            joules = np.where(problem.supported, problem.time_s * problem.power_w, np.inf)
            return np.asarray(joules[ops, placements].sum(axis=1), dtype=np.float64)
        values = np.full(len(placements), np.inf)
        for b in np.flatnonzero(all_supported(problem, placements)).tolist():
            values[b] = simulate(problem, placements[b], semantics, priority).busy_s @ problem.power_w
        return values

    def lower_bound(self, problem: ScheduleProblem, execution: Execution) -> Bound:
        from hsdag.runtime.problem.bounds import Bound

        self.check_problem(problem)
        assert problem.power_w is not None
        least_j = np.nanmin(problem.time_s * problem.power_w, axis=1)
        return Bound(float(least_j.sum()), "every op where it takes least energy")

    def of_model(
        self,
        costs: PlacementCosts,
        placements: IntArray,
        ranks: Ranks | None = None,
        peak_bytes: FloatArray | None = None,
    ) -> FloatArray:
        return costs.latency_s(placements, ranks)  # at one watt, which measurements correct

    def calibrated(
        self, costs: PlacementCosts, placements: IntArray, measured: FloatArray, ranks: Ranks | None = None
    ) -> tuple[PlacementCosts, float]:
        """One factor for all: the power, in watts, that the measured placements have at simulated latencies."""
        watts = measured / costs.latency_s(placements, ranks)
        usable = np.isfinite(watts) & (watts > 0)
        return costs, float(np.median(watts[usable])) if usable.any() else 1.0

    def measured(self, meter: Meter, runs: int) -> list[float]:
        return [meter.energy_j(runs)]


OBJECTIVE = ENERGY = Energy()
