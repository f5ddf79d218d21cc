"""Fitting of cost factors near 1 so that sums of costs agree with observations.

Legend: B observations, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray

WORK_ERROR = 0.02
"""Share by which all op times of a device may be off together; profiling ties their sum to the whole model."""

SINGLE_ERROR = 0.2
"""Share by which one device's launches, or one pair's link, may be off relative to the others."""

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
    rows: FloatArray, num_devices: int, sizes: Sequence[int], scales: Sequence[float], scatter: float
) -> FloatArray:
    """Return [P] factors for rows [B, P], first shared by each kind of parameters, then separate for each parameter.

    The parameters are the work of each device, and then ``sizes`` of each kind. ``scales`` are the shares by which each
    kind may be off as a whole; latencies scatter around the model by a share of ``scatter``.
    """
    kind = np.repeat(np.arange(num_devices + len(sizes)), [1] * num_devices + list(sizes))
    shared = (kind[:, None] == np.arange(kind[-1] + 1)).astype(np.float64)
    factors = fit_factors(rows @ shared, np.array([WORK_ERROR] * num_devices + [*scales]), scatter)[kind]
    spread = np.array([WORK_ERROR] * num_devices + [SINGLE_ERROR] * sum(sizes))
    return np.asarray(factors * fit_factors(rows * factors, spread, scatter), dtype=np.float64)
