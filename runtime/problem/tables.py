"""Tables and levels of ops for list scheduling, and features of ops for networks and rules.

Legend: N ops, E edges, D devices, F features.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.base.kernels import inlined
from hsdag.ir.graph.computation_graph import Csr, FloatArray, IntArray
from hsdag.ir.graph.paths import longest_before
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

NOISE = 2.0**-40
"""Share of the longest level below which two levels differ by rounding alone."""

OP_FEATURES = (
    "time, the mean over devices",
    "transfers of its inputs",
    "transfers of its outputs",
    "longest way to the end",
    "longest way from the beginning, with its own time",
    "inputs",
    "outputs",
    "share of the devices that support it",
    "time on the slowest device over that on the fastest",
    "longest way to the end, as a share of the longest path",
    "longest way from the beginning, as a share of the longest path",
    "longest path through it, as a share of the longest path",
    "longest way to the end without transfers, as a share of the longest path",
)
"""Features of ops; the first five are DOPPLER's (App. E.1). All but the shares are logarithms, of times in units of the
mean op's, of counts, and of the spread.
"""
WAY_TO_END, PATH_THROUGH, STATIC_WAY = 9, 11, 12


class Tables(NamedTuple):
    """A scheduling problem as compiled list schedulers read it."""

    time_s: FloatArray  # [N, D], infinite where unsupported
    latency_s: FloatArray  # [D, D], 0 on the diagonal
    bandwidth_bytes_per_s: FloatArray  # [D, D], infinite on the diagonal
    in_first: IntArray  # [N + 1] edges into op v are those from in_first[v] to in_first[v + 1]
    in_op: IntArray  # [E]
    in_bytes: FloatArray  # [E]
    out_first: IntArray  # [N + 1]
    out_op: IntArray  # [E]
    out_bytes: FloatArray  # [E]
    weight_bytes: FloatArray  # [N]
    output_bytes: FloatArray  # [N]
    memory_bytes: FloatArray  # [D]
    order: IntArray  # [N], topological
    op_overhead_s: float
    transfer_overhead_s: float


class Levels(NamedTuple):
    """Lengths of paths through each op [N] in seconds, at mean costs.

    An op takes the mean over the devices that support it, an edge the mean over ordered pairs of distinct devices
    (Topcuoglu et al. 2002, eq. 6 and 7; nothing with one device). Levels are rounded to a fine grid, so that levels
    that are equal but for rounding tie.
    """

    upward_s: FloatArray  # to the end of the graph, own time included: b-level, rank_u (eq. 8)
    downward_s: FloatArray  # from the beginning, without own time: t-level, rank_d (eq. 10)
    static_s: FloatArray  # b-level without communication
    heaviest: IntArray  # the consumer on the longest path to the end, -1 at its end; ties by op index


def tables_of(problem: ScheduleProblem) -> Tables:
    """Return the tables of a problem, in O(N D + E log E)."""
    is_same = np.eye(problem.num_devices, dtype=np.bool_)
    into = Csr.build(problem.num_ops, problem.edge_dst, problem.edge_src)
    out = Csr.build(problem.num_ops, problem.edge_src, problem.edge_dst)
    return Tables(
        time_s=np.where(problem.supported, problem.time_s, np.inf),
        latency_s=np.where(is_same, 0.0, problem.link_latency_s),
        bandwidth_bytes_per_s=np.where(is_same, np.inf, problem.link_bandwidth_bytes_per_s),
        in_first=into.indptr,
        in_op=into.indices,
        in_bytes=problem.edge_bytes[into.edges],
        out_first=out.indptr,
        out_op=out.indices,
        out_bytes=problem.edge_bytes[out.edges],
        weight_bytes=problem.weight_bytes.copy(),
        output_bytes=problem.output_bytes.copy(),
        memory_bytes=problem.memory_bytes.copy(),
        order=problem.topological_order.copy(),
        op_overhead_s=float(problem.op_overhead_s),
        transfer_overhead_s=float(problem.transfer_overhead_s),
    )


def mean_seconds(tables: Tables) -> FloatArray:
    """Return [N] the mean seconds of an op over the devices that support it."""
    able = np.isfinite(tables.time_s)
    return np.asarray(np.where(able, tables.time_s, 0.0).sum(axis=1) / able.sum(axis=1))


def mean_transfers(tables: Tables, size_bytes: FloatArray) -> FloatArray:
    """Return [E] the mean seconds to send ``size_bytes`` [E] over pairs of distinct devices; 0 with one device."""
    off = ~np.eye(len(tables.latency_s), dtype=np.bool_)
    if not off.any():
        return np.zeros(len(size_bytes))
    s_per_byte = (1.0 / tables.bandwidth_bytes_per_s[off]).mean()
    return np.asarray(tables.latency_s[off].mean() + s_per_byte * size_bytes, dtype=np.float64)


def lengths_of(tables: Tables) -> tuple[float, float]:
    """Return seconds of a schedule that keeps all devices busy, and of an op, at mean costs; 1 if all are 0."""
    mean_s = mean_seconds(tables)
    length_s, of_op_s = float(mean_s.sum()) / tables.time_s.shape[1], float(mean_s.mean())
    return (length_s, of_op_s) if of_op_s > 0 else (1.0, 1.0)


def levels_of(tables: Tables) -> Levels:
    """Return the levels of all ops, in O(N D + E)."""
    n = len(tables.time_s)
    mean_s = mean_seconds(tables)
    reverse = tables.order[::-1]
    every = np.arange(len(tables.out_op))
    outputs, inputs = Csr(tables.out_first, tables.out_op, every), Csr(tables.in_first, tables.in_op, every)
    sent_s = mean_transfers(tables, tables.out_bytes)
    behind_s = longest_before(reverse, outputs, mean_s, sent_s)
    downward_s = longest_before(tables.order, inputs, mean_s, mean_transfers(tables, tables.in_bytes))
    static_s = mean_s + longest_before(reverse, outputs, mean_s)
    source = np.repeat(np.arange(n), np.diff(tables.out_first))
    is_longest = (mean_s + behind_s)[tables.out_op] + sent_s >= behind_s[source] * (1 - NOISE)
    heaviest = np.full(n, n)
    np.minimum.at(heaviest, source[is_longest], tables.out_op[is_longest])
    heaviest[heaviest == n] = -1
    return Levels(on_grid(mean_s + behind_s), on_grid(downward_s), on_grid(static_s), heaviest)


def on_grid(level_s: FloatArray) -> FloatArray:
    """Return [N] levels rounded to multiples of a step, a power of two of about NOISE times the longest."""
    longest_s = float(level_s.max())
    step_s = 2.0 ** np.ceil(np.log2(longest_s)) * NOISE if longest_s > 0 else 1.0
    return np.asarray(np.round(level_s / step_s) * step_s if step_s > 0 else level_s, dtype=np.float64)


@inlined
def arrival_s(t: Tables, v: int, d: int, device: IntArray, end_s: FloatArray) -> float:
    """Return the seconds at which all inputs of v are on device d, every edge sent by itself at its own size."""
    latest_s = 0.0
    for k in range(t.in_first[v], t.in_first[v + 1]):
        u = t.in_op[k]
        home = device[u]
        link_s = t.latency_s[home, d] + t.in_bytes[k] / t.bandwidth_bytes_per_s[home, d]
        latest_s = max(latest_s, end_s[u] + link_s)
    return latest_s


def op_features(tables: Tables, levels: Levels) -> FloatArray:
    """Return [N, F] the features of all ops."""
    raw = paper_features(tables, levels)
    able = np.isfinite(tables.time_s)
    time_s = np.where(able, tables.time_s, np.nan)
    unit_s = max(float(raw[:, 0].mean()), np.finfo(float).tiny)
    longest_s = max(float((levels.upward_s + levels.downward_s).max()), unit_s)
    spread = np.log(np.nanmax(time_s, axis=1) + unit_s * 1e-3) - np.log(np.nanmin(time_s, axis=1) + unit_s * 1e-3)
    shape = np.stack(
        [
            np.log1p(np.diff(tables.in_first)),
            np.log1p(np.diff(tables.out_first)),
            able.mean(axis=1),
            spread,
            levels.upward_s / longest_s,
            levels.downward_s / longest_s,
            (levels.upward_s + levels.downward_s) / longest_s,
            levels.static_s / longest_s,
        ],
        axis=1,
    )
    return np.concatenate([np.log1p(raw / unit_s), shape], axis=1)


def paper_features(tables: Tables, levels: Levels) -> FloatArray:
    """Return [N, 5] DOPPLER's features (App. E.1) in seconds."""
    num = len(tables.time_s)
    mean_s, edge_s = mean_seconds(tables), mean_transfers(tables, tables.out_bytes)
    source = np.repeat(np.arange(num), np.diff(tables.out_first))
    received_s, sent_s = np.bincount(tables.out_op, edge_s, num), np.bincount(source, edge_s, num)
    # levels have the literature's names: DOPPLER's t-level leads to the end, its b-level to the beginning
    return np.stack([mean_s, received_s, sent_s, levels.upward_s, levels.downward_s + mean_s], axis=1)
