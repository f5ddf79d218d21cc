"""EtfPlacer: earliest task first."""

from __future__ import annotations

from collections.abc import Iterator

from hsdag.placers.base import PlacerSettings
from hsdag.placers.lists.base import ListPlacer, Proposal
from hsdag.placers.lists.earliest_task_first import earliest_task_first
from hsdag.placers.lists.load_balance import balanced_placement
from hsdag.placers.lists.schedule import ListSchedule
from hsdag.placers.lists.tables import levels_of, tables_of
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.objectives.throughput import THROUGHPUT
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


class EtfPlacer(ListPlacer):
    """Hwang et al. 1989; for throughput the least loaded device takes the ready op of the largest level.

    ``minds_results`` is m-ETF, Baechi's (Jeon et al. 2020), with the memory that inference needs: for throughput
    weights count while it places, results when the placement is repaired.
    """

    def __init__(self, settings: PlacerSettings, *, minds_results: bool = False) -> None:
        super().__init__(settings)
        self.name = "m-etf" if minds_results else "etf"
        self._minds_results = minds_results

    def proposals(self, costs: ScheduleProblem, objective: Objective) -> Iterator[Proposal]:
        """One placement."""
        if objective is THROUGHPUT:
            tables = tables_of(costs)
            links = self._settings.semantics.links
            yield Proposal(balanced_placement(tables, levels_of(tables).static_s, links, by_start=True))
        else:
            yield Proposal.of(etf_schedule(costs, minds_results=self._minds_results))


def etf_schedule(problem: ScheduleProblem, *, minds_results: bool = False) -> ListSchedule:
    """The ETF schedule; see ``earliest_task_first``. Of the memories weights count, and for m-ETF results too."""
    tables = tables_of(problem)
    return earliest_task_first(tables, levels_of(tables).static_s, with_results=minds_results)


def make(settings: PlacerSettings) -> EtfPlacer:
    """The placer of this method."""
    return EtfPlacer(settings)
