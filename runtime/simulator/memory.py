"""Peak memory of a simulated run, results being freed after their last use.

Legend: N ops, D devices, R transfer records.
"""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph import FloatArray, IntArray
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator.heaps import Records


def peak_memory_bytes(
    problem: ScheduleProblem,
    device: IntArray,
    start_s: FloatArray,
    end_s: FloatArray,
    records: Records,
) -> FloatArray:
    """[D] largest bytes held at any time: weights throughout, results from their op's start to their last use.

    A result lasts at home until its consumers there and its transfers have ended; its copy on another device,
    of the size that is sent, from the start of the transfer until the last consumer there has ended. A result
    that nobody reads is kept.
    """
    n, d = problem.num_ops, problem.num_devices
    src, dst = problem.edge_src, problem.edge_dst
    local = device[src] == device[dst]
    free_s = end_s.copy()
    free_s[np.bincount(src, minlength=n) == 0] = np.inf
    np.maximum.at(free_s, src[local], end_s[dst[local]])
    np.maximum.at(free_s, records["op"], records["end_s"])
    num_ports = int(problem.edge_port.max(initial=0)) + 1
    code = (records["op"] * num_ports + records["port"]) * d + records["to"]
    by_code = np.argsort(code)
    row = by_code[np.searchsorted(code[by_code], ((src * num_ports + problem.edge_port) * d + device[dst])[~local])]
    copy_free_s = records["end_s"].copy()
    np.maximum.at(copy_free_s, row, end_s[dst[~local]])

    where = np.concatenate([device, records["to"]])
    from_s = np.concatenate([start_s, records["start_s"]])
    until_s = np.concatenate([free_s, copy_free_s])
    size = np.concatenate([problem.output_bytes, records["size_bytes"]])
    weights = np.bincount(device, weights=problem.weight_bytes, minlength=d)
    peaks = [_peak(from_s[where == i], until_s[where == i], size[where == i]) for i in range(d)]
    return np.asarray(weights + np.asarray(peaks), dtype=np.float64)


def _peak(from_s: FloatArray, until_s: FloatArray, size: FloatArray) -> float:
    """Largest sum of sizes of the intervals [from, until) that share a moment."""
    if not len(size):
        return 0.0
    times = np.concatenate([from_s, until_s])
    order = np.argsort(times, kind="stable")
    held = np.cumsum(np.concatenate([size, -size])[order])
    times = times[order]
    moment_ends = np.append(times[1:] > times[:-1], False)  # the last changes of all only free
    return float(np.max(held[moment_ends], initial=0.0))
