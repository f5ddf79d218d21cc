"""Bounds that follow from loads and from the critical path. Legend: N ops, D devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hsdag.ir.graph.computation_graph import Csr, FloatArray
from hsdag.ir.graph.paths import longest_before
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

LOAD, LONGEST_OP, CRITICAL_PATH = "the load shared by all devices", "the longest op", "the critical path"
MOST_ROUNDS, ROUNDS_OF_OPS = 300, 1e7
"""Number of steps towards the best prices of devices, at most; and the same times ops times devices."""
ROUNDING = 1e-9
"""Share by which a bound has to be larger than another to replace it: less may be rounding."""


@dataclass(frozen=True)
class Bound:
    """A value that no plan is below; ``argument`` completes 'proven by ...'."""

    value: float
    argument: str


def largest(*bounds: Bound | None) -> Bound:
    """Return the largest bound that is not None, the first of equal ones. Raises ValueError if there is none."""
    return max((bound for bound in bounds if bound is not None), key=lambda bound: bound.value)


def sequential_bound(problem: ScheduleProblem) -> Bound:
    """Return a lower bound of sequential execution in seconds: the best-case load, one launch, and overheads."""
    overheads_s = problem.op_overhead_s * (problem.num_ops - 1)
    load_s = float(_best_s(problem).sum()) + float(problem.launch_s.min()) + overheads_s
    return Bound(load_s, "the best-case load and one launch")


def period_bound(problem: ScheduleProblem) -> Bound:
    """Return a lower bound of a work-conserving period in seconds: the busiest device's load, or the longest op."""
    longest_s = float(_best_s(problem).max()) + problem.op_overhead_s
    return largest(Bound(shared_load(problem)[0], LOAD), Bound(longest_s, LONGEST_OP))


def shared_load(problem: ScheduleProblem) -> tuple[float, FloatArray]:
    """Return the least seconds of the busiest device, overheads included, and the prices [D] that show it."""
    busy_s = np.where(problem.supported, problem.time_s, np.inf) + problem.op_overhead_s
    are_alike = bool((busy_s == busy_s[:, :1]).all())
    rounds = 1 if are_alike else int(np.clip(ROUNDS_OF_OPS / busy_s.size, 10, MOST_ROUNDS))
    equal = np.full(problem.num_devices, 1.0 / problem.num_devices)
    return dual_load(lambda prices: loads_of_ops(busy_s, prices), equal, rounds)


def critical_path_s(problem: ScheduleProblem) -> float:
    """Return the seconds of the longest path, every op on its best device and every transfer free, in O(N D + E)."""
    best_s = _best_s(problem)
    inputs = Csr.build(problem.num_ops, problem.edge_dst, problem.edge_src)
    before_s = longest_before(problem.topological_order, inputs, best_s, np.zeros(len(problem.edge_src)))
    return float((before_s + best_s).max())


def _best_s(problem: ScheduleProblem) -> FloatArray:
    """Return [N] the seconds of every op on its best device."""
    best_s: FloatArray = np.nanmin(problem.time_s, axis=1)
    return best_s


def dual_load(
    loads_at: Callable[[FloatArray], FloatArray], prices: FloatArray, rounds: int
) -> tuple[float, FloatArray]:
    """Return a lower bound of the busiest device's load in the best division, and the prices [D] that show it.

    For any prices that add up to 1 the busiest load is at least what all work costs where it is cheapest: the
    Lagrangian dual of choosing devices. ``loads_at`` returns the loads [D] of that choice. The prices follow the loads,
    with steps that become smaller; the first ones, ``prices``, always count.
    """
    best, best_prices = 0.0, prices
    weights = np.log(np.maximum(prices, 1e-12))
    for step in range(rounds):
        if step:
            prices = np.exp(weights)
            prices /= prices.sum()
        loads = loads_at(prices)
        bound = float(loads @ prices)
        if bound > best:
            best, best_prices = bound, prices
        if np.isinf(bound):
            break
        weights += (2.0 / np.sqrt(step + 4.0)) * (loads / max(float(loads.max()), 1e-300))
    return best, best_prices


def loads_of_ops(time_s: FloatArray, prices: FloatArray) -> FloatArray:
    """Return [D] loads if each op of ``time_s`` [N, D], infinite where unsupported, runs where it costs least."""
    cheapest = np.argmin(time_s * prices, axis=1)
    return np.bincount(cheapest, time_s[np.arange(len(time_s)), cheapest], time_s.shape[1]).astype(np.float64)
