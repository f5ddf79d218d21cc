"""Which simulated plans to measure next: those of the largest expected improvement, unlike each other.

What a simulation leaves unknown of a plan over several devices is taken as the sum of an error of every edge that it
cuts (a broken fusion, a change of layout) and one of every unit on its device, all independent and normal with mean 0:
of c seconds for an edge, of w times its duration for a unit. So the errors of plans x and x' have the covariance
c^2 |cuts of both| + w^2 sum of t_u^2 over the units u on the same device in both: a Gaussian process. Measured plans,
with their scatter, give the error of every candidate a posterior mean and deviation (Rasmussen and Williams 2006, eqs.
2.23 and 2.24); c and w are those that explain them best (eq. 2.30). A candidate is then expected at mu, its simulated
value with the mean error, give or take sigma. Against the least measured value f its expected improvement is
(f - mu) Phi(z) + sigma phi(z) with z = (f - mu) / sigma (Jones, Schonlau and Welch 1998, eq. 15): large for what
promises much, and for what little is known of. A plan that is chosen is taken to come out at its mu, which leaves
little doubt, and little to gain, of plans like it (the kriging believer of Ginsbourger, Le Riche and Carraro 2010):
that keeps a batch diverse.

Legend: U placement units, D devices, E edges between units, B candidates, M measured plans.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

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

    def shared(self, placements: IntArray, others: IntArray) -> tuple[FloatArray, FloatArray]:
        """[B, M] the cut edges that placements [B, U] and [M, U] have in common, and the squared seconds of units."""
        cut, cut_too = (each[:, self.edge_src] != each[:, self.edge_dst] for each in (placements, others))
        squared_s = self.time_s[np.arange(len(self.time_s)), others] ** 2
        columns = [(placements == other) @ of_units for other, of_units in zip(others, squared_s, strict=True)]
        seconds = np.stack(columns, axis=1) if columns else np.zeros((len(placements), 0))
        return cut.astype(np.float64) @ cut_too.T.astype(np.float64), seconds

    def own(self, placements: IntArray) -> tuple[FloatArray, FloatArray]:
        """[B] the same of each placement with itself."""
        cut = placements[:, self.edge_src] != placements[:, self.edge_dst]
        squared_s = self.time_s[np.arange(len(self.time_s)), placements] ** 2
        return cut.sum(axis=1).astype(np.float64), squared_s.sum(axis=1)


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


def expected_improvement(placements: IntArray, simulated: FloatArray, evidence: Evidence, count: int) -> list[int]:
    """Which of placements [B, U] of simulated values [B] to measure next: indices of at most ``count``, in order.

    Where no plan runs so far, those of the least simulated values; else see the module.
    """
    if not np.isfinite(evidence.best):
        return [int(i) for i in np.argsort(simulated, kind="stable")[:count]]
    chosen: list[int] = []
    cut_s, share = _most_probable(evidence)
    while len(chosen) < count:
        mean, deviation = _posterior(placements, simulated, evidence, cut_s, share)
        expected = simulated * (1.0 + mean)
        gains = improvement(evidence.best, expected, simulated * deviation)
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
    """The error of a cut edge in seconds, and that of a unit as a share."""
    cuts, squared_s = evidence.terms.shared(evidence.placements, evidence.placements)

    def log_probability(choice: tuple[float, float]) -> float:
        covariance = _covariance(cuts, squared_s, evidence, choice[0] * evidence.best, choice[1])
        fit = evidence.errors @ np.linalg.solve(covariance, evidence.errors) + np.linalg.slogdet(covariance)[1]
        unusual = np.log(choice[0] / CUT_SHARES[0]) ** 2 + np.log(choice[1] / UNIT_SHARES[0]) ** 2
        return float(-0.5 * (fit + unusual))

    cut_share, unit_share = max(itertools.product(CUT_SHARES, UNIT_SHARES), key=log_probability)
    return cut_share * evidence.best, unit_share


def _posterior(
    placements: IntArray, simulated: FloatArray, evidence: Evidence, cut_s: float, share: float
) -> tuple[FloatArray, FloatArray]:
    """[B] means and deviations of relative errors, without the scatter of measuring."""
    terms, scale = evidence.terms, np.outer(simulated, evidence.simulated)
    cuts, squared_s = terms.shared(placements, evidence.placements)
    shared = (cut_s**2 * cuts + share**2 * squared_s) / scale
    among = _covariance(*terms.shared(evidence.placements, evidence.placements), evidence, cut_s, share)
    weights = np.linalg.solve(among, shared.T).T
    own_cuts, own_squared_s = terms.own(placements)
    own = (cut_s**2 * own_cuts + share**2 * own_squared_s) / simulated**2
    variance = np.maximum(own - (weights * shared).sum(axis=1), LEAST_VARIANCE)
    return np.maximum(weights @ evidence.errors, LEAST_MEAN), np.asarray(np.sqrt(variance), dtype=np.float64)


def _covariance(cuts: FloatArray, squared_s: FloatArray, evidence: Evidence, cut_s: float, share: float) -> FloatArray:
    """[M, M] of the relative errors of what was measured, the scatter of measuring included."""
    of_model = (cut_s**2 * cuts + share**2 * squared_s) / np.outer(evidence.simulated, evidence.simulated)
    return np.asarray(of_model + SCATTER**2 * np.eye(len(cuts)), dtype=np.float64)
