"""HeftPlacer: heterogeneous earliest finish time."""

from __future__ import annotations

from hsdag.ir.graph import FloatArray
from hsdag.placers.lists.base import SchedulePlacer
from hsdag.placers.lists.schedule import ListSchedule, list_schedule
from hsdag.placers.lists.tables import Tables, levels_of, tables_of
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


class HeftPlacer(SchedulePlacer):
    """Topcuoglu et al. 2002, section 4.1; for throughput ops in the same order balance the loads."""

    name = "heft"

    def schedule(self, costs: ScheduleProblem) -> ListSchedule:
        return heft_schedule(costs)

    def priority(self, costs: ScheduleProblem, tables: Tables) -> FloatArray:  # noqa: ARG002
        return levels_of(tables).upward_s


def heft_schedule(problem: ScheduleProblem) -> ListSchedule:
    """The HEFT schedule: ops by upward rank, each in the idle time where it ends first.

    Ties go by op index, then by device index; an op is never placed before its inputs, equal ranks or not. Idle
    time between ops counts when its length is positive. Near O((N + E) D + N log N).
    """
    tables = tables_of(problem)
    return list_schedule(tables, levels_of(tables).upward_s, insertion=True)


PLACER = HeftPlacer
