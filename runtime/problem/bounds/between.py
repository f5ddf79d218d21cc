"""Least times between two ops, compiled: joins and forks that pay for transfers or for one device, and loads.

Legend: M ops in topological order, E edges, K kinds of devices, I items.
"""

from __future__ import annotations

import numpy as np

from hsdag.base.kernels import kernel, run_kernel
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.problem.bounds.relaxation import Neighbours, Relaxation

UNRELATED = -1.0
"""Time between two ops that no path joins."""
MOST_NEAR = 64
"""Number of neighbours that are put on one device; a join of more is bounded by these."""
PRICED = 0.7
"""Load between two ops, as a share of the bound between them, from which bounding by load is worth its time."""
MOMENTS = 128
"""Number of points of the grid on which the best begin and end of a window are sought."""

Ops = tuple[FloatArray, FloatArray, FloatArray]
"""Ops in compiled code: time_s, busy_s, overhead_s."""


def heads_and_tails(problem: Relaxation) -> tuple[FloatArray, FloatArray]:
    """Return [M] the least seconds from the beginning to the start of each op, and from its end to the end; O(E K)."""
    ops = problem.time_s, problem.busy_s, problem.overhead_s
    steps = len(problem.inputs.indices)
    head_s = run_kernel(_sweep, steps, problem.inputs, ops, True)
    return head_s, run_kernel(_sweep, steps, problem.outputs, ops, False)


def between_all(problem: Relaxation, prices: FloatArray, *, with_loads: bool) -> FloatArray:
    """Return [M, M] the least seconds from an op's end to another's start, UNRELATED without a path between them.

    A join: the inputs of v whose results would arrive after a moment t must be on v's device, one after another, and
    end by t; the least t for which they can is v's start (Papadimitriou and Yannakakis 1990, Colin and Chretienne
    1991; here for each device of v, ops of unlike times, and each pair of ops). A fork is the same backwards. With
    loads: all ops on paths from a to v have to fit between their own least times, at ``prices`` [K] of devices;
    at first only a's device has its result, and at last only v's what v reads. The time between two ops rests on times
    between ops that lie within: O(M E K), and O(M^3) for loads.
    """
    ops = problem.time_s, problem.busy_s, problem.overhead_s
    steps = problem.num_ops * len(problem.inputs.indices)
    between_s: FloatArray = run_kernel(_all_pairs, steps, problem.inputs, problem.outputs, ops, prices, with_loads)
    return between_s


@kernel
def _earliest(far_s: FloatArray, head_s: FloatArray, near_s: FloatArray, base_s: float) -> float:
    """Return the least t at which all items are done: elsewhere at ``far_s``, or here from ``head_s`` for ``near_s``.

    Items that would come from elsewhere after t are here, one after another by their heads, ``base_s`` longer in all.
    All arguments are [I], and ``far_s`` is overwritten.
    """
    least_s, here_s, num_near = np.inf, 0.0, 0
    begin_s, run_s = np.empty(min(len(far_s), MOST_NEAR)), np.empty(min(len(far_s), MOST_NEAR))
    while num_near < len(begin_s):
        last = np.argmax(far_s)
        if here_s >= far_s[last]:
            break
        least_s = min(least_s, far_s[last])
        if near_s[last] == np.inf:
            return float(least_s)
        far_s[last] = -np.inf
        k = num_near
        while k > 0 and begin_s[k - 1] > head_s[last]:
            begin_s[k], run_s[k] = begin_s[k - 1], run_s[k - 1]
            k -= 1
        begin_s[k], run_s[k] = head_s[last], near_s[last]
        num_near += 1
        here_s = begin_s[0]
        for i in range(num_near):
            here_s = max(here_s, begin_s[i]) + run_s[i]
        here_s += base_s
    return float(min(least_s, here_s))


