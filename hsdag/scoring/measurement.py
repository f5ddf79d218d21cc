"""SearchMeasurement: how often a plan is run during a search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

Run: TypeAlias = Callable[[int], Sequence[float]]
"""Values of the objective over so many inferences."""


@dataclass(frozen=True)
class SearchMeasurement:
    """How a placement is measured during a search: ``warm_ups`` runs, then the median of up to ``runs``.

    A placement whose first runs are ``give_up`` times slower than the best so far is not measured further.
    The HSDAG paper (Table 2) takes 10 runs and the mean of the last 5: ``paper()``.
    """

    warm_ups: int = 2
    runs: int = 7
    give_up: float = 1.5
    use_mean: bool = False

    def seconds(self, run: Run, best_s: float) -> float:
        """What a placement takes whose inferences ``run`` times, where the best so far takes ``best_s``."""
        first_s = min(run(self.warm_ups), default=0.0)
        if first_s > self.give_up * best_s:
            return float(first_s)
        times_s = run(self.runs)
        return float(np.mean(times_s) if self.use_mean else np.median(times_s))

    @staticmethod
    def paper() -> SearchMeasurement:
        """Table 2 of the HSDAG paper."""
        return SearchMeasurement(warm_ups=5, runs=5, give_up=float("inf"), use_mean=True)
