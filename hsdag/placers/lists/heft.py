"""HeftPlacer: heterogeneous earliest finish time."""

from __future__ import annotations

from hsdag.ir.graph import FloatArray
from hsdag.placers.lists.base import SchedulePlacer
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.tables import Tables, levels_of


class HeftPlacer(SchedulePlacer):
    """Topcuoglu et al. 2002, section 4.1: ops by upward rank, each in the idle time where it ends first.

    Idle time between ops counts when its length is positive. For throughput, ops in the same order balance the loads.
    """

    name = "heft"
    insertion = True

    def priority(self, costs: ScheduleProblem, tables: Tables) -> FloatArray:  # noqa: ARG002
        return levels_of(tables).upward_s


PLACER = HeftPlacer
