"""The methods that others have to beat: the best single device, every op where it is fastest, random placements.

Legend: U placement units, B plans.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.computation_graph import IntArray
from hsdag.methods.base import NoOptions, Placer, Preset
from hsdag.methods.incumbent import Incumbent, Status
from hsdag.methods.lists.base import ListPlacer
from hsdag.methods.memory_repair import fastest_devices, repaired
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem

NONE_ALONE = "no single device runs the whole model"


class BestDevicePlacer(Placer[NoOptions]):
    """Tries every device that supports all units."""

    name = "best-device"
    needs_costs = False
    learns = True
    num_tried = 0.0

    @classmethod
    def presets(cls, *, is_cheap: bool) -> dict[str, Preset[NoOptions]]:  # noqa: ARG003
        """Devices alone are few, and measured."""
        return {"default": Preset(NoOptions(), reward="measured")}

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Raise OptionError when no device supports all units, too."""
        super().check(problem)
        if not problem.supported.all(axis=0).any():
            raise OptionError(f"{NONE_ALONE}: none supports all its ops; use --method hsdag")

    def _search(self, incumbent: Incumbent) -> Status:
        able = np.flatnonzero(incumbent.problem.supported.all(axis=0)).tolist()
        scores = incumbent.evaluate([Plan(np.full(incumbent.problem.num_units, d)) for d in able])
        if incumbent.best is None:
            reasons = "; ".join((score.failure or "").strip().partition("\n")[0] for score in scores)
            raise OptionError(f"{NONE_ALONE}: {reasons}; use --method hsdag")
        return Status.FEASIBLE


class MetPlacer(ListPlacer[NoOptions]):
    """Minimum execution time (DiviML, section V-A), for both latency and throughput; transfers do not count."""

    name = "met"
    gives_order = False

    def proposals(self, problem: Problem, seed: int) -> Iterator[Plan]:  # noqa: ARG002
        """One placement."""
        yield Plan(fastest_devices(problem.known_costs))


DRAWN_AT_ONCE = 64
MOST_REPEATS = 10.0
"""Draws for each placement that there is, after which hardly one was missed."""


class RandomPlacer(Placer[NoOptions]):
    """The best of as many random placements as the budget allows; each unit on any of its devices, all alike.

    Placements that exceed a memory are repaired where costs are known. The order is the executor's.
    """

    name = "random"
    is_seeded = True
    needs_costs = False

    def _search(self, incumbent: Incumbent) -> Status:
        problem = incumbent.problem
        drawn = 0
        rng = np.random.default_rng(incumbent.limits.seed)
        count = DRAWN_AT_ONCE if incumbent.is_cheap else 1
        most = MOST_REPEATS * float(np.prod(problem.supported.sum(axis=1), dtype=np.float64))
        while drawn < most and incumbent.left_s > 0:
            placements = list(uniform_placements(problem, count, rng))
            if problem.costs is not None:
                placements = [repaired(problem.costs, each, problem.semantics) for each in placements]
            incumbent.evaluate([Plan(each) for each in placements])
            drawn += count
        return Status.FEASIBLE if drawn >= most else Status.TIME_LIMIT


def uniform_placements(problem: Problem, count: int, rng: np.random.Generator) -> IntArray:
    """[B, U] placements; every unit is on each device that supports it with the same probability."""
    supporting = np.argsort(~problem.supported, axis=1, kind="stable")  # [U, D] devices that support a unit first
    chosen = (rng.random((count, problem.num_units)) * problem.supported.sum(axis=1)).astype(np.int64)
    return np.asarray(supporting[np.arange(problem.num_units), chosen], dtype=np.int64)
