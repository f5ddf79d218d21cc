"""MEtfPlacer: ETF that minds results as well as weights (Baechi, Jeon et al. 2020)."""

from __future__ import annotations

from hsdag.ir.graph import IntArray
from hsdag.placers.lists.base import SchedulePlacer
from hsdag.placers.lists.etf import EtfPlacer, etf_schedule
from hsdag.placers.lists.schedule import ListSchedule
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Links


class MEtfPlacer(SchedulePlacer):
    """ETF with the memory that inference needs; for throughput, weights count here and results in the repair."""

    name = "m-etf"

    def schedule(self, costs: ScheduleProblem) -> ListSchedule:
        """See ``m_etf_schedule``."""
        return m_etf_schedule(costs)

    def balanced(self, costs: ScheduleProblem, links: Links) -> IntArray:
        """As ETF."""
        return EtfPlacer().balanced(costs, links)


def m_etf_schedule(problem: ScheduleProblem) -> ListSchedule:
    """The m-ETF schedule; see ``earliest_task_first``. Weights count, and results while they are needed."""
    return etf_schedule(problem, minds_results=True)


PLACER = MEtfPlacer
