"""Bounds on objectives, and on a work-conserving makespan: the largest of all arguments.

One argument, compiled, refutes makespans: work that must be done within a window and does not fit. Legend: M ops in
topological order between source and sink, E edges, K kinds of devices, C clusters, W moments.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hsdag.base.kernels import bare, run_kernel
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.runtime.objectives import Objective, Quantity
from hsdag.runtime.problem.bounds.between import between_all, heads_and_tails
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
"""Ops times edges times kinds of devices up to which every two ops are bounded; ops cubed, for loads between them."""
LITTLE_PAIRS_EFFORT = 3e4
"""Effort for pairs that is interpreted in a second: more is compiled first, which takes five."""


def lower_bound(
    objective: Objective, problem: ScheduleProblem, execution: Execution, pairs_effort: float = PAIRS_EFFORT
) -> Bound:
    """Return a value of an objective that no plan is below, for any order and links, and what proves it."""
    problem.check(objective)
    bounds = [_bound(quantity, problem, execution, pairs_effort) for quantity in objective.quantities]
    arguments = dict.fromkeys(bound.argument for bound in bounds)
    return Bound(float(objective.value(*(np.array(bound.value) for bound in bounds))), ", and ".join(arguments))


def _bound(quantity: Quantity, problem: ScheduleProblem, execution: Execution, pairs_effort: float) -> Bound:
    if quantity is Quantity.ENERGY:
        least_j = np.nanmin(problem.time_s * problem.power_w, axis=1)
        return Bound(float(least_j.sum()), "every op where it takes least energy")
    if quantity is Quantity.PEAK:
        weights = problem.weight_bytes
        return Bound(float(max(weights.sum() / problem.num_devices, weights.max())), "weights in equal shares")
    if execution is Execution.SEQUENTIAL:
        return sequential_bound(problem)
    return makespan_bound(problem, pairs_effort) if quantity is Quantity.LATENCY else period_bound(problem)


def makespan_bound(problem: ScheduleProblem, pairs_effort: float = PAIRS_EFFORT) -> Bound:
    """Return a lower bound of a work-conserving makespan in seconds, whatever the order of ops and the links.

    Links that make transfers wait make no schedule shorter, so all arguments are for independent ones. An argument
    that is larger by rounding alone does not count. Every two ops are bounded up to ``pairs_effort``, else heads and
    tails alone.
    """
    longest = Bound(critical_path_s(problem), CRITICAL_PATH)
    busy_s = np.where(problem.supported, problem.time_s, np.inf).sum(axis=0)
    if longest.value >= (float(busy_s.min()) + problem.op_overhead_s * (problem.num_ops - 1)) * (1 - ROUNDING):
        return longest  # one device takes no longer, as for a chain with one best device
    load_s, prices = shared_load(problem)
    # the last op of a device delays nothing by its overhead
    best = largest(Bound(load_s - problem.op_overhead_s, LOAD), longest)
    if problem.num_devices == 1:
        return best
    relaxed = Relaxation.of(problem)
    prices = relaxed.cheapest(prices)
    if relaxed.num_ops * relaxed.inputs.sent_s.size > pairs_effort:
        head_s, tail_s = heads_and_tails(relaxed)
    else:
        between_s = between_all(relaxed, prices, with_loads=relaxed.num_ops**3 <= LOADS_EFFORT)
        head_s, tail_s = np.maximum(between_s[0], 0.0), np.maximum(between_s[:, -1], 0.0)
    best = _larger(best, float((head_s + relaxed.time_s.min(axis=1) + tail_s).max()), PATHS)
    return _larger(best, largest_refuted_s(relaxed, head_s, tail_s, prices, best.value), WINDOWS)


def _larger(best: Bound, value_s: float, argument: str) -> Bound:
    return Bound(value_s, argument) if value_s > best.value * (1 + ROUNDING) else best


EFFORT = 3e6
"""Ops times devices times windows that one makespan may take."""
LEAST_MOMENTS, MOST_MOMENTS = 4, 64
"""Least and largest number of moments at which windows begin, and at which they end."""
TOLERANCE = 1e-11
"""Share of a makespan by which work has to exceed a window: less may be rounding."""


def largest_refuted_s(
    problem: Relaxation, head_s: FloatArray, tail_s: FloatArray, prices: FloatArray, known_s: float
) -> float:
    """Return a makespan that no schedule is below, ``known_s`` or more.

    A schedule of T seconds runs each op between its head [M] and T less its tail [M]. If the result of an op could
    then not come from another device in time, the op and its reader share a device; so do all ops that such edges join,
    a cluster. In a window a cluster has to run all its work but what its ops can do outside, and what one device can
    do outside. If these amounts, each at the cheapest of the devices' ``prices`` [K], exceed the window, or one of
    them exceeds it on any device, T is refuted.
    """
    count = int(np.clip((EFFORT / problem.busy_s.size) ** 0.5, LEAST_MOMENTS, MOST_MOMENTS))
    span_s = problem.time_s.min(axis=1)
    begins_s, ends_s = (_moments(np.concatenate([x, x + span_s]), count) for x in (head_s, tail_s))
    inputs = problem.inputs
    reader = np.repeat(np.arange(problem.num_ops), np.diff(problem.inputs.indptr))
    apart_s = (inputs.apart_s + problem.time_s[reader]).min(axis=1)
    is_inner = (inputs.indices > 0) & (reader < problem.num_ops - 1)
    # [E] the makespan from which on both ops of an edge may be on different devices
    changes_s = np.where(is_inner, head_s[inputs.indices] + apart_s + tail_s[reader], 0.0)

    def excess_s(makespan_s: float) -> float:
        joined = changes_s > makespan_s * (1 + TOLERANCE)
        ends = (reader[joined], inputs.indices[joined])
        edges = coo_array((np.ones(len(ends[0])), ends), shape=(problem.num_ops, problem.num_ops))
        cluster = connected_components(edges, directed=False)[1].astype(np.int64)  # [M]
        due_s = makespan_s - tail_s + problem.overhead_s
        steps = problem.busy_s.size * len(begins_s) * len(ends_s) / 10
        first_s, last_s = np.full(cluster.max() + 1, np.inf), np.full(cluster.max() + 1, -np.inf)
        np.minimum.at(first_s, cluster, head_s)
        np.maximum.at(last_s, cluster, due_s)
        ops = cluster, problem.busy_s, head_s, due_s
        clusters = first_s, last_s, np.empty((4, len(first_s), problem.busy_s.shape[1]))
        return float(run_kernel(_excess, steps, *ops, *clusters, prices, begins_s, makespan_s - ends_s))

    # between two of them a second more is a second less of excess
    makespans_s = np.append(known_s, np.unique(changes_s[(changes_s > known_s) & (changes_s < np.inf)]))
    low, high = 0, len(makespans_s)
    while high - low > 1:
        middle = (low + high) // 2
        if excess_s(float(makespans_s[middle])) > TOLERANCE * known_s:
            low = middle
        else:
            high = middle
    refuted_s = float(makespans_s[low]) + max(excess_s(float(makespans_s[low])), 0.0)
    return min(refuted_s, float(makespans_s[high])) if high < len(makespans_s) else refuted_s


def _moments(values_s: FloatArray, count: int) -> FloatArray:
    """Return [W] at most ``count`` of the values, spread evenly by rank, with the least and the largest."""
    moments = np.unique(values_s)
    return moments[np.unique(np.linspace(0, len(moments) - 1, count).astype(np.int64))]


@bare
def _excess(
    cluster: IntArray,
    busy_s: FloatArray,
    head_s: FloatArray,
    due_s: FloatArray,
    first_s: FloatArray,
    last_s: FloatArray,
    tables: FloatArray,
    prices: FloatArray,
    begins_s: FloatArray,
    ends_s: FloatArray,
) -> float:
    """Return the most seconds by which the work of a window exceeds it; below 0 if all windows have room.

    ``first_s`` and ``last_s`` [C] are when clusters may begin and have to end, ``tables`` [4, C, K] is scratch.
    """
    num_ops, num_devices = busy_s.shape
    count = len(first_s)
    most_s = -np.inf
    work_s, before_s, after_s, inside_s = tables[0], tables[1], tables[2], tables[3]
    for begin_s in begins_s:
        for end_s in ends_s:
            if end_s <= begin_s:
                continue
            tables[:] = 0.0
            for v in range(num_ops):
                early_s, late_s = max(0.0, begin_s - head_s[v]), max(0.0, due_s[v] - end_s)
                for d in range(num_devices):
                    run_s = busy_s[v, d]
                    c = cluster[v]
                    work_s[c, d] += run_s
                    before_s[c, d] += min(run_s, early_s)
                    after_s[c, d] += min(run_s, late_s)
                    inside_s[c, d] += max(0.0, run_s - early_s - late_s)
            total_s = 0.0
            for c in range(count):
                early_s, late_s = max(0.0, begin_s - first_s[c]), max(0.0, last_s[c] - end_s)
                cheapest_s, shortest_s = np.inf, np.inf
                for d in range(num_devices):
                    if work_s[c, d] < np.inf:
                        alone_s = work_s[c, d] - min(before_s[c, d], early_s) - min(after_s[c, d], late_s)
                        alone_s = max(alone_s, inside_s[c, d])
                        shortest_s = min(shortest_s, alone_s)
                        cheapest_s = min(cheapest_s, prices[d] * alone_s)
                total_s += cheapest_s
                most_s = max(most_s, shortest_s - (end_s - begin_s))
            most_s = max(most_s, total_s - (end_s - begin_s))
    return most_s
