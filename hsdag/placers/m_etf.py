"""MEtfPlacer: memory-aware earliest task first."""

from __future__ import annotations

from collections.abc import Iterator

from hsdag.placers.base import PlacerSettings
from hsdag.placers.earliest_task_first import earliest_task_first
from hsdag.placers.list_placer import ListPlacer, Proposal
from hsdag.placers.list_schedule import ListSchedule
from hsdag.placers.list_tables import levels_of, tables_of
from hsdag.placers.load_balance import balanced_placement
from hsdag.runtime.problem import Objective
from hsdag.runtime.schedule_problem import ScheduleProblem


class MEtfPlacer(ListPlacer):
    """Baechi (Jeon et al. 2020), with the memory that inference needs.

    For throughput the least loaded device takes the ready op of the largest level; weights count while it places,
    results when the placement is repaired.
    """

    name = "m-etf"

    def proposals(self, costs: ScheduleProblem, objective: Objective) -> Iterator[Proposal]:
        """One placement."""
        if objective is Objective.THROUGHPUT:
            tables = tables_of(costs)
            links = self._settings.semantics.links
            yield Proposal(balanced_placement(tables, levels_of(tables).static_s, links, by_start=True))
        else:
            yield Proposal.of(m_etf_schedule(costs))


def m_etf_schedule(problem: ScheduleProblem) -> ListSchedule:
    """The m-ETF schedule; see ``earliest_task_first``. Weights count, and results while they are needed."""
    tables = tables_of(problem)
    return earliest_task_first(tables, levels_of(tables).static_s, with_results=True)


def make(settings: PlacerSettings) -> MEtfPlacer:
    """The placer of this method."""
    return MEtfPlacer(settings)
