"""Dividing ops over devices one by one, and the dispatcher: no device waits while a batch is ready; compiled.

Unlike in an order given for each device, a batch whose inputs are on their way lets others go first. Legend: N ops,
E edges by source, D devices, G groups of inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.ir.graph.computation_graph import Csr, FloatArray, IntArray
from hsdag.ir.kernels import bare, inlined, longest_before
from hsdag.methods.batched.problem import BatchedProblem, BatchSchedule
from hsdag.scoring.memory import MEMORY_TOLERANCE


class Tables(NamedTuple):
    """What the dispatcher reads, and below the state of one decoding at a time."""

    time_s: FloatArray  # [N, D, G + 1], infinite where it is not allowed
    out_first: IntArray  # [N + 1] to E
    src: IntArray  # [E]
    dst: IntArray  # [E]
    out_bytes: FloatArray  # [E] of one group
    latency_s: FloatArray  # [D, D]
    s_per_byte: FloatArray  # [D, D]
    in_first: IntArray  # [N + 1] to E
    in_edge: IntArray  # [E] edges by the op that reads
    weight_bytes: FloatArray  # [N]
    held_bytes: FloatArray  # [N] of one group
    limit_bytes: FloatArray  # [D]
    tail_s: FloatArray  # [N] what comes after an op at least
    overhead_s: float
    size: IntArray  # [N, D] groups of a batch
    shared: IntArray  # [E, D, D] groups that two batches share
    waiting: IntArray  # [N, D] batches that one waits for
    arrival_s: FloatArray  # [N, D]
    start_s: FloatArray  # [N, D]
    free_s: FloatArray  # [D]
    load_s: FloatArray  # [D]
    left_s: FloatArray  # [D] load of batches that have not begun
    used_bytes: FloatArray  # [D]
    ready: IntArray  # [D, N]
    num_ready: IntArray  # [D]

    @staticmethod
    def of(problem: BatchedProblem) -> Tables:
        """The tables of one problem."""
        p, n, d = problem.costs, problem.costs.num_ops, problem.costs.num_devices
        out = Csr.build(n, p.edge_src, p.edge_dst)
        into = Csr.build(n, out.indices, p.edge_src[out.edges])
        times = np.nan_to_num(problem.group_time_s, nan=np.inf)
        least_s = times[:, :, 1:].min(axis=(1, 2))
        return Tables(
            time_s=times,
            out_first=out.indptr,
            src=p.edge_src[out.edges],
            dst=out.indices,
            out_bytes=problem.group_edge_bytes[out.edges],
            latency_s=problem.latency_s.astype(np.float64),
            s_per_byte=problem.s_per_byte,
            in_first=into.indptr,
            in_edge=into.edges,
            weight_bytes=p.weight_bytes.copy(),
            held_bytes=problem.held_bytes,
            limit_bytes=p.memory_bytes * (1 + MEMORY_TOLERANCE),
            tail_s=longest_before(p.topological_order[::-1], out, least_s, np.zeros(len(p.edge_src))),
            overhead_s=float(p.op_overhead_s),
            size=np.zeros((n, d), dtype=np.int64),
            shared=np.zeros((len(p.edge_src), d, d), dtype=np.int64),
            waiting=np.zeros((n, d), dtype=np.int64),
            arrival_s=np.zeros((n, d)),
            start_s=np.zeros((n, d)),
            free_s=np.zeros(d),
            load_s=np.zeros(d),
            left_s=np.zeros(d),
            used_bytes=np.zeros(d),
            ready=np.zeros((d, n), dtype=np.int64),
            num_ready=np.zeros(d, dtype=np.int64),
        )


def schedule_of(t: Tables, device: IntArray, priority: FloatArray) -> BatchSchedule:
    """The schedule of a placement [N, G] that is allowed."""
    loaded(t, device)
    dispatched_s(t, device, priority, np.inf)
    return BatchSchedule(device.copy(), np.where(t.size > 0, t.start_s, np.nan))


@bare
def divide(t: Tables, order: IntArray, divisions: IntArray, by_end: bool, device: IntArray) -> bool:
    """Fill ``device`` [N, G], op by op in ``order`` [N]; False where an op has no room left.

    Of ``divisions`` [K, D], groups on each device, an op takes the one of least device time, or ``by_end`` the one
    whose last batch ends first behind all that devices have. Groups go to devices in order.
    """
    end_s = t.arrival_s
    for d in range(len(t.free_s)):
        t.free_s[d] = t.used_bytes[d] = 0.0
    for v in order:
        best, best_end_s, least_s = -1, np.inf, np.inf
        for k in range(len(divisions)):
            total_s, last_s = 0.0, 0.0
            for d in range(len(t.free_s)):
                n = divisions[k, d]
                if n > 0:
                    fits = t.used_bytes[d] + t.weight_bytes[v] + n * t.held_bytes[v] <= t.limit_bytes[d]
                    total_s += t.time_s[v, d, n] if fits else np.inf
            if total_s == np.inf:
                continue
            if by_end:
                last_s = _append(t, v, divisions[k], device, end_s, False)
            if best < 0 or last_s < best_end_s or (last_s == best_end_s and total_s < least_s):
                best, best_end_s, least_s = k, last_s, total_s
        if best < 0:
            return False
        _append(t, v, divisions[best], device, end_s, True)
    return True


@inlined
def _append(t: Tables, v: int, count: IntArray, device: IntArray, end_s: FloatArray, keep: bool) -> float:
    """The last end of the batches of v, ``count`` [D] groups on each device, behind all that these have."""
    g, last_s = 0, 0.0
    for d in range(len(t.free_s)):
        n = count[d]
        if n == 0:
            continue
        begin_s = t.free_s[d]
        for i in range(t.in_first[v], t.in_first[v + 1]):
            k = t.in_edge[i]
            u = t.src[k]
            for a in range(len(t.free_s)):
                shared = 0
                for h in range(g, g + n):
                    shared += device[u, h] == a
                if shared > 0:
                    sent_s = t.latency_s[a, d] + shared * t.out_bytes[k] * t.s_per_byte[a, d]
                    begin_s = max(begin_s, end_s[u, a] + sent_s)
        last_s = max(last_s, begin_s + t.time_s[v, d, n])
        if keep:
            end_s[v, d] = begin_s + t.time_s[v, d, n]
            t.free_s[d] = end_s[v, d] + t.overhead_s
            t.used_bytes[d] += t.weight_bytes[v] + n * t.held_bytes[v]
            device[v, g : g + n] = d
        g += n
    return last_s


@bare
def loaded(t: Tables, device: IntArray) -> bool:
    """Count the batches of a placement [N, G], and load and memory of devices; whether all is allowed."""
    num_ops, num_devices = t.size.shape
    for d in range(num_devices):
        t.load_s[d] = -t.overhead_s
        t.used_bytes[d] = 0.0
    for v in range(num_ops):
        for d in range(num_devices):
            t.size[v, d] = 0
        for g in range(device.shape[1]):
            t.size[v, device[v, g]] += 1
        for d in range(num_devices):
            n = t.size[v, d]
            if n > 0:
                t.load_s[d] += t.time_s[v, d, n] + t.overhead_s
                t.used_bytes[d] += t.weight_bytes[v] + n * t.held_bytes[v]
    is_allowed = True
    for d in range(num_devices):
        is_allowed &= t.load_s[d] < np.inf and t.used_bytes[d] <= t.limit_bytes[d]
    return is_allowed


@bare
def dispatched_s(t: Tables, device: IntArray, priority: FloatArray, cutoff_s: float) -> float:
    """Makespan of a placement [N, G] that ``loaded`` was called for; infinite as soon as it exceeds ``cutoff_s``."""
    _prepare(t, device)
    last_s = 0.0
    while True:
        d, now_s = _next_device(t)
        if d < 0:
            return last_s
        place = _next_op(t, priority, d, now_s)
        v = t.ready[d, place]
        t.num_ready[d] -= 1
        t.ready[d, place] = t.ready[d, t.num_ready[d]]
        end_s = now_s + t.time_s[v, d, t.size[v, d]]
        if now_s + t.left_s[d] > cutoff_s or end_s + t.tail_s[v] > cutoff_s:
            return np.inf
        t.left_s[d] -= end_s - now_s + t.overhead_s
        t.start_s[v, d] = now_s
        t.free_s[d] = end_s + t.overhead_s
        last_s = max(last_s, end_s)
        _deliver(t, v, d, end_s)


@inlined
def _prepare(t: Tables, device: IntArray) -> None:
    num_ops, num_devices = t.size.shape
    for d in range(num_devices):
        t.free_s[d] = 0.0
        t.left_s[d] = t.load_s[d]
        t.num_ready[d] = 0
    for v in range(num_ops):
        for d in range(num_devices):
            t.waiting[v, d] = 0
            t.arrival_s[v, d] = 0.0
    for k in range(len(t.dst)):
        u, v = t.src[k], t.dst[k]
        for a in range(num_devices):
            for b in range(num_devices):
                t.shared[k, a, b] = 0
        for g in range(device.shape[1]):
            a, b = device[u, g], device[v, g]
            t.waiting[v, b] += t.shared[k, a, b] == 0
            t.shared[k, a, b] += 1
    for v in range(num_ops):
        for d in range(num_devices):
            if t.size[v, d] > 0 and t.waiting[v, d] == 0:
                t.ready[d, t.num_ready[d]] = v
                t.num_ready[d] += 1


@inlined
def _next_device(t: Tables) -> tuple[int, float]:
    """The device that can begin a batch first, and when; -1 when all are done."""
    best, best_s = -1, np.inf
    for d in range(len(t.free_s)):
        first_s = np.inf
        for i in range(t.num_ready[d]):
            first_s = min(first_s, t.arrival_s[t.ready[d, i], d])
        begin_s = max(first_s, t.free_s[d])
        if begin_s < best_s:
            best, best_s = d, begin_s
    return best, best_s


@inlined
def _next_op(t: Tables, priority: FloatArray, d: int, now_s: float) -> int:
    """Place among the ready of d of the one to begin."""
    best = -1
    for i in range(t.num_ready[d]):
        v = t.ready[d, i]
        if t.arrival_s[v, d] <= now_s:
            w = t.ready[d, max(best, 0)]
            if best < 0 or priority[v] > priority[w] or (priority[v] == priority[w] and v < w):
                best = i
    return best


@inlined
def _deliver(t: Tables, u: int, a: int, end_s: float) -> None:
    for k in range(t.out_first[u], t.out_first[u + 1]):
        v = t.dst[k]
        for b in range(len(t.free_s)):
            n = t.shared[k, a, b]
            if n > 0:
                sent_s = t.latency_s[a, b] + n * t.out_bytes[k] * t.s_per_byte[a, b]
                t.arrival_s[v, b] = max(t.arrival_s[v, b], end_s + sent_s)
                t.waiting[v, b] -= 1
                if t.waiting[v, b] == 0:
                    t.ready[b, t.num_ready[b]] = v
                    t.num_ready[b] += 1
