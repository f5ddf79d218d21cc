"""Timeline: what ran where and when, simulated or measured, to be drawn or written as a trace.

Legend: N ops, I intervals, R transfers, E edges, D devices.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray

if TYPE_CHECKING:
    from hsdag.runtime.problem.schedule_problem import ScheduleProblem
    from hsdag.runtime.simulator import Simulation


@dataclass(frozen=True, eq=False)
class OpIntervals:
    """Runs of ops, in any order; an op may run in several parts."""

    op: IntArray  # [I]
    device: IntArray  # [I]
    start_s: FloatArray  # [I]
    end_s: FloatArray  # [I]


@dataclass(frozen=True, eq=False)
class TransferIntervals:
    """Results of ops on their way between two devices, in any order."""

    op: IntArray  # [R]
    src_device: IntArray  # [R]
    dst_device: IntArray  # [R]
    start_s: FloatArray  # [R]
    end_s: FloatArray  # [R]
    size_bytes: FloatArray  # [R]


@dataclass(frozen=True, eq=False)
class Timeline:
    """Intervals of ops and transfers by op and device index, with the names that belong to them.

    ``edges`` may be empty: it only says where a transfer's arrow ends. ``simulated`` is False for times taken
    on devices. Raises ValueError when columns differ in length, an index names nothing, or an interval is not
    a finite stretch of time from 0 on.
    """

    name: str
    op_names: tuple[str, ...]  # [N]
    op_types: tuple[str, ...]  # [N], "" where unknown
    device_names: tuple[str, ...]  # [D]
    ops: OpIntervals
    transfers: TransferIntervals
    edges: IntArray  # [E, 2] producer and consumer
    simulated: bool

    def __post_init__(self) -> None:
        n, d = len(self.op_names), len(self.device_names)
        if len(self.op_types) != n:
            raise ValueError(f"timeline {self.name!r} needs {n} op types, not {len(self.op_types)}")
        if self.edges.ndim != 2 or self.edges.shape[1] != 2:
            raise ValueError(f"edges of timeline {self.name!r} must be [E, 2], not {self.edges.shape}")
        for intervals in (self.ops, self.transfers):
            columns = vars(intervals)
            if len({column.shape for column in columns.values()}) != 1:
                raise ValueError(f"the columns of timeline {self.name!r} differ in length")
            for field, column in columns.items():
                limit = n if field == "op" else d if field.endswith("device") else None
                if limit is not None and len(column) and (column.min() < 0 or column.max() >= limit):
                    raise ValueError(f"{field} of timeline {self.name!r} must be below {limit}")
            stretch_s = np.stack([intervals.start_s, intervals.end_s])
            if not (
                np.isfinite(stretch_s).all() and (stretch_s >= 0).all() and (np.diff(stretch_s, axis=0) >= 0).all()
            ):
                raise ValueError(f"an interval of timeline {self.name!r} begins before 0 or ends before it begins")

    @staticmethod
    def of(simulation: Simulation, problem: ScheduleProblem) -> Timeline:
        """The timeline of a simulated run of ``problem``."""
        return Timeline(
            name=problem.name,
            op_names=problem.op_names,
            op_types=problem.labels.types,
            device_names=problem.device_names,
            ops=OpIntervals(np.arange(problem.num_ops), simulation.device, simulation.start_s, simulation.end_s),
            transfers=simulation.transfers,
            edges=np.stack([problem.edge_src, problem.edge_dst], axis=1),
            simulated=True,
        )

    @property
    def end_s(self) -> float:
        """End of the last interval."""
        return float(np.max(np.concatenate([self.ops.end_s, self.transfers.end_s]), initial=0.0))

    @property
    def used_links(self) -> list[tuple[int, int]]:
        """Ordered pairs of devices between which something was sent, sorted."""
        pairs = zip(self.transfers.src_device.tolist(), self.transfers.dst_device.tolist(), strict=True)
        return sorted(set(pairs))


def lanes(start_s: FloatArray, end_s: FloatArray) -> IntArray:
    """[I] a lane for each interval, as few as possible, so that no two in one lane overlap; O(I log I)."""
    lane = np.zeros(len(start_s), dtype=np.int64)
    free: list[int] = []  # lanes that nothing occupies
    busy: list[tuple[float, int]] = []  # end and lane
    for i in np.lexsort((end_s, start_s)).tolist():
        while busy and busy[0][0] <= start_s[i]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane[i] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (float(end_s[i]), int(lane[i])))
    return lane
