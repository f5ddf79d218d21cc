"""MetPlacer: every op on the device that runs it fastest."""

from __future__ import annotations

from collections.abc import Iterator

from hsdag.placers.base import NoOptions
from hsdag.placers.lists.base import ListPlacer
from hsdag.placers.memory_repair import fastest_devices
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem


class MetPlacer(ListPlacer[NoOptions]):
    """Minimum execution time (DiviML, section V-A), for both latency and throughput; transfers do not count."""

    name = "met"
    gives_order = False

    def proposals(self, problem: Problem, seed: int) -> Iterator[Plan]:  # noqa: ARG002
        """One placement."""
        assert problem.costs is not None
        yield Plan(fastest_devices(problem.costs))


PLACER = MetPlacer
