"""Fitting of cost factors near 1 so that sums of costs agree with observations.

Legend: B observations, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray


@dataclass(frozen=True)
class Trust:
    """How far figures may be off, as shares of themselves; weighs observations against previous figures.

    Probes of small models meet warm caches and so see too little of launches and links: hence the wide ``scale``.
    """

    observed: float = 0.01
    """Scatter of measured latencies around the model."""
    work: float = 0.02
    """Error that all op times of a device share; profiling ties their sum to the whole model."""
    scale: float = 20.0
    """Error of all launches, all latencies or all bandwidths together."""
    launch_s: float = 1e-2
    """Error of all launches together, in seconds, if more than ``scale``: the cost of a split whatever crosses,
    which probes hardly see.
    """
    single: float = 0.2
    """Error of one device's launches, or one pair's link, relative to the others."""


LEAST_FACTOR = 0.2
"""Least factor by which calibration multiplies a cost: probes see too little, not too much."""


def fit_factors(rows: FloatArray, spread: FloatArray, scatter: float) -> FloatArray:
    """Return [P] factors f >= LEAST_FACTOR within ``spread`` of 1, with ``rows`` [B, P] @ f within ``scatter`` of 1.

    If the observations scatter more than that around the first fit, a second one uses their scatter instead.
    """
    from scipy.optimize import nnls  # imported late: it loads slowly

    factors = np.ones(rows.shape[1])
    for _ in range(2):
        matrix = np.concatenate([rows / scatter, np.diag(1.0 / spread)])
        wanted = np.concatenate([np.full(len(rows), 1.0 / scatter), 1.0 / spread])
        factors = LEAST_FACTOR + nnls(matrix, wanted - LEAST_FACTOR * matrix.sum(axis=1))[0]
        deviation = float(np.sqrt(np.mean((rows @ factors - 1.0) ** 2)))
        if deviation <= scatter:
            break
        scatter = deviation
    return np.asarray(factors, dtype=np.float64)


def fit_by_kind(
    rows: FloatArray, num_devices: int, sizes: Sequence[int], trust: Trust, scales: Sequence[float] | None = None
) -> FloatArray:
    """Return [P] factors for rows [B, P], first shared by each kind of parameters, then separate for each parameter.

    The parameters are the work of each device, and then ``sizes`` of each kind. ``scales`` say how far each kind may
    be off, in place of ``trust.scale`` for all.
    """
    kind = np.repeat(np.arange(num_devices + len(sizes)), [1] * num_devices + list(sizes))
    shared = (kind[:, None] == np.arange(kind[-1] + 1)).astype(np.float64)
    spread = np.array([trust.work] * num_devices + list(scales or [trust.scale] * len(sizes)))
    factors = fit_factors(rows @ shared, spread, trust.observed)[kind]
    spread = np.array([trust.work] * num_devices + [trust.single] * sum(sizes))
    return np.asarray(factors * fit_factors(rows * factors, spread, trust.observed), dtype=np.float64)
