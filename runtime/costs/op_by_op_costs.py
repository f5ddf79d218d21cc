"""The latency of placements under an executor that starts every op by itself, simulated and calibrated.

Devices run one op at a time, work-conserving; results go to other devices on links that are independent of each other.
The makespan is homogeneous: with all times doubled, it doubles. So it is the sum of the times multiplied with its
derivatives (Euler's theorem on homogeneous functions), and easy to calibrate.

Legend: N ops, D devices, B placements, P = D + 1 parameters (the work of each device, and all transfers).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray, IntArray
from hsdag.runtime.costs.fitting import fit_by_kind, fit_factors
from hsdag.runtime.problem.placement_costs import PlacementCosts, Priorities
from hsdag.runtime.problem.schedule_problem import CostSource, ScheduleProblem
from hsdag.runtime.simulator.simulation import simulate_makespans
from hsdag.runtime.simulator.values import period_s

STEP = 1e-3
"""Relative change of a parameter to find the makespan's derivative."""

LEVEL, SCALE, SCATTER = 1.0, 1.0, 0.02
"""Shares by which one factor for all times may be off, and one for all transfers; scatter of measured latencies."""

ROUNDS = 2
"""Number of times that derivatives are computed."""


@dataclass(frozen=True, eq=False)
class OpByOpCosts(PlacementCosts):
    """Costs of one graph's ops; ``costs`` is the problem that the simulator takes."""

    costs: ScheduleProblem

    @staticmethod
    def of(graph: ComputationGraph, problem: ScheduleProblem) -> OpByOpCosts:
        """Make costs from a profile; values known before any data are on all devices from the start."""
        floats = floating_ops(graph)
        sent = np.flatnonzero(~floats[graph.edge_src] & ~floats[graph.edge_dst])
        kept = {name: getattr(problem, name)[sent] for name in ("edge_src", "edge_dst", "edge_bytes", "edge_port")}
        return OpByOpCosts(replace(problem, **kept))

    def latency_s(self, placements: IntArray, priority: Priorities | None = None) -> FloatArray:
        """Return [B] the simulated makespans of placements [B, N]; infinite where one is illegal."""
        if not priority or all(order is None for order in priority):
            return simulate_makespans(self.costs, placements)
        pairs = zip(placements[:, None], priority, strict=True)
        return np.concatenate([simulate_makespans(self.costs, one, priority=order) for one, order in pairs])

    def period_s(self, placements: IntArray) -> FloatArray:
        """Return [B] the simulated seconds per inference in steady state: the load of the busiest device or link."""
        return period_s(self.costs, placements)

    def calibrated(
        self, placements: IntArray, measured_s: FloatArray, priority: Priorities | None = None
    ) -> OpByOpCosts:
        """Return costs refitted to measured latencies [B] of placements [B, N].

        Non-negative least squares on relative errors, pulled towards the present figures: first one factor for all
        times, then one for the work of each device and one for all transfers. Without observations nothing changes.
        """
        usable = np.isfinite(measured_s) & (measured_s > 0) & np.isfinite(self.latency_s(placements, priority))
        seen, wanted_s = placements[usable], measured_s[usable]
        orders = None if priority is None else [priority[b] for b in np.flatnonzero(usable).tolist()]
        if not len(seen):
            return self
        factors = np.ones(self.costs.num_devices + 1)
        for _ in range(ROUNDS):
            # in units of the original costs: a parameter's contribution over its present factor
            rows = self._scaled(factors)._contributions_s(seen, orders) / factors / wanted_s[:, None]
            level = fit_factors(rows.sum(axis=1)[:, None], np.array([LEVEL]), SCATTER)[0]
            factors = level * fit_by_kind(rows * level, self.costs.num_devices, [1], [SCALE], SCATTER)
        return self._scaled(factors)

    def _contributions_s(self, placements: IntArray, priority: Priorities | None) -> FloatArray:
        """Return [B, P] the contributions of each device's work and of all transfers, which add up to the makespan."""
        now_s = self.latency_s(placements, priority)
        changed = 1.0 + STEP * np.eye(self.costs.num_devices + 1)
        grown_s = [self._scaled(factors).latency_s(placements, priority) - now_s for factors in changed]
        return np.maximum(np.stack(grown_s, axis=1) / STEP, 0.0)

    def _scaled(self, factors: FloatArray) -> OpByOpCosts:
        scaled = replace(
            self.costs,
            time_s=self.costs.time_s * factors[:-1],
            link_latency_s=self.costs.link_latency_s * factors[-1],
            link_bandwidth_bytes_per_s=self.costs.link_bandwidth_bytes_per_s / factors[-1],
            source=CostSource.CALIBRATED,
        )
        return OpByOpCosts(scaled)
