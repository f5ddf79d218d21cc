"""BestDevicePlacer: the whole model on the one device that runs it fastest."""

from __future__ import annotations

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.placers.base import NoOptions, Placer, Preset
from hsdag.placers.incumbent import Incumbent, Status
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem

NONE_ALONE = "no single device runs the whole model"


class BestDevicePlacer(Placer[NoOptions]):
    """Tries every device that supports all units."""

    name = "best-device"
    needs_costs = False
    learns = True

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


PLACER = BestDevicePlacer
