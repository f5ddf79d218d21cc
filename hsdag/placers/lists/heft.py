"""HeftPlacer: heterogeneous earliest finish time."""

from __future__ import annotations

from collections.abc import Iterator

from hsdag.placers.base import PlacerSettings
from hsdag.placers.lists.base import ListPlacer, Proposal
from hsdag.placers.lists.load_balance import balanced_placement
from hsdag.placers.lists.schedule import ListSchedule, list_schedule
from hsdag.placers.lists.tables import levels_of, tables_of
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.objectives.throughput import THROUGHPUT
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


class HeftPlacer(ListPlacer):
    """Topcuoglu et al. 2002, section 4.1; for throughput ops in the same order balance the loads."""

    name = "heft"

    def proposals(self, costs: ScheduleProblem, objective: Objective) -> Iterator[Proposal]:
        """One placement."""
        if objective is THROUGHPUT:
            tables = tables_of(costs)
            priority = levels_of(tables).upward_s
            yield Proposal(balanced_placement(tables, priority, self._settings.semantics.links))
        else:
            yield Proposal.of(heft_schedule(costs))


def heft_schedule(problem: ScheduleProblem) -> ListSchedule:
    """The HEFT schedule: ops by upward rank, each in the idle time where it ends first.

    Ties go by op index, then by device index; an op is never placed before its inputs, equal ranks or not. Idle
    time between ops counts when its length is positive. Near O((N + E) D + N log N).
    """
    tables = tables_of(problem)
    return list_schedule(tables, levels_of(tables).upward_s, insertion=True)


def make(settings: PlacerSettings) -> HeftPlacer:
    """The placer of this method."""
    return HeftPlacer(settings)
