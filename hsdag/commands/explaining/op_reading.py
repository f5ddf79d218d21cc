"""What OpByOpCosts say of a placement: every op is started by itself, and results go to other devices one by one.

Legend: N ops, E edges, D devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hsdag.commands.explaining.reading import Reading, Term
from hsdag.ir.graph import Csr, FloatArray
from hsdag.ir.paths import longest_before
from hsdag.reports.explanation import Bottleneck, Boundary, Crossing
from hsdag.runtime.costs.op_by_op_costs import OpByOpCosts
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


@dataclass(frozen=True, eq=False)
class OpReading(Reading):
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
