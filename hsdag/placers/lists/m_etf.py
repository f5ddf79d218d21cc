"""MEtfPlacer: ETF that counts results as well as weights (Baechi, Jeon et al. 2020)."""

from __future__ import annotations

from hsdag.placers.lists.etf import EtfPlacer, etf_schedule
from hsdag.placers.lists.schedule import ListSchedule
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


class MEtfPlacer(EtfPlacer):
    """ETF with the memory that inference needs; for throughput, weights count here and results in the repair."""

    name = "m-etf"

    def schedule(self, costs: ScheduleProblem) -> ListSchedule:
        return m_etf_schedule(costs)


def m_etf_schedule(problem: ScheduleProblem) -> ListSchedule:
    """The m-ETF schedule; see ``earliest_task_first``. Weights count, and results while they are needed."""
    return etf_schedule(problem, minds_results=True)


PLACER = MEtfPlacer
