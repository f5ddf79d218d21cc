"""The latency of placements under HETERO, simulated from measured or assumed costs.

HETERO runs its submodels one after another, so the latency is linear in the costs: the times of ops on their
devices, a launch for each submodel, and latency and bytes over bandwidth for each tensor that crosses into another
submodel. That makes it cheap to compute and convex to calibrate.

Legend: N ops, M nodes that run on data, U units, D devices, B placements, P parameters (D work factors, D launches, D x
D latencies, D x D inverse bandwidths).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hsdag.base.kernels import bare, inner, run_kernel
from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, FloatArray, IntArray
from hsdag.ir.placement.hetero_rules import Workspace, cut_returns, join, open_rings
from hsdag.ir.placement.submodels import Nodes, SubmodelCollector, count_crossings
from hsdag.runtime.costs.fitting import fit_by_kind
from hsdag.runtime.problem.placement_costs import PlacementCosts, Priorities
from hsdag.runtime.problem.schedule_problem import CostSource, ScheduleProblem
from hsdag.runtime.simulator.execution import drained_s

LEAST_LAUNCH_S, LEAST_LATENCY_S, MOST_BYTES_PER_S = 1e-5, 2e-6, 5e10
"""Least seconds of a launch and of a link's latency, and highest bandwidth, so that calibration can scale them."""

SCATTER = 0.01
"""Scatter of measured latencies around the model, as a share of them."""
SCALE = 20.0
"""Share by which all launches, all latencies or all bandwidths may be off together.

Probes are small models, which meet warm caches, so they see too little of these costs.
"""
LAUNCH_ERROR_S = 1e-2
"""Seconds by which all launches may be off, if that is more: what a split costs whatever crosses, probes hardly see."""

KNOWN = 1 << 14
"""Number of placements that a search remembers, as a cold one proposes the same ones again and again. 62 random bits
identify a placement, so about one in 10^18 others would be rejected wrongly.
"""


@dataclass(frozen=True, eq=False)
class HeteroCosts(PlacementCosts):
    """Costs of one graph's ops under HETERO."""

    collector: SubmodelCollector
    costs: ScheduleProblem

    @staticmethod
    def of(graph: ComputationGraph, costs: ScheduleProblem) -> HeteroCosts:
        """Make costs from those of the ops of ``graph``."""
        return HeteroCosts(SubmodelCollector(graph), costs)

    def latency_s(self, placements: IntArray, priority: Priorities | None = None) -> FloatArray:
        """Return [B] the simulated latencies, in seconds, of placements [B, N] of ops; infinite for illegal ones."""
        return self._values_s(placements, is_period=False)

    def period_s(self, placements: IntArray) -> FloatArray:
        """Return [B] the simulated seconds per inference in steady state; a crossing loads the receiving device."""
        return self._values_s(placements, is_period=True)

    def _values_s(self, placements: IntArray, *, is_period: bool) -> FloatArray:
        num_ops = placements.shape[1]
        units = unit_costs(self, np.arange(num_ops), num_ops, is_period=is_period)
        table = np.ascontiguousarray(placements, dtype=np.int64)
        steps = num_ops + len(units.nodes.net.src)
        return np.array(
            [run_kernel(placement_s, steps, units, placement, np.inf) for placement in table], dtype=np.float64
        )

    def calibrated(
        self, placements: IntArray, measured_s: FloatArray, priority: Priorities | None = None
    ) -> HeteroCosts:
        """Return costs refitted to measured latencies [B] of placements [B, N].

        Non-negative least squares on relative errors; each factor is pulled towards 1 by how little its figure may
        be off (SCALE, LAUNCH_ERROR_S, and the errors in ``fitting``). First with one factor each for all launches, all
        latencies and all bandwidths, then device by device and pair by pair. Without observations nothing changes.
        """
        is_legal = ~np.isnan(self.costs.time_s[np.arange(placements.shape[1]), placements]).any(axis=1)
        usable = np.isfinite(measured_s) & (measured_s > 0) & is_legal
        if not usable.any():
            return self
        d = self.costs.num_devices
        floors = np.repeat([1.0, LEAST_LAUNCH_S, LEAST_LATENCY_S, 1.0 / MOST_BYTES_PER_S], [d, d, d * d, d * d])
        inverse = 1.0 / self.costs.link_bandwidth_bytes_per_s
        now = [np.ones(d), self.costs.launch_s, self.costs.link_latency_s.ravel(), inverse.ravel()]
        start = np.maximum(np.concatenate(now), floors)  # a zero could not be scaled
        rows = self._rows(placements[usable]) * start / measured_s[usable, None]
        scales = [max(SCALE, LAUNCH_ERROR_S / float(start[d : 2 * d].mean())), SCALE, SCALE]
        values = start * fit_by_kind(rows, d, [d, d * d, d * d], scales, SCATTER)
        latency_s, inverse = values[2 * d :].reshape(2, d, d)
        fitted = replace(
            self.costs,
            time_s=self.costs.time_s * values[:d],
            launch_s=values[d : 2 * d],
            link_latency_s=latency_s,
            link_bandwidth_bytes_per_s=1.0 / inverse,
            source=CostSource.CALIBRATED,
        )
        return replace(self, costs=fitted)

    def _rows(self, placements: IntArray) -> FloatArray:
        """Return [B, P] the coefficient of each parameter in the latency."""
        num = len(placements)
        time_s = np.nan_to_num(self.costs.time_s)
        crossed = self.collector.crossings(placements, self.costs.num_devices)
        per_device = [np.where(placements == d, time_s[:, d], 0.0).sum(axis=1) for d in range(self.costs.num_devices)]
        work_s = np.stack(per_device, axis=1)
        parts = [work_s, crossed.launches, crossed.num.reshape(num, -1), crossed.size_bytes.reshape(num, -1)]
        return np.concatenate(parts, axis=1, dtype=np.float64)


