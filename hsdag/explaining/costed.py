"""What the costs of an executor say of one placement: its value, its boundaries, what limits it, and what moves gain.

Under HETERO submodels run in turn, so that all seconds add up to the latency. Under the work-conserving executor parts
run side by side, so that seconds are those of devices. The CUDA engine starts every op by itself, and sends results to
other devices one by one.

Legend: N ops, U units, E edges, D devices, B placements, S parts; of HETERO, M nodes that run on data.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hsdag.explaining.explanation import Bottleneck, Boundary, BoundSaid, Crossing, Gain, Limit
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph, Csr, FloatArray, IntArray
from hsdag.ir.kernels import longest_before
from hsdag.methods.cuts.mincut import proven_bound
from hsdag.placing.subject import with_costs
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.op_by_op_costs import OpByOpCosts
from hsdag.runtime.costs.part_table import Parts
from hsdag.runtime.costs.placement_costs import PlacementCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.executor.cut import Tensor
from hsdag.runtime.executor.merging import plan_cut
from hsdag.runtime.objectives import Objective
from hsdag.runtime.problem.bounds.makespan import lower_bound
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.scoring.memory import MemoryCheck

AT_ONCE = 64
"""Moves that are simulated together."""


class Entry(NamedTuple):
    """What is entered: its first op, its device, and seconds of its launch, None where every op starts by itself."""

    op: int
    device: int
    launch_s: float | None


@dataclass(frozen=True, eq=False)
class CostedPlacement(ABC):
    """A placement [N] of a graph, with ranks [N] where it has some, and its costs; final classes are by executor."""

    graph: ComputationGraph
    devices: tuple[str, ...]
    placement: IntArray
    ranks: IntArray | None
    objective: Objective
    costs: PlacementCosts

    @abstractmethod
    def crossings(self) -> Iterator[tuple[int, Entry, Crossing]]:
        """What is sent, with what it enters and its number: a submodel, a part, or a pair of devices."""

    @abstractmethod
    def each_limit(self) -> Iterator[Limit]:
        """What the time of the placement is made of."""

    def bottleneck(self) -> Bottleneck | None:
        """The longest chain and the busiest device; None where everything runs in turn."""
        return None

    @cached_property
    def value(self) -> float:
        """Simulated value of the placement; infinite where it is illegal."""
        return float(self.values(self.placement[None])[0])

    @cached_property
    def time_s(self) -> FloatArray:
        """[N] seconds of every op where it is."""
        time_s = self.costs.costs.time_s
        return np.asarray(np.nan_to_num(time_s[np.arange(len(self.placement)), self.placement]))

    @cached_property
    def used(self) -> list[int]:
        """Devices that hold an op, ascending."""
        return [int(d) for d in np.unique(self.placement)]

    def values(self, placements: IntArray, costs: PlacementCosts | None = None) -> FloatArray:
        """[B] simulated values of placements [B, N] that run by the same ranks."""
        ranks = None if self.ranks is None else [self.ranks] * len(placements)
        return np.asarray((costs or self.costs).values(self.objective, placements, ranks), dtype=np.float64)

    def limits(self) -> tuple[Limit, ...]:
        """What would be gained if each cost were free, the most first; the placement stays as it is."""
        return tuple(sorted((each for each in self.each_limit() if each.seconds > 0), key=lambda limit: -limit.gain))

    def boundaries(self) -> tuple[Boundary, ...]:
        """What it takes to enter submodels, in running order."""
        entered: dict[int, tuple[Entry, list[Crossing]]] = {}
        for number, entry, crossing in self.crossings():
            entered.setdefault(number, (entry, []))[1].append(crossing)
        found = []
        for number, (entry, crossings) in sorted(entered.items()):
            launches, launch_s = (0, 0.0) if entry.launch_s is None else (1, entry.launch_s)
            found.append(
                Boundary(
                    submodel=number if launches else None,
                    op=self.graph.op_names[entry.op],
                    device=self.devices[entry.device],
                    sources=tuple(dict.fromkeys(crossing.source for crossing in crossings)),
                    launches=launches,
                    launch_s=launch_s,
                    transfer_s=sum(crossing.seconds for crossing in crossings),
                    tensors=tuple(crossings),
                )
            )
        return tuple(found)

    def _limit(self, name: str, kind: str, without: PlacementCosts, seconds: float | None = None) -> Limit:
        """What is gained without something that takes so many ``seconds``, or as many as are gained."""
        left = float(self.values(self.placement[None], without)[0])
        return Limit(name, kind, self.value - left if seconds is None else seconds, 1.0 - left / self.value)

    def _bottleneck(
        self, device: IntArray, took_s: FloatArray, order: IntArray, inputs: Csr, sent_s: FloatArray
    ) -> Bottleneck:
        """Of work that takes so long on its device, in a topological order, its inputs being so long on the way."""
        before_s = longest_before(order, inputs, took_s, sent_s)
        load_s = np.bincount(device, took_s, len(self.devices))
        busiest = int(load_s.argmax())
        return Bottleneck(float((before_s + took_s).max()), float(load_s[busiest]), self.devices[busiest])


def _idle(time_s: FloatArray, device: int) -> FloatArray:
    """[N, D] the times of ops with a device that takes none."""
    return np.where(np.arange(time_s.shape[1]) == device, 0.0 * time_s, time_s)


@dataclass(frozen=True, eq=False)
class HeteroPlacement(CostedPlacement):
    """Of a placement that HETERO runs."""

    costs: HeteroCosts

    def crossings(self) -> Iterator[tuple[int, Entry, Crossing]]:
        """A tensor that several submodels of a device read enters the first of them.

        To another submodel on its own device it is sent only where it goes to no other device.
        """
        own, nodes, names = self.costs.costs, self.costs.collector.nodes, self.graph.op_names
        device = self.placement[nodes.op].tolist()
        submodel = self.costs.collector.submodel_of(self.placement)[nodes.op].tolist()
        first = {s: int(nodes.op[v]) for v, s in reversed(list(enumerate(submodel)))}
        for v, home in enumerate(device):
            for t in range(nodes.tensors.of_node[v], nodes.tensors.of_node[v + 1]):
                edges = nodes.tensors.edge[nodes.tensors.start[t] : nodes.tensors.start[t + 1]]
                readers = [u for u in nodes.net.dst[edges].tolist() if submodel[u] != submodel[v]]
                entered = {d: min(submodel[u] for u in readers if device[u] == d) for d in {device[u] for u in readers}}
                if len(entered) > 1:
                    entered.pop(home, None)
                size = float(nodes.tensors.size_bytes[t])
                for d, s in entered.items():
                    seconds = float(own.link_latency_s[home, d] + size / own.link_bandwidth_bytes_per_s[home, d])
                    port = self._port(int(nodes.op[v]), int(nodes.op[nodes.net.dst[edges[0]]]))
                    crossing = Crossing(names[nodes.op[v]], port, self.devices[home], int(size), seconds)
                    yield s, Entry(first[s], d, float(own.launch_s[d])), crossing

    def each_limit(self) -> Iterator[Limit]:
        own, num = self.costs.costs, len(self.devices)
        for d in self.used:
            idle = replace(own, time_s=_idle(own.time_s, d))
            yield self._limit(self.devices[d], "work", replace(self.costs, by_op=idle))
        yield self._limit("", "launches", replace(self.costs, by_op=replace(own, launch_s=0 * own.launch_s)))
        pairs = np.argwhere(self.costs.collector.crossings(self.placement[None], num).num[0] > 0).tolist()
        for among in [pairs, *([pair] for pair in pairs if len(pairs) > 1)]:
            latency_s, bandwidth = own.link_latency_s.copy(), own.link_bandwidth_bytes_per_s.copy()
            for a, b in among:
                latency_s[a, b], bandwidth[a, b] = 0.0, np.inf
            free = replace(own, link_latency_s=latency_s, link_bandwidth_bytes_per_s=bandwidth)
            name = "" if among is pairs else " to ".join(self.devices[d] for d in among[0])
            yield self._limit(name, "transfers", replace(self.costs, by_op=free))

    def _port(self, op: int, reader: int) -> int:
        """The first output port of an op that a reader reads; 0 where it reads the op through others."""
        graph = self.graph
        joining = graph.predecessors.edges[graph.predecessors.indptr[reader] : graph.predecessors.indptr[reader + 1]]
        return next((int(graph.edge_src_port[e]) for e in joining if graph.edge_src[e] == op), 0)


@dataclass(frozen=True, eq=False)
class PartsPlacement(CostedPlacement):
    """Of a placement that the work-conserving executor runs."""

    costs: WorkConservingCosts

    @property
    def parts(self) -> Parts | None:
        """The parts with what makes up their durations; None where they cannot run."""
        return self.costs.table.parts(self.placement, self.objective, self.ranks)

    def crossings(self) -> Iterator[tuple[int, Entry, Crossing]]:
        """A tensor is written once, for the first part that reads it."""
        graph, own, written = self.graph, self.costs.cut_costs, set[Tensor]()
        ranks = None if self.ranks is None else self.ranks.astype(np.float64)
        by_load = self.objective.is_steady
        subgraphs = plan_cut(graph, self.placement, len(self.devices), ranks, by_load=by_load).cut.subgraphs
        columns = (graph.edge_src, graph.edge_src_port, graph.edge_bytes)
        size_of = {(op, port): size for op, port, size in zip(*(column.tolist() for column in columns), strict=True)}
        for s, part in enumerate(subgraphs):
            for tensor in (each for each in part.inputs if each.source >= 0):
                home, size = subgraphs[tensor.source].device, size_of.get((tensor.op, tensor.port), 0)
                write = 0.0 if tensor in written else own.write_s_per_byte[home]
                written.add(tensor)
                seconds = size * float(own.read_s_per_byte[part.device] + write)
                crossing = Crossing(graph.op_names[tensor.op], tensor.port, self.devices[home], size, seconds)
                yield s, Entry(part.ops[0], part.device, float(own.launch_s[part.device])), crossing

    def each_limit(self) -> Iterator[Limit]:
        parts = self.parts
        if parts is None:
            return
        rows = self._rows(parts)
        for d in self.used:
            yield self._free(self.devices[d], "work", np.s_[0, d], float(rows[0, parts.device == d].sum()))
        yield self._free("", "launches", np.s_[1], float(rows[1].sum()))
        yield self._free("", "transfers", np.s_[2:], float(rows[2:].sum()))
        if self.costs.excess.any():
            yield self._limit("", "slow-downs", replace(self.costs, slowdown=None))

    def bottleneck(self) -> Bottleneck | None:
        if (parts := self.parts) is None:
            return None
        took_s, (src, dst) = self._rows(parts).sum(axis=0), parts.edges.T
        inputs = Csr.build(len(took_s), dst.copy(), src.copy())
        return self._bottleneck(parts.device, took_s, np.arange(len(took_s)), inputs, np.zeros(len(src)))

    def _rows(self, parts: Parts) -> FloatArray:
        """[4, S] seconds of work, launch, reading and writing of every part alone."""
        table = self.costs.parameters.reshape(4, -1)[:, parts.device]
        made_of = [parts.work_s, np.ones(len(parts.device)), parts.read_bytes, parts.written_bytes]
        return np.asarray(table * np.stack(made_of), dtype=np.float64)

    def _free(self, name: str, kind: str, entries: Any, seconds: float) -> Limit:
        """The gain where some entries of the parameters [4, D] are 0."""
        table = self.costs.parameters.reshape(4, -1).copy()
        table[entries] = 0.0
        return self._limit(name, kind, replace(self.costs, parameters=table.ravel()), seconds)


@dataclass(frozen=True, eq=False)
class OpsPlacement(CostedPlacement):
    """Of a placement for the CUDA engine."""

    costs: OpByOpCosts

    def crossings(self) -> Iterator[tuple[int, Entry, Crossing]]:
        """A result is sent once to each other device."""
        own, sent_s = self.costs.problem, self._sent_s()
        home, away = self.placement[own.edge_src], self.placement[own.edge_dst]
        crosses = np.flatnonzero(home != away)
        keys = np.stack([own.edge_src, own.edge_port, away])[:, crosses]
        for e in crosses[np.unique(keys, axis=1, return_index=True)[1]].tolist():
            name, size = self.graph.op_names[own.edge_src[e]], int(own.edge_bytes[e])
            crossing = Crossing(name, int(own.edge_port[e]), self.devices[home[e]], size, float(sent_s[e]))
            yield int(home[e] * len(self.devices) + away[e]), Entry(int(own.edge_dst[e]), int(away[e]), None), crossing

    def each_limit(self) -> Iterator[Limit]:
        own = self.costs.problem
        for d in self.used:
            idle = OpByOpCosts(replace(own, time_s=_idle(own.time_s, d)))
            yield self._limit(self.devices[d], "work", idle, float(self.time_s[self.placement == d].sum()))
        free = np.full_like(own.link_bandwidth_bytes_per_s, np.inf)
        links = replace(own, link_latency_s=0 * own.link_latency_s, link_bandwidth_bytes_per_s=free)
        yield self._limit("", "transfers", OpByOpCosts(links), sum(each.transfer_s for each in self.boundaries()))
        if own.slowdown is not None:
            yield self._limit("", "slow-downs", OpByOpCosts(replace(own, slowdown=None)))

    def bottleneck(self) -> Bottleneck | None:
        own = self.costs.problem
        inputs = Csr.build(own.num_ops, own.edge_dst, own.edge_src)
        return self._bottleneck(self.placement, self.time_s, own.topological_order, inputs, self._sent_s())

    def _sent_s(self) -> FloatArray:
        """[E] seconds of the transfer along every edge, 0 where it stays."""
        own = self.costs.problem
        home, away = self.placement[own.edge_src], self.placement[own.edge_dst]
        link_s = own.link_latency_s[home, away] + own.edge_bytes / own.link_bandwidth_bytes_per_s[home, away]
        return np.where(home != away, link_s, 0.0)


def simulated_gains(costed: CostedPlacement, problem: Problem, limit_s: float) -> tuple[tuple[Gain, ...], int]:
    """What each unit gains from where it is, the largest first, and how many units ``limit_s`` was not enough for.

    Every unit is moved to every other device by itself; those that take longest come first. A unit has no gain that no
    other device runs, or has the memory for.
    """
    begin_s, graph = time.monotonic(), costed.graph
    unit = pieces(problem, costed.placement)
    heaviest = last_of_units(np.lexsort((graph.flops, costed.time_s)), unit)
    home = costed.placement[heaviest]
    values = np.full((len(home), len(costed.devices)), np.nan)  # [U, D] with each unit on each device
    values[np.bincount(unit, ~floating_ops(graph)) == 0] = costed.value  # such units are not run anywhere
    values[~problem.supported[problem.units.partition.labels[heaviest]]] = np.inf
    values[np.arange(len(home)), home] = np.inf
    longest_first = np.argsort(-np.bincount(unit, costed.time_s), kind="stable")
    todo = [(u, d) for u in longest_first.tolist() for d in np.flatnonzero(np.isnan(values[u])).tolist()]
    for begin in range(0, len(todo), AT_ONCE):
        if time.monotonic() - begin_s > limit_s:
            break
        some = np.array(todo[begin : begin + AT_ONCE])
        placements = np.where(unit == some[:, :1], some[:, 1:], costed.placement)
        values[some[:, 0], some[:, 1]] = _within_memory(problem, unit, placements, costed.values(placements))
    unmoved = np.isnan(values).any(axis=1)
    best = np.where(unmoved[:, None], np.inf, values).argmin(axis=1)
    moved = np.where(unmoved, np.inf, values[np.arange(len(home)), best])
    gains = []
    for u in np.argsort(-moved, kind="stable").tolist():
        if np.isfinite(moved[u]):
            op, ops = int(heaviest[u]), tuple(graph.op_names[v] for v in np.flatnonzero(unit == u).tolist())
            where = costed.devices[home[u]], costed.devices[best[u]]
            gain = float(moved[u]) - costed.value
            gains.append(Gain(graph.op_names[op], graph.op_types[op], ops, *where, float(moved[u]), gain))
    return tuple(gains), int(unmoved.sum())


def pieces(problem: Problem, placement: IntArray) -> IntArray:
    """[N] the unit of every op, by its number; a unit on several devices is as many."""
    key = problem.units.partition.labels * problem.num_devices + placement
    return np.asarray(np.unique(key, return_inverse=True)[1].reshape(-1), dtype=np.int64)


def last_of_units(order: IntArray, unit: IntArray) -> IntArray:
    """[U] the op of each unit that comes last in ``order`` [N]."""
    found = np.zeros(int(unit.max()) + 1, dtype=np.int64)
    found[unit[order]] = order
    return found


def _within_memory(problem: Problem, unit: IntArray, placements: IntArray, values: FloatArray) -> FloatArray:
    """[B] the same values, infinite where a device lacks memory; units in pieces are not judged."""
    if problem.costs is None or int(unit.max()) + 1 != problem.num_units:
        return values
    memory = MemoryCheck(problem.costs, problem.semantics)
    if not memory.has_limits:
        return values
    first = np.unique(problem.units.partition.labels, return_index=True)[1]
    return np.where([memory.fits(placement[first]) for placement in placements], values, np.inf)


def bound_of(problem: Problem, costs: PlacementCosts, value: float) -> BoundSaid | None:
    """The largest bound that is known, and the share of ``value`` that it leaves open; None where nothing is proven.

    Under HETERO that is the minimum cut. Where devices work side by side, transfers are taken to be free: parts send
    less than units do where they compute a join twice.
    """
    if problem.costs is None or not np.isfinite(value):
        return None
    priced = with_costs(problem, costs.costs, problem.costs.memory_bytes)
    assert priced.costs is not None
    if isinstance(costs, HeteroCosts):
        in_turn = replace(priced, hetero=costs, semantics=Semantics(execution=Execution.SEQUENTIAL))
        seconds = proven_bound(in_turn, priced.costs)
        found = None if seconds is None else Bound(seconds, "the minimum cut")
    else:
        num = problem.num_devices
        free = replace(
            priced.costs, link_latency_s=np.zeros((num, num)), link_bandwidth_bytes_per_s=np.full((num, num), np.inf)
        )
        found = lower_bound(problem.objective, free, Execution.WORK_CONSERVING)
    if found is None or not np.isfinite(found.value_s):
        return None
    return BoundSaid(found.value_s, found.argument, max(0.0, 1.0 - found.value_s / value))
