"""MetPlacer: every op on the device that runs it fastest."""

from __future__ import annotations

from collections.abc import Iterator

from hsdag.placers.base import PlacerSettings
from hsdag.placers.lists.base import ListPlacer, Proposal
from hsdag.placers.memory_repair import fastest_devices
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


class MetPlacer(ListPlacer):
    """Minimum execution time (DiviML, section V-A), for latency and throughput alike; transfers do not count."""

    name = "met"

    def proposals(self, costs: ScheduleProblem, objective: Objective) -> Iterator[Proposal]:  # noqa: ARG002
        """One placement."""
        yield Proposal(fastest_devices(costs))


def make(settings: PlacerSettings) -> MetPlacer:
    """The placer of this method."""
    return MetPlacer(settings)