class UnitCosts(NamedTuple):
    """The costs by unit for compiled code, with scratch, for one thread."""

    nodes: Nodes
    work: Workspace
    unit: IntArray  # [M] the unit of each node
    unit_s: FloatArray  # [U, D] infinite where a device lacks one of the unit's ops
    launch_s: FloatArray  # [D]
    latency_s: FloatArray  # [D, D]
    s_per_byte: FloatArray  # [D, D]
    excess: FloatArray  # [D, D] by how much devices slow each other down, or [0, 0]
    is_period: BoolArray  # [1] whether the value is a period, not a latency
    device: IntArray  # [M]
    reached: IntArray  # [D]
    num: IntArray  # [D, D]
    size_bytes: FloatArray  # [D, D]
    work_s: FloatArray  # [D] seconds of the ops
    sent_s: FloatArray  # [D] seconds of what is sent to the device
    keys: IntArray  # [U, D] random numbers; a placement's key is the exclusive or of its units' numbers
    known_key: IntArray  # [KNOWN] keys of placements that were looked at
    known_s: FloatArray  # [KNOWN] a lower bound of their seconds
    load_s: FloatArray  # [2 D]


def unit_costs(costs: HeteroCosts, unit_of_op: IntArray, num_units: int, *, is_period: bool = False) -> UnitCosts:
    """Return the costs of placements of units; ``unit_of_op`` [N] is the unit of each op."""
    nodes, d, time_s = costs.collector.nodes, costs.costs.num_devices, costs.costs.time_s
    unit_s = np.zeros((num_units, d))
    np.add.at(unit_s, unit_of_op, np.where(np.isnan(time_s), np.inf, time_s))
    return UnitCosts(
        nodes=nodes,
        work=Workspace.of(nodes.net),
        unit=unit_of_op[nodes.op],
        unit_s=unit_s,
        launch_s=costs.costs.launch_s.astype(np.float64),
        latency_s=costs.costs.link_latency_s.astype(np.float64),
        s_per_byte=1.0 / costs.costs.link_bandwidth_bytes_per_s,
        excess=costs.costs.excess,
        is_period=np.array([is_period]),
        device=np.zeros(len(nodes.op), dtype=np.int64),
        reached=np.zeros(d, dtype=np.int64),
        num=np.zeros((d, d), dtype=np.int64),
        size_bytes=np.zeros((d, d)),
        work_s=np.zeros(d),
        sent_s=np.zeros(d),
        keys=np.random.default_rng(0).integers(1 << 62, size=(num_units, d)),
        known_key=np.zeros(KNOWN, dtype=np.int64),
        known_s=np.zeros(KNOWN),
        load_s=np.zeros(2 * d),
    )


@bare
def placement_s(t: UnitCosts, placement: IntArray, limit_s: float) -> float:
    """Return the value of ``HeteroCosts`` for a placement [U], or a lower bound of it above ``limit_s``.

    Submodels are only joined if ops and crossings to other devices stay within the limit, and only cut if
    the joined submodels still do.
    """
    key = 0
    for u in range(len(placement)):
        key ^= t.keys[u, placement[u]]
    place = key % KNOWN
    if t.known_key[place] == key and t.known_s[place] > limit_s:
        return float(t.known_s[place])
    t.work_s[:] = 0.0
    for u in range(len(placement)):
        t.work_s[placement[u]] += t.unit_s[u, placement[u]]
    for v in range(len(t.device)):
        t.device[v] = placement[t.unit[v]]
    label, net = t.work.parts.label, t.nodes.net
    _cross(t, t.device)
    value_s = _loaded_s(t, label[:0])
    if value_s <= limit_s and value_s < np.inf:
        waits = join(net, t.work, t.device)
        value_s = _loaded_s(t, label)
        if waits and value_s <= limit_s:
            cut_returns(net, t.work)
            value_s = _loaded_s(t, label)
            if value_s <= limit_s:
                open_rings(net, t.work)
                _cross(t, label)
                value_s = _loaded_s(t, label)
    t.known_key[place], t.known_s[place] = key, value_s
    return value_s


@inner
def _cross(t: UnitCosts, label: IntArray) -> None:
    """Fill ``sent_s`` with the crossings between submodels, ``label`` [M]."""
    t.num[:], t.size_bytes[:], t.sent_s[:] = 0, 0.0, 0.0
    count_crossings(t.nodes, t.device, label, t.reached, t.num, t.size_bytes)
    for home in range(len(t.sent_s)):
        for d in range(len(t.sent_s)):
            t.sent_s[d] += t.num[home, d] * t.latency_s[home, d] + t.size_bytes[home, d] * t.s_per_byte[home, d]


@inner
def _loaded_s(t: UnitCosts, label: IntArray) -> float:
    """Return latency or period of ops, crossings, and a launch for each submodel, ``label`` [M]."""
    total_s, largest_s = 0.0, 0.0
    for d in range(len(t.sent_s)):
        t.load_s[d] = t.work_s[d] + t.sent_s[d]
    for v in range(len(label)):
        if label[v] == v:
            t.load_s[t.device[v]] += t.launch_s[t.device[v]]
    for d in range(len(t.sent_s)):
        total_s += t.load_s[d]
        largest_s = max(largest_s, t.load_s[d])
    if not t.is_period[0] or total_s == np.inf:
        return total_s
    return drained_s(t.load_s, t.excess) if len(t.excess) else largest_s
