"""What the costs of each executor say of a placement.

Under HETERO, submodels run in turn, so that all seconds add up to the latency. Under the work-conserving executor parts
run side by side, so that seconds are those of devices. The CUDA engine starts every op by itself, and sends results to
other devices one by one.

Legend: N ops, E edges, D devices, S parts; of HETERO, M nodes that run on data, T tensors that they read, K edges
between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hsdag.explaining.costed import CostedPlacement, Term
from hsdag.explaining.explanation import Bottleneck, Boundary, Crossing
from hsdag.ir.graph.computation_graph import Csr, FloatArray, IntArray
from hsdag.ir.kernels import longest_before
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.op_by_op_costs import OpByOpCosts
from hsdag.runtime.costs.part_table import Parts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.executor.cut import Cut, Tensor
from hsdag.runtime.executor.merging import CutOptions, plan_cut
from hsdag.runtime.problem.schedule_problem import ScheduleProblem


@dataclass(frozen=True, eq=False)
class HeteroPlacement(CostedPlacement):
    """Of a placement that HETERO runs."""

    model: HeteroCosts

    @property
    def costs(self) -> HeteroCosts:
        return self.model

    @cached_property
    def submodel(self) -> IntArray:
        """[M] the submodel of each node, numbered in topological order."""
        return self.model.collector.submodel_of(self.placement)[self.model.collector.nodes.op]

    def boundaries(self) -> tuple[Boundary, ...]:
        own, device = self.model.costs, self.placement[self.model.collector.nodes.op]
        tensor, away, reader = self._crossings()
        nodes = self.model.collector.nodes
        source_node = np.repeat(np.arange(len(device)), np.diff(nodes.tensors.of_node))
        found = []
        for s in np.unique(self.submodel).tolist():
            first, crossings = int(np.argmax(self.submodel == s)), []
            for t, d in zip(tensor[reader == s].tolist(), away[reader == s].tolist(), strict=True):
                home, size = int(device[source_node[t]]), float(nodes.tensors.size_bytes[t])
                seconds = float(own.link_latency_s[home, d] + size / own.link_bandwidth_bytes_per_s[home, d])
                edge = nodes.tensors.edge[nodes.tensors.start[t]]
                op, port = self._origin(int(source_node[t]), int(edge))
                crossings.append(Crossing(op, port, self.devices[home], int(size), seconds))
            if not crossings:
                continue
            d = int(device[first])
            sources = tuple(dict.fromkeys(crossing.source for crossing in crossings))
            transfer_s, name = sum(c.seconds for c in crossings), self.graph.op_names[nodes.op[first]]
            launch_s = float(own.launch_s[d])
            found.append(Boundary(s, name, self.devices[d], sources, 1, launch_s, transfer_s, tuple(crossings)))
        return tuple(found)

    def terms(self) -> Iterator[Term]:
        own, num = self.model.costs, len(self.devices)
        crossed = self.model.collector.crossings(self.placement[None], num)
        for d in self.used:
            work_s = float(np.nansum(own.time_s[self.placement == d, d]))
            idle = np.where(np.arange(num) == d, 0.0 * own.time_s, own.time_s)
            yield Term(self.devices[d], "work", work_s, replace(self.model, costs=replace(own, time_s=idle)))
        launches_s = float(crossed.launches[0] @ own.launch_s)
        yield Term("", "launches", launches_s, replace(self.model, costs=replace(own, launch_s=0 * own.launch_s)))
        sent_s = crossed.num[0] * own.link_latency_s + crossed.size_bytes[0] / own.link_bandwidth_bytes_per_s
        pairs = np.argwhere(crossed.num[0] > 0).tolist()
        for among in [pairs, *([pair] for pair in pairs if len(pairs) > 1)]:
            latency_s, bandwidth = own.link_latency_s.copy(), own.link_bandwidth_bytes_per_s.copy()
            for a, b in among:
                latency_s[a, b], bandwidth[a, b] = 0.0, np.inf
            free = replace(own, link_latency_s=latency_s, link_bandwidth_bytes_per_s=bandwidth)
            name = "" if among is pairs else " to ".join(self.devices[d] for d in among[0])
            seconds = float(sum(sent_s[a, b] for a, b in among))
            yield Term(name, "transfers", seconds, replace(self.model, costs=free))

    def _crossings(self) -> tuple[IntArray, IntArray, IntArray]:
        """Tensors that cross, the devices they cross to, and the first submodels there that read them.

        A tensor crosses to its own device, to another submodel, only where it crosses to no other device.
        """
        nodes = self.model.collector.nodes
        device = self.placement[nodes.op]
        tensor = np.repeat(np.arange(len(nodes.tensors.size_bytes)), np.diff(nodes.tensors.start))
        src, dst = nodes.net.src[nodes.tensors.edge], nodes.net.dst[nodes.tensors.edge]
        leaves = self.submodel[src] != self.submodel[dst]
        is_away = device[src] != device[dst]
        goes = np.zeros(len(nodes.tensors.size_bytes), dtype=np.bool_)
        goes[tensor[is_away]] = True
        kept = np.flatnonzero(leaves & (is_away | ~goes[tensor]))
        kept = kept[np.lexsort((self.submodel[dst[kept]], device[dst[kept]], tensor[kept]))]
        pairs = np.stack([tensor[kept], device[dst[kept]]], axis=1).reshape(-1, 2)
        first = np.unique(pairs, axis=0, return_index=True)[1]
        chosen = kept[first]
        return tensor[chosen], device[dst[chosen]], self.submodel[dst[chosen]]

    def _origin(self, node: int, edge: int) -> tuple[str, int]:
        """The op that gives a tensor, by name, and its output port."""
        nodes, graph = self.model.collector.nodes, self.graph
        op, reader = int(nodes.op[node]), int(nodes.op[nodes.net.dst[edge]])
        joining = graph.predecessors.edges[graph.predecessors.indptr[reader] : graph.predecessors.indptr[reader + 1]]
        ports = [int(graph.edge_src_port[e]) for e in joining if graph.edge_src[e] == op]
        return graph.op_names[op], ports[0] if ports else 0


@dataclass(frozen=True, eq=False)
class PartsPlacement(CostedPlacement):
    """Of a placement that the work-conserving executor runs."""

    model: WorkConservingCosts

    @property
    def costs(self) -> WorkConservingCosts:
        return self.model

    @cached_property
    def cut(self) -> Cut:
        """The parts as the executor makes them, in running order."""
        ranks = None if self.ranks is None else self.ranks.astype(np.float64)
        options = CutOptions(by_load=self.objective.is_steady)
        return plan_cut(self.graph, self.placement, len(self.devices), options, ranks).cut

    @property
    def parts(self) -> Parts | None:
        """The same with what makes up their durations; None where they cannot run."""
        return self.model.table.parts(self.placement, self.objective, self.ranks)

    def boundaries(self) -> tuple[Boundary, ...]:
        own, found, seen = self.model.cut_costs, [], set[Tensor]()
        size_of = self._sizes()
        for s, part in enumerate(self.cut.subgraphs):
            crossings = []
            for tensor in (each for each in part.inputs if each.source >= 0):
                home = self.cut.subgraphs[tensor.source].device
                size = size_of.get((tensor.op, tensor.port), 0)
                seconds = size * float(own.read_s_per_byte[part.device])
                if tensor not in seen:  # which writes it once
                    seconds += size * float(own.write_s_per_byte[home])
                seen.add(tensor)
                name = self.graph.op_names[tensor.op]
                crossings.append(Crossing(name, tensor.port, self.devices[home], size, seconds))
            if not crossings:
                continue
            first, device = self.graph.op_names[part.ops[0]], self.devices[part.device]
            sources = tuple(dict.fromkeys(crossing.source for crossing in crossings))
            transfer_s, launch_s = sum(c.seconds for c in crossings), float(own.launch_s[part.device])
            found.append(Boundary(s, first, device, sources, 1, launch_s, transfer_s, tuple(crossings)))
        return tuple(found)

    def terms(self) -> Iterator[Term]:
        parts = self.parts
        if parts is None:
            return
        table, rows = self.model.parameters.reshape(4, -1), self._rows(parts)
        for d in self.used:
            free = table.copy()
            free[0, d] = 0.0
            yield Term(self.devices[d], "work", float(rows[0, parts.device == d].sum()), self._with(free))
        for kind, columns in (("launches", [1]), ("transfers", [2, 3])):
            free = table.copy()
            free[columns] = 0.0
            yield Term("", kind, float(rows[columns].sum()), self._with(free))
        if self.model.excess.any():
            alone = replace(self.model, slowdown=None)
            yield Term("", "slow-downs", self.value - float(self.values(self.placement[None], alone)[0]), alone)

    def bottleneck(self) -> Bottleneck | None:
        parts = self.parts
        if parts is None:
            return None
        duration_s = self._rows(parts).sum(axis=0)
        load_s = np.bincount(parts.device, duration_s, len(self.devices))
        src, dst = parts.edges.T
        inputs = Csr.build(len(duration_s), dst.copy(), src.copy())
        before_s = longest_before(np.arange(len(duration_s)), inputs, duration_s, np.zeros(len(src)))
        busiest = int(load_s.argmax())
        return Bottleneck(float((before_s + duration_s).max()), float(load_s[busiest]), self.devices[busiest])

    def _rows(self, parts: Parts) -> FloatArray:
        """[4, S] seconds of work, launch, costed and writing of every part alone."""
        table = self.model.parameters.reshape(4, -1)[:, parts.device]
        made_of = [parts.work_s, np.ones(len(parts.device)), parts.read_bytes, parts.written_bytes]
        return np.asarray(table * np.stack(made_of), dtype=np.float64)

    def _with(self, table: FloatArray) -> WorkConservingCosts:
        return replace(self.model, parameters=table.ravel())

    def _sizes(self) -> dict[tuple[int, int], int]:
        """Bytes of every tensor that is read, by op and port."""
        columns = (self.graph.edge_src, self.graph.edge_src_port, self.graph.edge_bytes)
        return {(op, port): size for op, port, size in zip(*(column.tolist() for column in columns), strict=True)}


@dataclass(frozen=True, eq=False)
class OpsPlacement(CostedPlacement):
    """Of a placement for the CUDA engine."""

    model: OpByOpCosts

    @property
    def costs(self) -> OpByOpCosts:
        return self.model

    def boundaries(self) -> tuple[Boundary, ...]:
        """One for every ordered pair of devices that something is sent between."""
        problem, sent_s = self.model.problem, self._sent_s()
        home, away = self.placement[problem.edge_src], self.placement[problem.edge_dst]
        crosses = np.flatnonzero(home != away)
        keys = np.stack([problem.edge_src, problem.edge_port, away])[:, crosses]
        chosen = crosses[np.unique(keys, axis=1, return_index=True)[1]]  # a result is sent once to each device
        found = []
        for a, b in sorted(set(zip(home[chosen].tolist(), away[chosen].tolist(), strict=True))):
            edges = chosen[(home[chosen] == a) & (away[chosen] == b)]
            tensors = tuple(self._crossing(int(e), float(sent_s[e])) for e in edges)
            first = self.graph.op_names[int(problem.edge_dst[edges[0]])]
            total_s = sum(tensor.seconds for tensor in tensors)
            found.append(Boundary(None, first, self.devices[b], (self.devices[a],), 0, 0.0, total_s, tensors))
        return tuple(found)

    def terms(self) -> Iterator[Term]:
        own, num = self.model.problem, len(self.devices)
        for d in self.used:
            work_s = float(np.nansum(own.time_s[self.placement == d, d]))
            idle = np.where(np.arange(num) == d, 0.0 * own.time_s, own.time_s)
            yield Term(self.devices[d], "work", work_s, OpByOpCosts(replace(own, time_s=idle)))
        free = np.full_like(own.link_bandwidth_bytes_per_s, np.inf)
        links = replace(own, link_latency_s=0 * own.link_latency_s, link_bandwidth_bytes_per_s=free)
        seconds = sum(each.transfer_s for each in self.boundaries())
        yield Term("", "transfers", seconds, OpByOpCosts(links))
        if own.slowdown is not None:
            alone = OpByOpCosts(replace(own, slowdown=None))
            yield Term("", "slow-downs", self.value - float(self.values(self.placement[None], alone)[0]), alone)

    def bottleneck(self) -> Bottleneck | None:
        problem: ScheduleProblem = self.model.problem
        time_s = np.nan_to_num(problem.time_s[np.arange(problem.num_ops), self.placement])
        inputs = Csr.build(problem.num_ops, problem.edge_dst, problem.edge_src)
        before_s = longest_before(problem.topological_order, inputs, time_s, self._sent_s())
        load_s = np.bincount(self.placement, time_s, len(self.devices))
        busiest = int(load_s.argmax())
        return Bottleneck(float((before_s + time_s).max()), float(load_s[busiest]), self.devices[busiest])

    def _sent_s(self) -> FloatArray:
        """[E] seconds of the transfer along every edge, 0 where it stays."""
        own = self.model.problem
        home, away = self.placement[own.edge_src], self.placement[own.edge_dst]
        link_s = own.link_latency_s[home, away] + own.edge_bytes / own.link_bandwidth_bytes_per_s[home, away]
        return np.where(home != away, link_s, 0.0)

    def _crossing(self, edge: int, seconds: float) -> Crossing:
        own = self.model.problem
        op, port, size = int(own.edge_src[edge]), int(own.edge_port[edge]), int(own.edge_bytes[edge])
        return Crossing(self.graph.op_names[op], port, self.devices[self.placement[op]], size, seconds)