@kernel
def _meet(side: Neighbours, ops: Ops, v: int, anchor: int, known_s: FloatArray, is_join: bool) -> float:
    """Return the least seconds between v and ``anchor`` by the neighbours of v between them; UNRELATED without any.

    ``known_s`` [M] is the same for these neighbours. A join looks at inputs, a fork at outputs: there v goes first, the
    overhead of each op is behind it, and the anchor itself takes no time.
    """
    time_s, busy_s, overhead_s = ops
    first, last = side.indptr[v], side.indptr[v + 1]
    far_s, head_s, near_s = np.empty(last - first), np.empty(last - first), np.empty(last - first)
    least_s = np.inf
    for d in range(time_s.shape[1]):
        if time_s[v, d] == np.inf:
            continue
        num = 0
        for k in range(first, last):
            u = side.indices[k]
            if u == anchor:
                far_s[num], head_s[num] = side.sent_s[k, d], 0.0
                near_s[num] = (overhead_s[u] if is_join else 0.0) if time_s[u, d] < np.inf else np.inf
            elif known_s[u] >= 0:
                far_s[num], near_s[num] = known_s[u] + side.apart_s[k, d], busy_s[u, d]
                head_s[num] = known_s[u] if is_join else known_s[u] - overhead_s[u]
            else:
                continue
            num += 1
        if num == 0:
            return UNRELATED
        base_s = 0.0 if is_join else overhead_s[v]
        least_s = min(least_s, _earliest(far_s[:num], head_s[:num], near_s[:num], base_s))
    return least_s


@kernel
def _sweep(side: Neighbours, ops: Ops, is_join: bool) -> FloatArray:
    """Return [M] the least seconds from the source to every op by joins, or from every op to the sink by forks."""
    num_ops = len(ops[0])
    known_s = np.zeros(num_ops)
    for i in range(1, num_ops):
        v, anchor = (i, 0) if is_join else (num_ops - 1 - i, num_ops - 1)
        known_s[v] = _meet(side, ops, v, anchor, known_s, is_join)
    return known_s


@kernel
def _apart(
    side: Neighbours, ops: Ops, v: int, anchor: int, known_s: FloatArray, other_s: FloatArray, least_s: float
) -> float:
    """Return the least seconds between v and ``anchor`` on different devices, at least ``least_s``.

    ``other_s`` [M] is the same for neighbours of v: each between them is itself on another device than the anchor, or
    sends its result to another device.
    """
    time_s, _, _ = ops
    for k in range(side.indptr[v], side.indptr[v + 1]):
        u, earliest_s = side.indices[k], np.inf
        for d in range(time_s.shape[1]):
            if u == anchor:
                earliest_s = min(earliest_s, side.sent_s[k, d])
            elif known_s[u] >= 0:
                earliest_s = min(earliest_s, known_s[u] + side.apart_s[k, d], other_s[u] + time_s[u, d])
        if u == anchor or known_s[u] >= 0:
            least_s = max(least_s, earliest_s)
    return least_s


@kernel
def _all_pairs(ins: Neighbours, outs: Neighbours, ops: Ops, prices: FloatArray, with_loads: bool) -> FloatArray:
    """Return [M, M] the least seconds between pairs, computed from the last first op on, second ops in order."""
    time_s, busy_s, overhead_s = ops
    num_ops = len(busy_s)
    most = prices.max()
    from_s, to_s = np.full((num_ops, num_ops), UNRELATED), np.full((num_ops, num_ops), UNRELATED)
    apart_from_s, apart_to_s = from_s.copy(), to_s.copy()
    run_s, rate = np.empty(num_ops), np.empty(num_ops)
    for v in range(num_ops):
        run_s[v] = busy_s[v].min()
        rate[v] = (busy_s[v] * prices).min() / run_s[v] if run_s[v] > 0 else 0.0
    head_s, tail_s = np.empty((2, num_ops)), np.empty((2, num_ops))
    left_s, rates = np.empty(num_ops), np.empty(num_ops)
    for a in range(num_ops - 1, -1, -1):
        for v in range(a + 1, num_ops):
            least_s = _meet(ins, ops, v, a, from_s[a], True)
            if least_s < 0:
                continue
            least_s = max(least_s, _meet(outs, ops, a, v, to_s[v], False))
            if with_loads:
                num, load_s = 0, 0.0
                for w in range(a + 1, v):
                    if from_s[a, w] >= 0 and to_s[v, w] >= 0:
                        least_s = max(least_s, from_s[a, w] + time_s[w].min() + to_s[v, w])
                        head_s[0, num], tail_s[0, num] = from_s[a, w], to_s[v, w] - overhead_s[w]
                        head_s[1, num], tail_s[1, num] = apart_from_s[a, w], apart_to_s[v, w] - overhead_s[w]
                        left_s[num], rates[num] = run_s[w], rate[w]
                        load_s += run_s[w] * rate[w]
                        num += 1
                if load_s > PRICED * least_s:
                    least_s = max(least_s, _packed(head_s[:, :num], tail_s[:, :num], left_s[:num], rates[:num], most))
                apart_from_s[a, v] = _apart(ins, ops, v, a, from_s[a], apart_from_s[a], least_s)
                apart_to_s[v, a] = _apart(outs, ops, a, v, to_s[v], apart_to_s[v], least_s)
            from_s[a, v] = to_s[v, a] = least_s
    return from_s


