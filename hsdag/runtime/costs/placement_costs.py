"""PlacementCosts: simulated costs as searches and evaluators use them, for any executor; and how they are refitted.

Factors near 1 make linear rows agree with observations. Legend: N ops, D devices, B placements or observations, P
parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.runtime.objectives import Objective, Quantity
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

Priorities: TypeAlias = Sequence[IntArray | None]
"""Of placements, the ranks [N] of their ops, the smallest first; None where the order is left to the executor."""


class PlacementCosts(ABC):
    """Simulated seconds of placements, which measured ones refine.

    ``priority`` are those of each placement; without them the order is the executor's, as it always is under HETERO.
    """

    costs: ScheduleProblem
    """The same by op and link, for methods that compute on costs; ``time_s`` is [N, D]."""

    @property
    def steps(self) -> float:
        """About how many steps a placement takes the interpreter, each of them as much as to simulate one op."""
        return float(self.costs.num_ops + len(self.costs.edge_src))

    @abstractmethod
    def latency_s(self, placements: IntArray, priority: Priorities | None = None) -> FloatArray:
        """[B] simulated seconds of one inference under placements [B, N]; infinite where one is illegal."""

    @abstractmethod
    def period_s(self, placements: IntArray) -> FloatArray:
        """[B] simulated seconds per inference with many in flight; infinite where a placement is illegal.

        That is the load of the busiest device. Devices that slow each other down begin together, and each works until
        its own load is done.
        """

    @abstractmethod
    def calibrated(self, placements: IntArray, measured_s: FloatArray, priority: Priorities | None = None) -> Self:
        """Costs refitted to measured latencies [B] of placements [B, N]; without observations nothing changes."""

    def values(
        self,
        objective: Objective,
        placements: IntArray,
        priority: Priorities | None = None,
        peak_bytes: FloatArray | None = None,
    ) -> FloatArray:
        """[B] simulated values of an objective; infinite where a placement is illegal.

        ``peak_bytes`` [B] are those of the fullest devices, where the objective counts memory. The power of devices is
        not known: energy is that at one watt, which measurements correct.
        """

        def figures(quantity: Quantity) -> FloatArray:
            if quantity is Quantity.PEAK:
                assert peak_bytes is not None, "the objective counts memory"
                return peak_bytes
            return self.period_s(placements) if quantity is Quantity.PERIOD else self.latency_s(placements, priority)

        return objective.value(*map(figures, objective.quantities))

    def fitted(
        self, objective: Objective, placements: IntArray, measured: FloatArray, priority: Priorities | None = None
    ) -> tuple[Self, float]:
        """Costs, and a factor on their values, refitted to measured values [B] of an objective.

        Only latencies tell what ops and transfers take; else there is one factor for all, and where peaks of memory
        count, which nothing measures, none.
        """
        if objective.quantities == (Quantity.LATENCY,):
            return self.calibrated(placements, measured, priority), 1.0
        if objective.counts_memory:
            return self, 1.0
        ratios = measured / self.values(objective, placements, priority)
        usable = np.isfinite(ratios) & (ratios > 0)
        return self, float(np.median(ratios[usable])) if usable.any() else 1.0


@dataclass(frozen=True)
class Trust:
    """How far figures may be off, as shares of themselves: what weighs observations against what was known before.

    Probes of small models meet warm caches and so see too little of launches and links: hence the wide ``scale``.
    """

    observed: float = 0.01
    """Scatter of measured latencies around the model."""
    work: float = 0.02
    """Of what all op times of a device share; profiling ties them to the whole model."""
    scale: float = 20.0
    """Of all launches, all latencies or all bandwidths together."""
    launch_s: float = 1e-2
    """Seconds of all launches together, where that is more: what a split costs whatever crosses, of which probes see
    next to nothing."""
    single: float = 0.2
    """Of one device's launches, or one pair's link, beside the others."""


LEAST_FACTOR = 0.2
"""Calibration makes nothing cheaper than this share of what it was: probes see too little, not too much."""


def fit_factors(rows: FloatArray, spread: FloatArray, scatter: float) -> FloatArray:
    """[P] factors f >= LEAST_FACTOR that make ``rows`` [B, P] @ f near 1 within ``scatter``, and f within ``spread``.

    Where the observations scatter more than that around the first fit, a second one trusts them accordingly less.
    """
    from scipy.optimize import nnls  # only here: it loads slowly

    factors = np.ones(rows.shape[1])
    for _ in range(2):
        matrix = np.concatenate([rows / scatter, np.diag(1.0 / spread)])
        wanted = np.concatenate([np.full(len(rows), 1.0 / scatter), 1.0 / spread])
        factors = LEAST_FACTOR + nnls(matrix, wanted - LEAST_FACTOR * matrix.sum(axis=1))[0]
        found = float(np.sqrt(np.mean((rows @ factors - 1.0) ** 2)))
        if found <= scatter:
            break
        scatter = found
    return np.asarray(factors, dtype=np.float64)


def fit_by_kind(
    rows: FloatArray, num_devices: int, sizes: Sequence[int], trust: Trust, scales: Sequence[float] | None = None
) -> FloatArray:
    """[P] factors for rows [B, P]: first one for each device's work and one for each kind, then all by themselves.

    The parameters are the work of each device, and then ``sizes`` of each kind; ``scales`` say how far each kind may
    be off in place of the trust's one for all.
    """
    kind = np.repeat(np.arange(num_devices + len(sizes)), [1] * num_devices + list(sizes))
    shared = (kind[:, None] == np.arange(kind[-1] + 1)).astype(np.float64)
    spread = np.array([trust.work] * num_devices + list(scales or [trust.scale] * len(sizes)))
    factors = fit_factors(rows @ shared, spread, trust.observed)[kind]
    spread = np.array([trust.work] * num_devices + [trust.single] * sum(sizes))
    return np.asarray(factors * fit_factors(rows * factors, spread, trust.observed), dtype=np.float64)
