"""Ticks: the whole numbers in which CP-SAT keeps time, with the length of one beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hsdag.ir.graph import FloatArray, IntArray

MOST_TICKS = 2**30
"""In a horizon: the presolve of OR-Tools 9.15 errs where products of two times leave 64 bits."""
MOST_COUNTED = 2**62
ONE_ROUNDING, ROUNDINGS = 1e-14, 1e-12
"""Shares of a number of ticks that are the rounding of one double, and of a sum of many."""
BEYOND = 1e-9
"""Share of the horizon by which a duration has to exceed it: sums of many round."""


@dataclass(frozen=True)
class Ticks:
    """Durations as whole numbers of ``length_s``, rounded down: what a schedule takes in ticks bounds it from below.

    For starts and durations of any schedule, floor(s + d) >= floor(s) + floor(d), so that every schedule in seconds
    is one in ticks. ``is_exact`` says that no duration had to be rounded. What takes longer than ``most`` ticks counts
    as that: no schedule within the horizon has room for it.
    """

    length_s: float
    is_exact: bool = False
    most: int = MOST_COUNTED

    def __post_init__(self) -> None:
        if not 0 < self.length_s < float("inf"):
            raise ValueError(f"a tick must be a positive number of seconds, not {self.length_s}")

    @staticmethod
    def choose(durations_s: Iterable[ArrayLike], horizon_s: float) -> Ticks:
        """The longest power of ten that divides all of ``durations_s``, else a fine share of the horizon.

        Durations beyond the horizon are part of no schedule within it, and do not count. NaN stands for what does not
        exist.
        """
        values = np.concatenate([np.ravel(np.asarray(table, dtype=np.float64)) for table in durations_s])
        values = np.unique(values[values <= horizon_s * (1 + BEYOND)])
        if horizon_s <= 0:
            return Ticks(1.0, True)
        for power in range(3, -16, -1):
            length_s = 10.0**power
            if horizon_s / length_s > MOST_TICKS:
                break
            counts = values / length_s
            if np.all(np.abs(counts - np.rint(counts)) <= ONE_ROUNDING * np.maximum(np.rint(counts), 0.5)):
                return Ticks(length_s, True, _beyond(horizon_s / length_s))
        return Ticks(horizon_s / MOST_TICKS, most=_beyond(MOST_TICKS))

    def down(self, seconds: ArrayLike) -> IntArray:
        """Whole ticks within ``seconds``, ``most`` at most; 0 where there is no number."""
        counts = np.minimum(np.nan_to_num(np.asarray(seconds, dtype=np.float64) / self.length_s, nan=0.0), self.most)
        nearest = np.rint(counts)
        near = np.abs(counts - nearest) <= ROUNDINGS * np.maximum(nearest, 0.5)
        return np.where(near, nearest, np.floor(counts)).astype(np.int64)

    def seconds(self, ticks: ArrayLike) -> FloatArray:
        """Ticks in seconds."""
        return np.asarray(np.asarray(ticks, dtype=np.float64) * self.length_s, dtype=np.float64)


def _beyond(horizon_ticks: float) -> int:
    """More ticks than any model with this horizon has: one for rounding, and what durations may exceed it by."""
    return int(np.ceil(horizon_ticks * (1 + BEYOND))) + 2
