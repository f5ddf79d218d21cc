"""Contention: how much devices that share hardware slow each other down. Legend: D devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.stats import t as student_t

from hsdag.ir.graph import FloatArray

KINDS = ("compute", "memory", "model")
"""What is run on two devices at once: small models bound by the one or the other, and the placed model itself."""

Rounds: TypeAlias = Sequence[tuple[float, float]]
"""Seconds of an inference alone, and beside another device."""

CONFIDENCE = 0.95
"""With which a factor is at least what the lower end of its interval says."""


@dataclass(frozen=True, eq=False)
class Contention:
    """Factors [D, D] by kind, of a device's time for an inference while the device of the column is busy too.

    They are at least 1, and NaN where nothing was measured. A factor is that of the least times of all rounds, for
    whatever else runs on the machine only adds, and to two devices more than to one. ``least`` are the lower ends of
    one-sided intervals of Student's t on the logarithms of rounds' ratios, and no more than the factors.
    """

    factor: Mapping[str, FloatArray]
    least: Mapping[str, FloatArray]

    @staticmethod
    def of(samples: Mapping[str, Sequence[Sequence[Rounds]]], num_devices: int) -> Contention:
        """The factors of times by kind, pair [D, D] and round; kinds and pairs may be missing."""
        factor = {kind: np.full((num_devices, num_devices), np.nan) for kind in KINDS}
        least = {kind: table.copy() for kind, table in factor.items()}
        for kind, table in samples.items():
            for a, row in enumerate(table):
                for b, rounds in enumerate(row):
                    if len(rounds) > 1:
                        factor[kind][a, b], least[kind][a, b] = _factor(*np.transpose(rounds))
        return Contention(factor, least)

    @property
    def slowdown(self) -> FloatArray:
        """[D, D] what a simulation takes: of the model where it was measured, else the mean of the two small ones.

        NaN where nothing was measured.
        """
        small = 0.5 * (self.factor["compute"] + self.factor["memory"])
        found: FloatArray = np.where(np.isnan(self.factor["model"]), small, self.factor["model"])
        np.fill_diagonal(found, 1.0)
        return found


def _factor(alone_s: FloatArray, beside_s: FloatArray) -> tuple[float, float]:
    """The factor of rounds [R], and the lower end of its interval."""
    factor, logs = float(beside_s.min() / alone_s.min()), np.log(beside_s / alone_s)
    error = float(student_t.ppf(CONFIDENCE, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs)))
    return max(1.0, factor), max(1.0, min(factor, float(np.exp(logs.mean() - error))))
