"""HeteroCosts: the latency of a placement under HETERO, from measured or assumed costs; every figure is simulated.

HETERO runs its submodels one after another, so the latency is linear in the costs: what ops take on their
devices, a launch for each submodel, and latency and bytes over bandwidth for each tensor that crosses into another
submodel. That makes it cheap to compute and convex to calibrate.

Legend: N ops, M nodes that run on data, U units, D devices, B placements, P parameters (D work factors, D launches, D x
D latencies, D x D inverse bandwidths).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, FloatArray, IntArray
from hsdag.ir.kernels import bare, inner, run
from hsdag.ir.placement.hetero_rules import Workspace, cut_returns, join, open_rings
from hsdag.ir.placement.submodels import Nodes, SubmodelCollector, count_crossings
from hsdag.runtime.costs.fitting import Trust, fit_by_kind
from hsdag.runtime.problem.placement_costs import PlacementCosts, Priorities
from hsdag.runtime.problem.schedule_problem import CostSource, ScheduleProblem
from hsdag.runtime.simulator.execution import drained_s

LEAST_LAUNCH_S, LEAST_LATENCY_S, MOST_BYTES_PER_S = 1e-5, 2e-6, 5e10
"""Launches and links are taken to cost at least this, so that calibration has something to scale."""

KNOWN = 1 << 14
"""Placements that a search remembers: a cold one proposes the same ones again and again. They are told apart by 62
random bits, so that one in 10^18 of the others would be rejected wrongly."""


@dataclass(frozen=True, eq=False)
class HeteroCosts(PlacementCosts):
    """Costs of one graph's ops under HETERO."""

    collector: SubmodelCollector
    costs: ScheduleProblem

    @staticmethod
    def of(graph: ComputationGraph, costs: ScheduleProblem) -> HeteroCosts:
        """Costs by op of ``graph``. Raises ValueError when they are for another number of ops."""
        if len(costs.time_s) != graph.num_ops:
            raise ValueError(f"costs are for {len(costs.time_s)} ops, but the graph has {graph.num_ops}")
        return HeteroCosts(SubmodelCollector(graph), costs)

    def latency_s(self, placements: IntArray, priority: Priorities | None = None) -> FloatArray:
        """[B] simulated seconds of one inference under placements [B, N] of ops; infinite where one is illegal."""
        return self._values_s(placements, is_period=False)

    def period_s(self, placements: IntArray) -> FloatArray:
        """[B] simulated seconds per inference with many in flight; a crossing counts on the device that receives it."""
        return self._values_s(placements, is_period=True)

    def _values_s(self, placements: IntArray, *, is_period: bool) -> FloatArray:
        num_ops = placements.shape[1]
        units = unit_costs(self, np.arange(num_ops), num_ops, is_period=is_period)
        table = np.ascontiguousarray(placements, dtype=np.int64)
        steps = num_ops + len(units.nodes.net.src)
        return np.array([run(placement_s, steps, units, each, np.inf) for each in table], dtype=np.float64)

    def calibrated(
        self, placements: IntArray, measured_s: FloatArray, priority: Priorities | None = None
    ) -> HeteroCosts:
        """Costs refitted to measured latencies [B] of placements [B, N].

        Non-negative least squares on relative errors, pulled towards the present figures as far as ``Trust`` goes;
        first with one factor each for all launches, all latencies and all bandwidths, then device by device and
        pair by pair. Without observations nothing changes.
        """
        is_legal = ~np.isnan(self.costs.time_s[np.arange(placements.shape[1]), placements]).any(axis=1)
        usable = np.isfinite(measured_s) & (measured_s > 0) & is_legal
        if not usable.any():
            return self
        d = self.costs.num_devices
        floors = np.repeat([1.0, LEAST_LAUNCH_S, LEAST_LATENCY_S, 1.0 / MOST_BYTES_PER_S], [d, d, d * d, d * d])
        inverse = 1.0 / self.costs.link_bandwidth_bytes_per_s
        now = [np.ones(d), self.costs.launch_s, self.costs.link_latency_s.ravel(), inverse.ravel()]
        start = np.maximum(np.concatenate(now), floors)  # what is too small cannot be scaled
        rows = self._rows(placements[usable]) * start / measured_s[usable, None]
        trust = Trust()
        scales = [max(trust.scale, trust.launch_s / float(start[d : 2 * d].mean())), trust.scale, trust.scale]
        values = start * fit_by_kind(rows, d, [d, d * d, d * d], trust, scales)
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
        """[B, P] what each parameter is multiplied with."""
        num = len(placements)
        time_s = np.nan_to_num(self.costs.time_s)
        crossed = self.collector.crossings(placements, self.costs.num_devices)
        each = [np.where(placements == d, time_s[:, d], 0.0).sum(axis=1) for d in range(self.costs.num_devices)]
        work_s = np.stack(each, axis=1)
        parts = [work_s, crossed.launches, crossed.num.reshape(num, -1), crossed.size_bytes.reshape(num, -1)]
        return np.concatenate(parts, axis=1, dtype=np.float64)


class UnitCosts(NamedTuple):
    """The costs by unit for compiled code, and scratch; for one thread."""

    nodes: Nodes
    work: Workspace
    unit: IntArray  # [M] of each node
    unit_s: FloatArray  # [U, D] infinite where a device lacks one of the unit's ops
    launch_s: FloatArray  # [D]
    latency_s: FloatArray  # [D, D]
    s_per_byte: FloatArray  # [D, D]
    excess: FloatArray  # [D, D] by which devices slow each other down, or [0, 0]
    is_period: BoolArray  # [1] whether the value is a period, else a latency
    device: IntArray  # [M]
    reached: IntArray  # [D]
    num: IntArray  # [D, D]
    size_bytes: FloatArray  # [D, D]
    work_s: FloatArray  # [D] of the ops
    sent_s: FloatArray  # [D]
    keys: IntArray  # [U, D] random; those of a placement's units, exclusively or-ed, are its own
    known_key: IntArray  # [KNOWN] placements that were looked at
    known_s: FloatArray  # [KNOWN] the least that they take
    load_s: FloatArray  # [2 D]


def unit_costs(costs: HeteroCosts, unit_of_op: IntArray, num_units: int, *, is_period: bool = False) -> UnitCosts:
    """Costs of placements of units, ``unit_of_op`` being [N]."""
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
    """What ``HeteroCosts`` says of a placement [U], or a lower bound of that which exceeds ``limit_s``.

    Submodels are only looked at where ops and what goes to other devices do not exceed the limit, and they are only cut
    where the joined ops of one device do not.
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
            num_cut = cut_returns(net, t.work)
            value_s = _loaded_s(t, label)
            if value_s <= limit_s:
                open_rings(net, t.work, num_cut)
                _cross(t, label)
                value_s = _loaded_s(t, label)
    t.known_key[place], t.known_s[place] = key, value_s
    return value_s


@inner
def _cross(t: UnitCosts, label: IntArray) -> None:
    """Fill ``sent_s`` with what crosses between submodels, ``label`` [M]."""
    t.num[:], t.size_bytes[:], t.sent_s[:] = 0, 0.0, 0.0
    count_crossings(t.nodes, t.device, label, t.reached, t.num, t.size_bytes)
    for home in range(len(t.sent_s)):
        for d in range(len(t.sent_s)):
            t.sent_s[d] += t.num[home, d] * t.latency_s[home, d] + t.size_bytes[home, d] * t.s_per_byte[home, d]


@inner
def _loaded_s(t: UnitCosts, label: IntArray) -> float:
    """Latency or period of ops, of what is sent, and of a launch for each submodel, ``label`` [M]."""
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
