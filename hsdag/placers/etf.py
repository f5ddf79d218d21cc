"""EtfPlacer: earliest task first."""

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


class EtfPlacer(ListPlacer):
    """Hwang et al. 1989; for throughput the least loaded device takes the ready op of the largest level."""

    name = "etf"

    def proposals(self, costs: ScheduleProblem, objective: Objective) -> Iterator[Proposal]:
        """One placement."""
        if objective is Objective.THROUGHPUT:
            tables = tables_of(costs)
            links = self._settings.semantics.links
            yield Proposal(balanced_placement(tables, levels_of(tables).static_s, links, by_start=True))
        else:
            yield Proposal.of(etf_schedule(costs))


def etf_schedule(problem: ScheduleProblem) -> ListSchedule:
    """The ETF schedule; see ``earliest_task_first``. Of the memories only weights count."""
    tables = tables_of(problem)
    return earliest_task_first(tables, levels_of(tables).static_s, with_results=False)


def make(settings: PlacerSettings) -> EtfPlacer:
    """The placer of this method."""
    return EtfPlacer(settings)
