"""BestDevicePlacer: the whole model on the one device that runs it fastest."""

from __future__ import annotations

import numpy as np

from hsdag.evaluators.base import Evaluator
from hsdag.ir.errors import OptionError
from hsdag.ir.graph import IntArray
from hsdag.placers.base import Checkpoint, Placer, PlacerSettings
from hsdag.runtime.problems.problem import Problem


class BestDevicePlacer(Placer):
    """Tries every device that supports all units."""

    def search(self, problem: Problem, evaluator: Evaluator, checkpoint: Checkpoint | None = None) -> IntArray:  # noqa: ARG002
        """The fastest single-device placement [U]. Raises OptionError when none is legal, with the reasons."""
        able = np.flatnonzero(problem.supported.all(axis=0))
        placements = [np.full(problem.num_units, d, dtype=np.int64) for d in able]
        if not placements:
            raise OptionError("no single device runs the whole model: none supports all its ops; use --method hsdag")
        found = evaluator.evaluate(placements)
        best = int(np.argmin([evaluation.seconds for evaluation in found]))
        if found[best].latency_s is None:
            reasons = "; ".join((evaluation.failure or "").strip().partition("\n")[0] for evaluation in found)
            raise OptionError(f"no single device runs the whole model: {reasons}; use --method hsdag")
        return placements[best]


def make(settings: PlacerSettings) -> BestDevicePlacer:  # noqa: ARG001 - nothing to set
    """The placer of this method."""
    return BestDevicePlacer()
