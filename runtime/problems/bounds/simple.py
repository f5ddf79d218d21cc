"""Bounds in one line each: loads and the critical path. Legend: N ops, D devices."""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph import Csr
from hsdag.ir.paths import longest_before
from hsdag.runtime.problems.bounds.bound import Bound, largest
from hsdag.runtime.problems.schedule_problem import ScheduleProblem

LOAD, LONGEST_OP, CRITICAL_PATH = "the load shared by all devices", "the longest op", "the critical path"


def sequential_bound(problem: ScheduleProblem) -> Bound:
    """Seconds of sequential execution at least: the best-case load, one launch, and the overheads between ops."""
    overheads_s = problem.op_overhead_s * (problem.num_ops - 1)
    load_s = _best_load_s(problem) + float(problem.launch_s.min()) + overheads_s
    return Bound(load_s, "the best-case load and one launch")


def period_bound(problem: ScheduleProblem) -> Bound:
    """Seconds of a work-conserving period at least: the load with its overheads shared evenly, or the longest op."""
    loads_s = np.nanmin(problem.time_s, axis=1) + problem.op_overhead_s
    return largest(Bound(float(loads_s.sum()) / problem.num_devices, LOAD), Bound(float(loads_s.max()), LONGEST_OP))


def makespan_bound(problem: ScheduleProblem) -> Bound:
    """Seconds of a work-conserving makespan at least, whatever the order of ops and the links, without noise.

    The largest of the critical path, every op on its best device and every transfer free, and the best-case load
    shared evenly, with all overheads but the last one of each device. O(N D + E).
    """
    num_overheads = max(problem.num_ops - problem.num_devices, 0)
    shared_s = (_best_load_s(problem) + problem.op_overhead_s * num_overheads) / problem.num_devices
    return largest(Bound(shared_s, LOAD), Bound(critical_path_s(problem), CRITICAL_PATH))


def _best_load_s(problem: ScheduleProblem) -> float:
    return float(np.nanmin(problem.time_s, axis=1).sum())


def critical_path_s(problem: ScheduleProblem) -> float:
    """Seconds of the longest path, every op on its best device and every transfer free, in O(N D + E)."""
    best_s, inputs = np.nanmin(problem.time_s, axis=1), Csr.build(problem.num_ops, problem.edge_dst, problem.edge_src)
    before_s = longest_before(problem.topological_order, inputs, best_s, np.zeros(len(problem.edge_src)))
    return float((before_s + best_s).max())
