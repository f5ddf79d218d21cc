"""BestDevicePlacer: the whole model on the one device that runs it fastest."""

from __future__ import annotations

import numpy as np

from hsdag.evaluators.base import Evaluator
from hsdag.ir.errors import OptionError
from hsdag.ir.graph import IntArray
from hsdag.placers.base import Checkpoint, Placer, PlacerSettings
from hsdag.runtime.problem import Problem


class BestDevicePlacer(Placer):
    """Tries every device that supports all units."""

    def search(self, problem: Problem, evaluator: Evaluator, checkpoint: Checkpoint | None = None) -> IntArray:  # noqa: ARG002
        """The fastest single-device placement [U]. Raises OptionError when no device runs the whole model."""
        able = np.flatnonzero(problem.supported.all(axis=0))
        placements = [np.full(problem.num_units, d, dtype=np.int64) for d in able]
        latencies = [e.latency_s if e.latency_s is not None else np.inf for e in evaluator.evaluate(placements)]
        if not np.isfinite(min(latencies, default=np.inf)):
            raise OptionError("no single device runs the whole model; use --method hsdag")
        return placements[int(np.argmin(latencies))]


def make(settings: PlacerSettings) -> BestDevicePlacer:  # noqa: ARG001 - nothing to set
    """The placer of this method."""
    return BestDevicePlacer()
