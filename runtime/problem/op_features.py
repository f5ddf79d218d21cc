"""What an op costs and where it stands in its graph, in numbers without a time unit. Legend: N ops, E edges, D devices.

One policy reads problems of any size and speed by them.
"""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.problem.tables import Levels, Tables, mean_seconds, mean_transfers

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
"""The first five are DOPPLER's (App. E.1). Times in units of the mean op, counts and the spread are logarithms."""
WAY_TO_END, PATH_THROUGH, STATIC_WAY = 9, 11, 12


def op_features(tables: Tables, levels: Levels) -> FloatArray:
    """[N, F] the features of all ops."""
    raw, able = paper_features(tables, levels), np.isfinite(tables.time_s)
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
    """[N, 5] DOPPLER's features (App. E.1) in seconds."""
    num, mean_s, edge_s = len(tables.time_s), mean_seconds(tables), mean_transfers(tables, tables.out_bytes)
    source, target = np.repeat(np.arange(num), np.diff(tables.out_first)), tables.out_op
    received_s, sent_s = np.bincount(target, edge_s, num), np.bincount(source, edge_s, num)
    # levels have the literature's names: DOPPLER's t-level leads to the end, its b-level to the beginning
    return np.stack([mean_s, received_s, sent_s, levels.upward_s, levels.downward_s + mean_s], axis=1)
