"""CpopPlacer: critical path on a processor."""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph import BoolArray, FloatArray, IntArray
from hsdag.placers.lists.base import SchedulePlacer
from hsdag.placers.lists.schedule import ListSchedule, list_schedule
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.tables import Levels, Tables, levels_of, on_grid, tables_of


class CpopPlacer(SchedulePlacer):
    """Topcuoglu et al. 2002, section 4.2: ready ops by upward plus downward rank, a critical path on one device.

    That device takes the least time for the path among those that support all of it; where there is none, the path
    is treated like other ops, which go into the idle time where they end first. For throughput, ops in the same order
    balance the loads, without a path.
    """

    name = "cpop"

    def priority(self, costs: ScheduleProblem, tables: Tables) -> FloatArray:  # noqa: ARG002
        levels = levels_of(tables)
        return on_grid(levels.upward_s + levels.downward_s)

    def schedule(self, costs: ScheduleProblem) -> ListSchedule:
        tables = tables_of(costs)
        path = critical_path(levels_of(tables), np.diff(tables.in_first) == 0)
        path_s = tables.time_s[path].sum(axis=0)
        pinned = np.full(costs.num_ops, -1, dtype=np.int64)
        if np.isfinite(path_s.min()):
            pinned[path] = int(np.argmin(path_s))
        return list_schedule(tables, self.priority(costs, tables), insertion=True, pinned=pinned)


def critical_path(levels: Levels, is_entry: BoolArray) -> IntArray:
    """The ops of a longest path at mean costs, in order, from one of the ops without inputs; ties by op index."""
    path = [int(np.argmax(np.where(is_entry, levels.upward_s, -1.0)))]
    while levels.heaviest[path[-1]] >= 0:
        path.append(int(levels.heaviest[path[-1]]))
    return np.asarray(path, dtype=np.int64)


PLACER = CpopPlacer
