"""What HeteroCosts say of a placement: submodels run in turn, so that all seconds add up to the latency.

Legend: N ops, D devices, M nodes that run on data, T tensors that they read, K edges between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hsdag.commands.explaining.reading import Reading, Term
from hsdag.ir.graph import IntArray
from hsdag.reports.explanation import Boundary, Crossing
from hsdag.runtime.costs.hetero_costs import HeteroCosts


@dataclass(frozen=True, eq=False)
class HeteroReading(Reading):
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
