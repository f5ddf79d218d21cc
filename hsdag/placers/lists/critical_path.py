"""CriticalPathPlacer: the op with the longest path to the end first, where it starts first; best of many runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.placers.lists.base import ListPlacer
from hsdag.placers.lists.load_balance import balanced_placement
from hsdag.placers.lists.schedule import list_schedule
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.tables import levels_of, tables_of


@dataclass(frozen=True)
class CriticalPathOptions:
    """Raises OptionError for a value out of range."""

    num_runs: int = 50
    """Assignments, of which the best is reported (DOPPLER, section 6)."""
    spread: float = 0.05
    """Levels of all runs but the first are multiplied by a random factor between 1 - spread and 1 + spread."""

    def __post_init__(self) -> None:
        if self.num_runs < 1 or not 0 <= self.spread < 1:
            raise OptionError("critical-path takes num_runs of at least 1 and a spread in [0, 1)")


class CriticalPathPlacer(ListPlacer[CriticalPathOptions]):
    """CRITICAL PATH (Kwok & Ahmad 1999), DOPPLER's baseline and teacher.

    Select: of the ready ops the one with the largest b-level, the longest way to the end with its own time and
    communication (the literature's name; DOPPLER calls it the t-level). Place: on the device where it can start
    first, then ends first, behind all that the device has. DOPPLER does not say how its runs differ; here equal
    levels and devices are taken at random, and levels within ``spread`` of each other may change places. The first
    run has no randomness. For throughput, the device that is least loaded without the op replaces the earliest
    start.
    """

    name = "critical-path"
    options_type = CriticalPathOptions

    def proposals(self, problem: Problem, seed: int) -> Iterator[Plan]:
        """``num_runs`` plans; the same seed gives the same ones."""
        costs, spread = problem.costs, self.options.spread
        assert costs is not None
        tables = tables_of(costs)
        level_s = levels_of(tables).upward_s
        rng = np.random.default_rng(seed)
        for run in range(self.options.num_runs):
            factor = rng.uniform(1 - spread, 1 + spread, costs.num_ops) if run else np.ones(costs.num_ops)
            devices = rng.permutation(costs.num_devices) if run else np.arange(costs.num_devices)
            if problem.objective.is_steady:
                yield Plan(balanced_placement(tables, level_s * factor, problem.semantics.links, by_start=True))
            else:
                schedule = list_schedule(tables, level_s * factor, by_start=True, device_order=devices)
                yield Plan(schedule.device, schedule.ranks)


PLACER = CriticalPathPlacer
