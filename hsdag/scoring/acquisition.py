"""Which simulated plans to measure next: those of the largest expected improvement, unlike each other.

What a simulation leaves unknown of a plan over several devices is taken as the sum of an error of every edge that it
cuts (a broken fusion, a change of layout) and one of every unit on its device, all independent and normal with mean 0:
of c seconds for an edge, of w times its duration for a unit. So the errors of plans x and x' have the covariance
c^2 |cuts of both| + w^2 sum of t_u^2 over the units u on the same device in both, which is the product of their rows of
features: c for each edge that is cut, w t_u for each unit on its device. This is a Gaussian process. Measured plans,
with their scatter, give the error of every candidate a posterior mean and deviation (Rasmussen and Williams 2006, eqs.
2.23 and 2.24); c and w are those that explain them best (eq. 2.30). A candidate is then expected at mu, its simulated
value with the mean error, give or take sigma. Against the least measured value f its expected improvement is
(f - mu) Phi(z) + sigma phi(z) with z = (f - mu) / sigma (Jones, Schonlau and Welch 1998, eq. 15): large for what
promises much, and for what little is known of. A plan that is chosen is taken to come out at its mu, which leaves
little doubt, and little to gain, of plans like it (the kriging believer of Ginsbourger, Le Riche and Carraro 2010):
that keeps a batch diverse.

Legend: U placement units, D devices, E edges between units, B candidates, M measured plans, F = E + U D features.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from hsdag.ir.graph.computation_graph import FloatArray, IntArray

CUT_SHARES, UNIT_SHARES = (0.005, 0.0025, 0.01, 0.00125, 0.02), (0.1, 0.03, 0.3)
"""The choices of c, as a share of the least measured value, and of w; ahead the usual ones, whose logarithms are the
means of normal distributions with deviation 1 before anything is known."""

SCATTER = 0.01
"""Of measured values, as a share."""

LEAST_MEAN, LEAST_VARIANCE = -0.9, 1e-12
"""Bounds on relative errors: values are positive, and rounding may leave less variance than nothing."""

LEAST_GAIN = 1e-4
"""What is expected to improve on the best by a smaller share is not worth measuring."""


@dataclass(frozen=True, eq=False)
class Terms:
    """What the values of plans are made of: edges [E] between units, and seconds [U, D] of units on devices."""

    edge_src: IntArray
    edge_dst: IntArray
    time_s: FloatArray

    def features(self, placements: IntArray, cut_s: float, share: float) -> FloatArray:
        """[B, F] of placements [B, U]: ``cut_s`` seconds for an edge that is cut, a share of those of a unit there."""
        is_cut = placements[:, self.edge_src] != placements[:, self.edge_dst]
        is_there = placements[:, :, None] == np.arange(self.time_s.shape[1])
        of_units = np.where(is_there, share * self.time_s, 0.0).reshape(len(placements), self.time_s.size)
        return np.concatenate([cut_s * is_cut, of_units], axis=1)


@dataclass(frozen=True, eq=False)
class Evidence:
    """The least value measured, and the plans over several devices that were measured.

    These are placements [M, U] with measured and simulated values [M].
    """

    best: float
    placements: IntArray
    measured: FloatArray
    simulated: FloatArray
    terms: Terms

    @property
    def errors(self) -> FloatArray:
        """[M] of simulated values, as shares of them."""
        return np.asarray(self.measured / self.simulated - 1.0, dtype=np.float64)

    def features(self, cut_s: float, share: float) -> FloatArray:
        """[M, F] of their relative errors."""
        return np.asarray(self.terms.features(self.placements, cut_s, share) / self.simulated[:, None])


def expected_improvement(placements: IntArray, simulated: FloatArray, evidence: Evidence, count: int) -> list[int]:
    """Which of placements [B, U] of simulated values [B] to measure next: indices of at most ``count``, in order.

    Where no plan runs so far, those of the least simulated values; else see the module.
    """
    if not np.isfinite(evidence.best):
        return [int(i) for i in np.argsort(simulated, kind="stable")[:count]]
    cut_s, share = _most_probable(evidence)
    features = evidence.terms.features(placements, cut_s, share) / simulated[:, None]
    known, errors, best = evidence.features(cut_s, share), evidence.errors, evidence.best
    chosen: list[int] = []
    while len(chosen) < count:
        mean, deviation = _posterior(features, known, errors)
        expected = simulated * (1.0 + mean)
        gains = improvement(best, expected, simulated * deviation)
        gains[chosen] = 0.0
        first = int(np.argmax(gains))
        if gains[first] < LEAST_GAIN * best:
            break
        chosen.append(first)
        best = min(best, float(expected[first]))
        known, errors = np.concatenate([known, features[first, None]]), np.append(errors, mean[first])
    return chosen


def improvement(best: float, mean: FloatArray, deviation: FloatArray) -> FloatArray:
    """[B] by how much normal values of these means and deviations [B], more than 0, are below ``best``, on average."""
    z = (best - mean) / deviation
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return np.asarray((best - mean) * ndtr(z) + deviation * density, dtype=np.float64)


def _most_probable(evidence: Evidence) -> tuple[float, float]:
    """The error of a cut edge in seconds, and that of a unit as a share."""

    def log_probability(choice: tuple[float, float]) -> float:
        covariance = _covariance(evidence.features(choice[0] * evidence.best, choice[1]))
        fit = evidence.errors @ np.linalg.solve(covariance, evidence.errors) + np.linalg.slogdet(covariance)[1]
        unusual = np.log(choice[0] / CUT_SHARES[0]) ** 2 + np.log(choice[1] / UNIT_SHARES[0]) ** 2
        return float(-0.5 * (fit + unusual))

    cut_share, unit_share = max(itertools.product(CUT_SHARES, UNIT_SHARES), key=log_probability)
    return cut_share * evidence.best, unit_share


def _posterior(features: FloatArray, known: FloatArray, errors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """[B] means and deviations of relative errors of features [B, F], given ``errors`` [M] of ``known`` [M, F].

    They are without the scatter of measuring.
    """
    shared = features @ known.T
    weights = np.linalg.solve(_covariance(known), shared.T).T
    variance = np.maximum((features**2).sum(axis=1) - (weights * shared).sum(axis=1), LEAST_VARIANCE)
    return np.maximum(weights @ errors, LEAST_MEAN), np.asarray(np.sqrt(variance), dtype=np.float64)


def _covariance(features: FloatArray) -> FloatArray:
    """[M, M] of the relative errors of what was measured, the scatter of measuring included."""
    return np.asarray(features @ features.T + SCATTER**2 * np.eye(len(features)), dtype=np.float64)
