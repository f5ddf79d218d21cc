"""Bounds that follow from loads and from the critical path. Legend: N ops, D devices."""

from __future__ import annotations

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
    load_s = float(least_op_s(problem).sum()) + float(problem.launch_s.min()) + overheads_s
    return Bound(load_s, "the best-case load and one launch")


def period_bound(problem: ScheduleProblem) -> Bound:
    """Return a lower bound of a work-conserving period in seconds: the busiest device's load, or the longest op."""
    longest_s = float(least_op_s(problem).max()) + problem.op_overhead_s
    return largest(Bound(shared_load(problem)[0], LOAD), Bound(longest_s, LONGEST_OP))


def shared_load(problem: ScheduleProblem) -> tuple[float, FloatArray]:
    """Return a lower bound of the busiest device's seconds, overheads included, and the prices [D] that show it.

    For any prices that add up to 1 the busiest load is at least what all work costs where it is cheapest: the
    Lagrangian dual of choosing devices. The prices begin equal and follow the loads of that choice, with steps that
    become smaller.
    """
    busy_s = np.where(problem.supported, problem.time_s, np.inf) + problem.op_overhead_s
    are_alike = bool((busy_s == busy_s[:, :1]).all())
    rounds = 1 if are_alike else int(np.clip(ROUNDS_OF_OPS / busy_s.size, 10, MOST_ROUNDS))
    ops = np.arange(problem.num_ops)
    prices = best_prices = np.full(problem.num_devices, 1.0 / problem.num_devices)
    best_s, weights = 0.0, np.log(prices)
    for step in range(rounds):
        if step:
            prices = np.exp(weights)
            prices /= prices.sum()
        cheapest = np.argmin(busy_s * prices, axis=1)
        loads_s = np.bincount(cheapest, busy_s[ops, cheapest], problem.num_devices)
        bound_s = float(loads_s @ prices)
        if bound_s > best_s:
            best_s, best_prices = bound_s, prices
        if np.isinf(bound_s):
            break
        weights += (2.0 / np.sqrt(step + 4.0)) * (loads_s / max(float(loads_s.max()), 1e-300))
    return best_s, best_prices


def critical_path_s(problem: ScheduleProblem) -> float:
    """Return the seconds of the longest path, every op on its best device and every transfer free, in O(N D + E)."""
    return float((least_before_s(problem) + least_op_s(problem)).max())


def least_before_s(problem: ScheduleProblem) -> FloatArray:
    """Return [N] the seconds of the longest path to each op, every op on its best device and transfers free."""
    inputs = Csr.build(problem.num_ops, problem.edge_dst, problem.edge_src)
    return longest_before(problem.topological_order, inputs, least_op_s(problem))


def least_after_s(problem: ScheduleProblem) -> FloatArray:
    """Return [N] the seconds of the longest path from each op's end, every op on its best device and transfers free."""
    readers = Csr.build(problem.num_ops, problem.edge_src, problem.edge_dst)
    return longest_before(problem.topological_order[::-1], readers, least_op_s(problem))


def least_op_s(problem: ScheduleProblem) -> FloatArray:
    """Return [N] the seconds of every op on its best device."""
    return np.asarray(np.nanmin(problem.time_s, axis=1))
