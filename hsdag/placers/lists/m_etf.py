"""Memory-aware earliest task first: ETF that minds results as well as weights (Baechi, Jeon et al. 2020)."""

from __future__ import annotations

from hsdag.placers.base import PlacerSettings
from hsdag.placers.lists.etf import EtfPlacer, etf_schedule
from hsdag.placers.lists.schedule import ListSchedule
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


def m_etf_schedule(problem: ScheduleProblem) -> ListSchedule:
    """The m-ETF schedule; see ``earliest_task_first``. Weights count, and results while they are needed."""
    return etf_schedule(problem, minds_results=True)


def make(settings: PlacerSettings) -> EtfPlacer:
    """The placer of this method."""
    return EtfPlacer(settings, minds_results=True)
