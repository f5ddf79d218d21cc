"""Baselines to beat: the best single device, every op where it is fastest, and random placements.

Legend: U placement units, B plans.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hsdag.base.errors import OptionError, option
from hsdag.ir.graph.computation_graph import IntArray
from hsdag.methods.base import NoOptions, Placer, Preset
from hsdag.methods.incumbent import Incumbent, Status
from hsdag.methods.lists.base import ListPlacer
from hsdag.methods.memory_repair import fastest_devices, repaired
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem

NONE_ALONE = "no single device runs the whole model"


class BestDevicePlacer(Placer[NoOptions]):
    """The best of all single devices that support every unit."""

    name = "best-device"
    needs_costs = False
    learns = True
    num_tried = 0.0

    @classmethod
    def presets(cls, *, is_cheap: bool) -> dict[str, Preset[NoOptions]]:  # noqa: ARG003
        """Return a preset that measures, since there are few single devices."""
        return {"default": Preset(NoOptions(), reward="measured")}

    def check(self, problem: Problem) -> None:
        """Raise OptionError, also if no device supports all units."""
        super().check(problem)
        if not problem.supported.all(axis=0).any():
            raise OptionError(f"{NONE_ALONE}: none supports all its ops; use {option('method')} hsdag")

    def _search(self, incumbent: Incumbent) -> Status:
        able = np.flatnonzero(incumbent.problem.supported.all(axis=0)).tolist()
        scores = incumbent.evaluate([Plan(np.full(incumbent.problem.num_units, d)) for d in able])
        if incumbent.best is None:
            reasons = "; ".join((score.failure or "").strip().partition("\n")[0] for score in scores)
            raise OptionError(f"{NONE_ALONE}: {reasons}; use {option('method')} hsdag")
        return Status.FEASIBLE


class MetPlacer(ListPlacer[NoOptions]):
    """Minimum execution time (DiviML, section V-A), for latency and throughput; ignores transfers."""

    name = "met"
    gives_order = False

    def proposals(self, problem: Problem, seed: int) -> Iterator[Plan]:  # noqa: ARG002
        """Yield one plan."""
        yield Plan(fastest_devices(problem.known_costs))


DRAWN_AT_ONCE = 64
"""Placements that are drawn and evaluated together if plans are simulated."""
MOST_REPEATS = 10.0
"""Stop after drawing this many times as many placements as exist, when hardly any has been missed."""


class RandomPlacer(Placer[NoOptions]):
    """The best of as many uniformly random placements as the budget allows.

    Placements that exceed a memory are repaired if costs are known. The order of ops is left to the executor.
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
                placements = [repaired(problem.costs, placement, problem.semantics) for placement in placements]
            incumbent.evaluate([Plan(placement) for placement in placements])
            drawn += count
        return Status.FEASIBLE if drawn >= most else Status.TIME_LIMIT


def uniform_placements(problem: Problem, count: int, rng: np.random.Generator) -> IntArray:
    """Draw placements, [B, U], with each unit on any device that supports it with equal probability."""
    supporting = np.argsort(~problem.supported, axis=1, kind="stable")  # [U, D] devices that support a unit first
    chosen = (rng.random((count, problem.num_units)) * problem.supported.sum(axis=1)).astype(np.int64)
    return np.asarray(supporting[np.arange(problem.num_units), chosen], dtype=np.int64)
