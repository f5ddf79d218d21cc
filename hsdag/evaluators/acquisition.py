"""Which simulated plans to measure next: those of the largest expected improvement, unlike each other.

A simulation of a plan over several devices is wrong by a factor that is alike for plans that are alike. Its logarithm
r(x), measured over simulated value, is taken as a Gaussian process over placements x of mean 0 and covariance
a^2 exp(-h(x, x') / l), where h is the share of the work that the two put on different devices. What was measured, with
its scatter, gives r a posterior mean m and deviation s at every candidate (Rasmussen and Williams 2006, eqs. 2.23 and
2.24), so that a candidate of simulated value v is expected at mu = v exp(m), give or take sigma = mu s. Against the
least measured value f its expected improvement is (f - mu) Phi(z) + sigma phi(z) with z = (f - mu) / sigma (Jones,
Schonlau and Welch 1998, eq. 15): large for what promises much, and for what little is known of. A plan that is chosen
is taken to come out at its mu, which leaves little doubt, and little to gain, of plans like it (the kriging believer of
Ginsbourger, Le Riche and Carraro 2010): that keeps a batch diverse.

Legend: U placement units, B candidates, M measured plans.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from scipy.special import ndtr

from hsdag.ir.graph import FloatArray, IntArray

AMPLITUDES, LENGTHS = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4), (0.15, 0.05, 0.5)
"""The choices of a, an error of simulated values, and l, a share of the work: the most probable ones count,
the first length where they are as good."""

USUAL_AMPLITUDE = 0.05
"""Before anything is known, ln a is normal around the logarithm of this with deviation 1."""

SCATTER = 0.01
"""Of measured values, as a share."""

LEAST_VARIANCE = 1e-12
"""Rounding may leave less, or less than nothing."""

LEAST_GAIN = 1e-3
"""What is expected to improve on the best by a smaller share is not worth measuring."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The least value measured, and what is known of plans over several devices.

    Those measured are placements [M, U] with measured and simulated values [M]; ``work`` are shares of the units [U].
    """

    best: float
    placements: IntArray
    measured: FloatArray
    simulated: FloatArray
    work: FloatArray

    def apart(self, placements: IntArray) -> FloatArray:
        """[B, M] the share of the work that placements [B, U] and those measured have on different devices."""
        found: FloatArray = np.empty((len(placements), len(self.placements)))
        for i, each in enumerate(self.placements):
            found[:, i] = (placements != each) @ self.work
        return found


Rule: TypeAlias = Callable[[IntArray, FloatArray, Evidence, int], list[int]]
"""Chooses from placements [B, U] of simulated values [B], given the evidence: indices of at most so many, in order."""


def expected_improvement(placements: IntArray, simulated: FloatArray, evidence: Evidence, count: int) -> list[int]:
    """A ``Rule``: see the module. Where no plan runs so far, the least simulated values."""
    if not np.isfinite(evidence.best):
        return [int(i) for i in np.argsort(simulated, kind="stable")[:count]]
    chosen: list[int] = []
    amplitude, length = _most_probable(evidence)
    while len(chosen) < count:
        mean, deviation = _posterior(placements, evidence, amplitude, length)
        expected = simulated * np.exp(mean)
        gains = improvement(evidence.best, expected, expected * deviation)
        gains[chosen] = 0.0
        first = int(np.argmax(gains))
        if gains[first] < LEAST_GAIN * evidence.best:
            break
        chosen.append(first)
        evidence = replace(
            evidence,
            best=min(evidence.best, float(expected[first])),
            placements=np.concatenate([evidence.placements, placements[first, None]]),
            measured=np.append(evidence.measured, expected[first]),
            simulated=np.append(evidence.simulated, simulated[first]),
        )
    return chosen


def improvement(best: float, mean: FloatArray, deviation: FloatArray) -> FloatArray:
    """[B] by how much normal values of these means and deviations [B], more than 0, are below ``best``, on average."""
    z = (best - mean) / deviation
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return np.asarray((best - mean) * ndtr(z) + deviation * density, dtype=np.float64)


def _most_probable(evidence: Evidence) -> tuple[float, float]:
    """The amplitude and the length that explain the evidence best (Rasmussen and Williams 2006, eq. 2.30)."""
    errors, apart = np.log(evidence.measured / evidence.simulated), evidence.apart(evidence.placements)

    def log_probability(choice: tuple[float, float]) -> float:
        covariance = _covariance(apart, *choice)
        fit = errors @ np.linalg.solve(covariance, errors) + np.linalg.slogdet(covariance)[1]
        return float(-0.5 * (fit + np.log(choice[0] / USUAL_AMPLITUDE) ** 2))

    return max(itertools.product(AMPLITUDES, LENGTHS), key=log_probability)


def _posterior(
    placements: IntArray, evidence: Evidence, amplitude: float, length: float
) -> tuple[FloatArray, FloatArray]:
    """[B] means and deviations of ln(measured / simulated), without the scatter of measuring."""
    errors, apart = np.log(evidence.measured / evidence.simulated), evidence.apart(evidence.placements)
    shared = amplitude**2 * np.exp(-evidence.apart(placements) / length)
    weights = np.linalg.solve(_covariance(apart, amplitude, length), shared.T).T
    variance = np.maximum(amplitude**2 - (weights * shared).sum(axis=1), LEAST_VARIANCE)
    return np.asarray(weights @ errors, dtype=np.float64), np.asarray(np.sqrt(variance), dtype=np.float64)


def _covariance(apart: FloatArray, amplitude: float, length: float) -> FloatArray:
    """[M, M] of the errors of what was measured."""
    return np.asarray(amplitude**2 * np.exp(-apart / length) + SCATTER**2 * np.eye(len(apart)), dtype=np.float64)