@kernel
def _packed(head_s: FloatArray, tail_s: FloatArray, run_s: FloatArray, rate: FloatArray, price: float) -> float:
    """Return the seconds that items [I] need which start after heads and end before tails; ``run_s`` is overwritten.

    Heads and tails [2, I] are those on any device, and those on all but one, whose seconds count for at most ``price``.
    x seconds at the begin, y at the end, and what has to run between them at ``rate`` seconds each: the best of some x,
    and then of some y. An item that has to run in between shows that there is something between the two.
    """
    total_s, work_s, spared_s = 0.0, 0.0, 0.0
    for bounds_s in (head_s, tail_s):
        at_s, is_apart = _best_moment(bounds_s, run_s, rate, price)
        if is_apart:
            spared_s += price * (at_s - bounds_s[0].min())
        total_s, work_s = total_s + at_s, -spared_s
        for i in range(len(run_s)):
            run_s[i] = max(0.0, run_s[i] - max(0.0, at_s - bounds_s[1 if is_apart else 0, i]))
            work_s += rate[i] * run_s[i]
    return total_s + work_s if work_s > 0.0 else 0.0


@kernel
def _best_moment(bounds_s: FloatArray, run_s: FloatArray, rate: FloatArray, price: float) -> tuple[float, bool]:
    """Return the moment x of a grid that maximises x plus the work that has to follow, and by which bounds.

    ``bounds_s`` [2, I] are heads on any device and on all but one. The second value says whether the maximum is one
    with the latter, from which the work that the one device could do before x is subtracted.
    """
    first_s, last_s = bounds_s[0].min(), bounds_s[0].max()
    for bound_s in bounds_s[1]:
        if bound_s < np.inf:
            last_s = max(last_s, bound_s)
    step_s = (last_s - first_s) / (MOMENTS - 1)
    best_s, best, is_apart = -np.inf, 0, False
    for row in range(2 if step_s > 0.0 else 0):
        ahead_s = _ahead((bounds_s[row] - first_s) / step_s, run_s / step_s, rate)
        for k in range(MOMENTS):
            value_s = (k + ahead_s[k] - price * k * row) * step_s
            if ahead_s[k] > 0.0 and value_s > best_s:
                best_s, best, is_apart = value_s, k, row == 1
    return float(first_s + best * step_s), is_apart


@kernel
def _ahead(bound: FloatArray, run: FloatArray, rate: FloatArray) -> FloatArray:
    """Return [MOMENTS] the work that has to run after 0, 1, 2 and so on, of items [I] that begin from ``bound`` on."""
    whole, partial, partial_rate = np.zeros(MOMENTS + 1), np.zeros(MOMENTS + 1), np.zeros(MOMENTS + 1)
    work = np.empty(MOMENTS)
    for i in range(len(run)):
        begun = min(bound[i], MOMENTS - 1.0)
        k, last = int(begun), min(int(begun + run[i]), MOMENTS - 1)
        whole[k] += rate[i] * run[i]  # for moments up to k all of it is ahead, and up to the last one a part
        partial[k + 1] += rate[i] * (begun + run[i])
        partial[last + 1] -= rate[i] * (begun + run[i])
        partial_rate[k + 1] += rate[i]
        partial_rate[last + 1] -= rate[i]
    ahead, left, left_rate = whole.sum(), 0.0, 0.0
    for k in range(MOMENTS):
        left, left_rate = left + partial[k], left_rate + partial_rate[k]
        work[k] = ahead + left - left_rate * k
        ahead -= whole[k]
    return work
