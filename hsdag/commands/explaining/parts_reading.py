"""What WorkConservingCosts say of a placement: parts run side by side, so that seconds are those of devices.

Legend: N ops, D devices, S parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hsdag.commands.explaining.reading import Reading, Term
from hsdag.ir.graph import Csr, FloatArray
from hsdag.ir.paths import longest_before
from hsdag.reports.explanation import Bottleneck, Boundary, Crossing
from hsdag.runtime.costs.part_table import Parts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.executor.cut import Cut, Tensor
from hsdag.runtime.executor.merging import CutOptions, plan_cut


@dataclass(frozen=True, eq=False)
class PartsReading(Reading):
    """Of a placement that the work-conserving executor runs."""

    model: WorkConservingCosts

    @property
    def costs(self) -> WorkConservingCosts:
        return self.model

    @cached_property
    def cut(self) -> Cut:
        """The parts as the executor makes them, in running order."""
        ranks = None if self.ranks is None else self.ranks.astype(np.float64)
        return plan_cut(self.graph, self.placement, len(self.devices), CutOptions(objective=self.objective), ranks).cut

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
        """[4, S] seconds of work, launch, reading and writing of every part alone."""
        table = self.model.parameters.reshape(4, -1)[:, parts.device]
        made_of = [parts.work_s, np.ones(len(parts.device)), parts.read_bytes, parts.written_bytes]
        return np.asarray(table * np.stack(made_of), dtype=np.float64)

    def _with(self, table: FloatArray) -> WorkConservingCosts:
        return replace(self.model, parameters=table.ravel())

    def _sizes(self) -> dict[tuple[int, int], int]:
        """Bytes of every tensor that is read, by op and port."""
        columns = (self.graph.edge_src, self.graph.edge_src_port, self.graph.edge_bytes)
        return {(op, port): size for op, port, size in zip(*(column.tolist() for column in columns), strict=True)}
