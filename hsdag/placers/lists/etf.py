"""EtfPlacer: earliest task first."""

from __future__ import annotations

from hsdag.ir.graph import IntArray
from hsdag.placers.lists.base import SchedulePlacer
from hsdag.placers.lists.earliest_task_first import earliest_task_first
from hsdag.placers.lists.load_balance import balanced_placement
from hsdag.placers.lists.schedule import ListSchedule
from hsdag.placers.lists.tables import levels_of, tables_of
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Links


class EtfPlacer(SchedulePlacer):
    """Hwang et al. 1989; for throughput the least loaded device takes the ready op of the largest level."""

    name = "etf"

    def schedule(self, costs: ScheduleProblem) -> ListSchedule:
        """See ``etf_schedule``."""
        return etf_schedule(costs)

    def balanced(self, costs: ScheduleProblem, links: Links) -> IntArray:
        """The ready op of the largest static level to the least loaded device."""
        tables = tables_of(costs)
        return balanced_placement(tables, levels_of(tables).static_s, links, by_start=True)


def etf_schedule(problem: ScheduleProblem, *, minds_results: bool = False) -> ListSchedule:
    """The ETF schedule; see ``earliest_task_first``. Of the memories weights count, and for m-ETF results too."""
    tables = tables_of(problem)
    return earliest_task_first(tables, levels_of(tables).static_s, with_results=minds_results)


PLACER = EtfPlacer
