"""EtfPlacer: earliest task first."""

from __future__ import annotations

from typing import ClassVar

from hsdag.ir.graph import FloatArray
from hsdag.placers.lists.base import SchedulePlacer
from hsdag.placers.lists.earliest_task_first import earliest_task_first
from hsdag.placers.lists.schedule import ListSchedule
from hsdag.placers.lists.tables import Tables, levels_of, tables_of
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


class EtfPlacer(SchedulePlacer):
    """Hwang et al. 1989; for throughput the least loaded device takes the ready op of the largest static level."""

    name = "etf"
    by_start = True
    with_results: ClassVar[bool] = False
    """Whether results count in memories beside weights."""

    def priority(self, costs: ScheduleProblem, tables: Tables) -> FloatArray:  # noqa: ARG002
        return levels_of(tables).static_s

    def schedule(self, costs: ScheduleProblem) -> ListSchedule:
        tables = tables_of(costs)
        return earliest_task_first(tables, self.priority(costs, tables), with_results=self.with_results)


PLACER = EtfPlacer
