"""EtfPlacer: earliest task first."""

from __future__ import annotations

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

    def schedule(self, costs: ScheduleProblem) -> ListSchedule:
        return etf_schedule(costs)

    def priority(self, costs: ScheduleProblem, tables: Tables) -> FloatArray:  # noqa: ARG002
        return levels_of(tables).static_s


def etf_schedule(problem: ScheduleProblem, *, minds_results: bool = False) -> ListSchedule:
    """The ETF schedule; see ``earliest_task_first``. Of the memories weights count, and for m-ETF results too."""
    tables = tables_of(problem)
    return earliest_task_first(tables, levels_of(tables).static_s, with_results=minds_results)


PLACER = EtfPlacer
