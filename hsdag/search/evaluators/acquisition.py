"""Choose which simulated plans to measure next: a diverse batch with the largest expected improvements.

The error of a simulated value is modelled as a sum of independent normal errors with mean 0: one for every edge that
the plan cuts (a broken fusion, a change of layout), with a deviation of c seconds, and one for every unit on its
device, with a deviation of w times its duration. So the errors of plans x and x' have the covariance
c^2 |cuts of both| + w^2 sum of t_u^2 over the units u on the same device in both. This is the product of the plans'
feature rows: c for each edge that is cut, w t_u for each unit on its device. The errors form a Gaussian process. The
measured plans, with their scatter, give the error of every candidate a posterior mean and deviation (Rasmussen and
Williams 2006, eqs. 2.23 and 2.24); c and w are chosen to explain the measurements best (eq. 2.30). The value expected
of a candidate is then normal, with a mean mu, its simulated value corrected by the mean error, and a deviation sigma.
Against the smallest measured value f its expected improvement is (f - mu) Phi(z) + sigma phi(z) with
z = (f - mu) / sigma (Jones, Schonlau and Welch 1998, eq. 15): large if mu is small, and if sigma is large. Once a plan
is chosen, its measured value is assumed to be its mu. That leaves similar plans little uncertainty and little to gain,
and so keeps the batch diverse (the kriging believer of Ginsbourger, Le Riche and Carraro 2010).

Legend: U placement units, D devices, E edges between units, B candidates, M measured plans, F = E + U D features.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.problem import Problem

CUT_SHARES, UNIT_SHARES = (0.005, 0.0025, 0.01, 0.00125, 0.02), (0.1, 0.03, 0.3)
"""The values tried for c, relative to the smallest measured value, and for w. The prior of each is log-normal with
deviation 1, and its median is the first value of the list."""

SCATTER = 0.01
"""Relative standard deviation of measured values."""

LEAST_MEAN, LEAST_VARIANCE = -0.9, 1e-12
"""Least mean and variance of relative errors: values are positive, and rounding may make a variance negative."""

LEAST_GAIN = 1e-4
"""Stop choosing plans once the largest expected improvement, relative to the best value, is smaller than this."""


@dataclass(frozen=True, eq=False)
class Terms:
    """The parts of plans' values: edges [E] between units, and the seconds [U, D] of units on devices."""

    edge_src: IntArray
    edge_dst: IntArray
    time_s: FloatArray

    @staticmethod
    def of(problem: Problem, costs: PlacementCosts) -> Terms:
        """Return the parts of the values of a problem's plans, by the costs of its ops."""
        graph, labels = problem.units.graph, problem.units.partition.labels
        times_s = np.nan_to_num(costs.costs.time_s).T
        columns = [np.bincount(labels, column, problem.num_units) for column in times_s]
        return Terms(graph.edge_src, graph.edge_dst, np.stack(columns, axis=1).astype(np.float64))

    def features(self, placements: IntArray, cut_s: float, share: float) -> FloatArray:
        """Return the features [B, F] of placements [B, U].

        Args:
            cut_s: Deviation c in seconds, the feature of an edge that is cut.
            share: Factor w of a unit's seconds, the feature of the unit on its device.
        """
        is_cut = placements[:, self.edge_src] != placements[:, self.edge_dst]
        is_there = placements[:, :, None] == np.arange(self.time_s.shape[1])
        of_units = np.where(is_there, share * self.time_s, 0.0).reshape(len(placements), self.time_s.size)
        return np.concatenate([cut_s * is_cut, of_units], axis=1)


@dataclass(frozen=True, eq=False)
class Evidence:
    """The measurements so far of plans over several devices.

    Args:
        best: Smallest value measured of any plan, infinite if none succeeded.
        placements: Measured placements [M, U].
        measured: Their measured values [M]; ``simulated`` likewise.
    """

    best: float
    placements: IntArray
    measured: FloatArray
    simulated: FloatArray
    terms: Terms

    @property
    def errors(self) -> FloatArray:
        """Return [M] the errors of simulated values, relative to them."""
        return np.asarray(self.measured / self.simulated - 1.0, dtype=np.float64)

    def features(self, cut_s: float, share: float) -> FloatArray:
        """Return [M, F] the features of the relative errors."""
        return np.asarray(self.terms.features(self.placements, cut_s, share) / self.simulated[:, None])


def expected_improvement(placements: IntArray, simulated: FloatArray, evidence: Evidence, count: int) -> list[int]:
    """Return the indices of the candidates to measure next, at most ``count``, in the order of choice.

    As long as no plan was measured successfully, those with the smallest simulated values are chosen.

    Args:
        placements: Candidates [B, U].
        simulated: Their simulated values [B].
    """
    if not np.isfinite(evidence.best):
        return [int(i) for i in np.argsort(simulated, kind="stable")[:count]]
    cut_s, share = _most_probable(evidence)
    features = evidence.terms.features(placements, cut_s, share) / simulated[:, None]
    seen, errors, best = evidence.features(cut_s, share), evidence.errors, evidence.best
    chosen: list[int] = []
    while len(chosen) < count:
        mean, deviation = _posterior(features, seen, errors)
        expected = simulated * (1.0 + mean)
        gains = improvement(best, expected, simulated * deviation)
        gains[chosen] = 0.0
        first = int(np.argmax(gains))
        if gains[first] < LEAST_GAIN * best:
            break
        chosen.append(first)
        best = min(best, float(expected[first]))
        seen, errors = np.concatenate([seen, features[first, None]]), np.append(errors, mean[first])
    return chosen


def improvement(best: float, mean: FloatArray, deviation: FloatArray) -> FloatArray:
    """Return [B] the expected improvements on ``best`` of normal values, given their means and deviations [B] > 0."""
    z = (best - mean) / deviation
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return np.asarray((best - mean) * ndtr(z) + deviation * density, dtype=np.float64)


def _most_probable(evidence: Evidence) -> tuple[float, float]:
    """Return the most probable c, in seconds, and w."""

    def log_probability(choice: tuple[float, float]) -> float:
        covariance = _covariance(evidence.features(choice[0] * evidence.best, choice[1]))
        fit = evidence.errors @ np.linalg.solve(covariance, evidence.errors) + np.linalg.slogdet(covariance)[1]
        unusual = np.log(choice[0] / CUT_SHARES[0]) ** 2 + np.log(choice[1] / UNIT_SHARES[0]) ** 2
        return float(-0.5 * (fit + unusual))

    cut_share, unit_share = max(itertools.product(CUT_SHARES, UNIT_SHARES), key=log_probability)
    return cut_share * evidence.best, unit_share


def _posterior(features: FloatArray, measured: FloatArray, errors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the means and deviations [B] of candidates' relative errors, without the scatter of measuring.

    Args:
        features: Features of the candidates [B, F].
        measured: Features of the measured plans [M, F].
        errors: Relative errors of the measured plans [M].
    """
    shared = features @ measured.T
    weights = np.linalg.solve(_covariance(measured), shared.T).T
    variance = np.maximum((features**2).sum(axis=1) - (weights * shared).sum(axis=1), LEAST_VARIANCE)
    return np.maximum(weights @ errors, LEAST_MEAN), np.asarray(np.sqrt(variance), dtype=np.float64)


def _covariance(features: FloatArray) -> FloatArray:
    """Return [M, M] the covariance of the measured plans' relative errors, the scatter of measuring included."""
    return np.asarray(features @ features.T + SCATTER**2 * np.eye(len(features)), dtype=np.float64)
