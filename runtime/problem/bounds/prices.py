"""Prices of devices: how much of a bound a second of each is worth. Legend: N ops, D devices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray

ROUNDING = 1e-9
"""A share by which a bound has to be larger than another to replace it: less may be rounding."""


def dual_load(
    loads_at: Callable[[FloatArray], FloatArray],
    prices: FloatArray,
    rounds: int,
    has_time: Callable[[], bool] = lambda: True,
) -> tuple[float, FloatArray]:
    """The busiest device's load in the best division of work, from below, with the prices [D] that show it.

    For any prices that add up to 1 the busiest load is at least what all work costs where it is cheapest: the
    Lagrangian dual of choosing devices. ``loads_at`` gives the loads [D] of that choice. The prices follow the loads,
    with steps that become smaller, until the time is over; the first ones, ``prices``, always count.
    """
    best, best_prices = 0.0, prices
    weights = np.log(np.maximum(prices, 1e-12))
    for step in range(rounds):
        if step:
            prices = np.exp(weights - weights.max())
            prices /= prices.sum()
        loads = loads_at(prices)
        bound = float(loads @ prices)
        if bound > best * (1 + ROUNDING):
            best, best_prices = bound, prices
        if np.isinf(bound) or not has_time():
            break
        weights += (2.0 / np.sqrt(step + 4.0)) * (loads / max(float(loads.max()), 1e-300) - 0.5)
    return best, best_prices


def loads_of_ops(time_s: FloatArray, prices: FloatArray) -> FloatArray:
    """[D] loads where each op of ``time_s`` [N, D], infinite where unsupported, runs where it costs least."""
    cheapest = np.argmin(time_s * prices, axis=1)
    run_s = time_s[np.arange(len(time_s)), cheapest]
    return np.bincount(cheapest, run_s, time_s.shape[1]).astype(np.float64)
