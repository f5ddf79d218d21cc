"""CriticalPathPlacer: the op with the longest way to the end first, where it can start first; the best of many runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hsdag.placers.base import PlacerSettings
from hsdag.placers.lists.base import ListPlacer, Proposal
from hsdag.placers.lists.load_balance import balanced_placement
from hsdag.placers.lists.schedule import list_schedule
from hsdag.placers.lists.tables import levels_of, tables_of
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.objectives.throughput import THROUGHPUT
from hsdag.runtime.problems.schedule_problem import ScheduleProblem

NUM_RUNS = 50
"""DOPPLER, section 6: 50 assignments, and the best is reported."""
SPREAD = 0.05
"""Levels of all runs but the first are multiplied by a random factor between 1 - SPREAD and 1 + SPREAD."""


class CriticalPathPlacer(ListPlacer):
    """CRITICAL PATH (Kwok & Ahmad 1999), DOPPLER's baseline and teacher.

    Select: of the ready ops the one with the largest b-level, the longest way to the end with its own time and
    communication (the literature's name; DOPPLER calls it the t-level). Place: on the device where it can start
    first, then ends first, behind all that the device has. DOPPLER does not say how its runs differ; here equal
    levels and devices are taken at random, and levels within ``SPREAD`` of each other may change places. The first
    run has no randomness. For throughput, the device that is least loaded without the op stands for the earliest
    start.
    """

    name = "critical-path"

    def proposals(self, costs: ScheduleProblem, objective: Objective) -> Iterator[Proposal]:
        """NUM_RUNS placements; the same seed gives the same ones."""
        tables = tables_of(costs)
        level_s = levels_of(tables).upward_s
        rng = np.random.default_rng(self._settings.seed)
        for run in range(NUM_RUNS):
            factor = rng.uniform(1 - SPREAD, 1 + SPREAD, costs.num_ops) if run else np.ones(costs.num_ops)
            devices = rng.permutation(costs.num_devices) if run else np.arange(costs.num_devices)
            if objective is THROUGHPUT:
                links = self._settings.semantics.links
                yield Proposal(balanced_placement(tables, level_s * factor, links, by_start=True))
            else:
                yield Proposal.of(list_schedule(tables, level_s * factor, by_start=True, device_order=devices))


def make(settings: PlacerSettings) -> CriticalPathPlacer:
    """The placer of this method."""
    return CriticalPathPlacer(settings)
