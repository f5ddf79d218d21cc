"""HeteroCosts: the latency of a placement under HETERO, from measured or assumed costs; every figure is simulated.

HETERO runs its submodels one after another, so the latency is linear in the costs: what ops take on their
devices, a launch for each submodel, and latency and bytes over bandwidth for each tensor that crosses into another
submodel. That makes it cheap to compute and convex to calibrate.

Legend: N ops, D devices, B placements, P parameters (D work factors, D launches, D x D latencies, D x D inverse
bandwidths).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, FloatArray, IntArray
from hsdag.ir.hetero.submodels import SubmodelCollector
from hsdag.runtime.costs.factor_fit import Trust, fit_by_kind
from hsdag.runtime.costs.placement_costs import Ranks
from hsdag.runtime.problem.cost_model import CostModel, CostSource, excess_of
from hsdag.runtime.simulator.contended import busiest_s

LEAST_LAUNCH_S, LEAST_LATENCY_S, MOST_BYTES_PER_S = 1e-5, 2e-6, 5e10
"""Launches and links are taken to cost at least this, so that calibration has something to scale."""


@dataclass(frozen=True, eq=False)
class HeteroCosts:
    """Costs of one graph's ops under HETERO.

    ``costs.time_s`` [N, D] is by op; unlike elsewhere the diagonals of its link tables count: they are what a
    tensor costs between two submodels on one device.
    """

    collector: SubmodelCollector
    costs: CostModel

    @staticmethod
    def of(graph: ComputationGraph, costs: CostModel) -> HeteroCosts:
        """Costs by op of ``graph``. Raises ValueError when they are for another number of ops."""
        if len(costs.time_s) != graph.num_ops:
            raise ValueError(f"costs are for {len(costs.time_s)} ops, but the graph has {graph.num_ops}")
        return HeteroCosts(SubmodelCollector(graph), costs)

    @property
    def num_devices(self) -> int:
        """D."""
        return int(self.costs.time_s.shape[1])

    def latency_s(self, placements: IntArray, ranks: Ranks | None = None) -> FloatArray:
        """[B] simulated seconds of one inference under placements [B, N] of ops; infinite where one is illegal."""
        rows = self._rows(placements)
        return np.where(self._is_legal(placements), rows @ self._parameters(), np.inf)

    def period_s(self, placements: IntArray) -> FloatArray:
        """[B] simulated seconds per inference with many in flight: the load of the busiest device.

        A crossing counts on the device that receives it. Devices that slow each other down begin together, and each
        works until its own load is done. Infinite where a placement is illegal.
        """
        d = self.num_devices
        terms = self._rows(placements) * self._parameters()
        load_s = terms[:, :d] + terms[:, d : 2 * d] + terms[:, 2 * d :].reshape(-1, 2, d, d).sum(axis=(1, 2))
        periods_s = busiest_s(load_s, excess_of(self.costs.slowdown, d))
        return np.where(self._is_legal(placements), periods_s, np.inf)

    def calibrated(self, placements: IntArray, measured_s: FloatArray, ranks: Ranks | None = None) -> HeteroCosts:
        """Costs refitted to measured latencies [B] of placements [B, N].

        Non-negative least squares on relative errors, pulled towards the present figures as far as ``Trust`` goes;
        first with one factor each for all launches, all latencies and all bandwidths, then device by device and
        pair by pair. Without observations nothing changes.
        """
        usable = np.isfinite(measured_s) & (measured_s > 0) & self._is_legal(placements)
        if not usable.any():
            return self
        d = self.num_devices
        floors = np.repeat([1.0, LEAST_LAUNCH_S, LEAST_LATENCY_S, 1.0 / MOST_BYTES_PER_S], [d, d, d * d, d * d])
        start = np.maximum(self._parameters(), floors)  # what is too small cannot be scaled
        rows = self._rows(placements[usable]) * start / measured_s[usable, None]
        trust = Trust()
        scales = [max(trust.scale, trust.launch_s / float(start[d : 2 * d].mean())), trust.scale, trust.scale]
        values = start * fit_by_kind(rows, d, [d, d * d, d * d], trust, scales)
        latency_s, inverse = values[2 * d :].reshape(2, d, d)
        time_s = self.costs.time_s * values[:d]
        fitted = (time_s, values[d : 2 * d], latency_s, 1.0 / inverse, CostSource.CALIBRATED, self.costs.slowdown)
        return replace(self, costs=CostModel(*fitted))

    def _is_legal(self, placements: IntArray) -> BoolArray:
        ops = np.arange(placements.shape[1])
        return np.asarray(~np.isnan(self.costs.time_s[ops[None, :], placements]).any(axis=1), dtype=np.bool_)

    def _rows(self, placements: IntArray) -> FloatArray:
        """[B, P] what each parameter is multiplied with."""
        ops, num = np.arange(placements.shape[1]), len(placements)
        time_s = np.nan_to_num(self.costs.time_s)
        crossed = self.collector.crossings(placements, self.num_devices)
        work_s = np.stack(
            [np.where(placements == d, time_s[ops, d], 0.0).sum(axis=1) for d in range(self.num_devices)], axis=1
        )
        parts = [work_s, crossed.launches, crossed.num.reshape(num, -1), crossed.size_bytes.reshape(num, -1)]
        rows: FloatArray = np.concatenate(parts, axis=1, dtype=np.float64)
        return rows

    def _parameters(self) -> FloatArray:
        """[P] the costs as they stand."""
        costs = self.costs
        inverse = 1.0 / costs.link_bandwidth_bytes_per_s
        parts = [np.ones(self.num_devices), costs.launch_s, costs.link_latency_s.ravel(), inverse.ravel()]
        values: FloatArray = np.concatenate(parts, dtype=np.float64)
        return values
