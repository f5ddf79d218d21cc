"""Bounds on objectives, and on a work-conserving makespan: the largest of all arguments.

Legend: M ops with source and sink.
"""

from __future__ import annotations

import numpy as np

from hsdag.runtime.objectives import Objective, Quantity
from hsdag.runtime.problem.bounds.between import between_all, heads_and_tails
from hsdag.runtime.problem.bounds.energy import largest_refuted_s
from hsdag.runtime.problem.bounds.relaxation import Relaxation
from hsdag.runtime.problem.bounds.simple import (
    CRITICAL_PATH,
    LOAD,
    ROUNDING,
    Bound,
    critical_path_s,
    largest,
    period_bound,
    sequential_bound,
    shared_load,
)
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution

PATHS, WINDOWS = "paths that pay for transfers", "work that windows of time must hold"
PAIRS_EFFORT, LOADS_EFFORT = 3e6, 1.5e8
"""Ops times edges times kinds of devices up to which every two ops are bounded; ops cubed, for the load between."""


def lower_bound(objective: Objective, problem: ScheduleProblem, execution: Execution) -> Bound:
    """A value of an objective that no plan is below, for any order and links, and what proves it."""
    problem.check(objective)
    found = [_bound(quantity, problem, execution) for quantity in objective.quantities]
    arguments = dict.fromkeys(bound.argument for bound in found)
    value = objective.value(*(np.array(bound.value_s) for bound in found))
    return Bound(float(value), ", and ".join(arguments))


def _bound(quantity: Quantity, problem: ScheduleProblem, execution: Execution) -> Bound:
    if quantity is Quantity.ENERGY:
        least_j = np.nanmin(problem.time_s * problem.known_power_w, axis=1)
        return Bound(float(least_j.sum()), "every op where it takes least energy")
    if quantity is Quantity.PEAK:
        weights = problem.weight_bytes
        return Bound(float(max(weights.sum() / problem.num_devices, weights.max())), "weights in equal shares")
    if execution is Execution.SEQUENTIAL:
        return sequential_bound(problem)
    return makespan_bound(problem) if quantity is Quantity.LATENCY else period_bound(problem)


def makespan_bound(problem: ScheduleProblem) -> Bound:
    """Seconds of a work-conserving makespan at least, whatever the order of ops and the links.

    Links that make transfers wait make no schedule shorter, so all of it is argued for independent ones. An argument
    that is larger by rounding alone does not count.
    """
    load_s, prices = shared_load(problem)
    found = largest(
        Bound(load_s - problem.op_overhead_s, LOAD),  # the last op of a device delays nothing by its overhead
        Bound(critical_path_s(problem), CRITICAL_PATH),
    )
    if problem.num_devices == 1:
        return found
    relaxed = Relaxation.of(problem)
    prices = relaxed.cheapest(prices)
    if relaxed.num_ops * relaxed.inputs.sent_s.size > PAIRS_EFFORT:
        head_s, tail_s = heads_and_tails(relaxed)
    else:
        between_s = between_all(relaxed, prices, with_loads=relaxed.num_ops**3 <= LOADS_EFFORT)
        head_s, tail_s = np.maximum(between_s[0], 0.0), np.maximum(between_s[:, -1], 0.0)
    found = _larger(found, float((head_s + relaxed.time_s.min(axis=1) + tail_s).max()), PATHS)
    return _larger(found, largest_refuted_s(relaxed, head_s, tail_s, prices, found.value_s), WINDOWS)


def _larger(found: Bound, value_s: float, argument: str) -> Bound:
    return Bound(value_s, argument) if value_s > found.value_s * (1 + ROUNDING) else found
