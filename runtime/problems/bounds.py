"""Lower bounds: what no placement and no schedule of a problem can beat. Legend: N ops, D devices."""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph import Csr
from hsdag.ir.paths import longest_before
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


def sequential_bound_s(problem: ScheduleProblem) -> float:
    """Seconds of sequential execution at least: the best-case load, one launch, and the overheads between ops."""
    return _best_load_s(problem) + float(problem.launch_s.min()) + problem.op_overhead_s * (problem.num_ops - 1)


def period_bound_s(problem: ScheduleProblem) -> float:
    """Seconds of a work-conserving period at least: the load with its overheads shared evenly, or the longest op."""
    loads_s = np.nanmin(problem.time_s, axis=1) + problem.op_overhead_s
    return max(float(loads_s.sum()) / problem.num_devices, float(loads_s.max()))


def makespan_bound_s(problem: ScheduleProblem) -> float:
    """Seconds of a work-conserving makespan at least, whatever the order of ops and the links, without noise.

    The larger of the critical path, every op on its best device and every transfer free, and the best-case load
    shared evenly, with all overheads but the last one of each device. O(N D + E).
    """
    num_overheads = max(problem.num_ops - problem.num_devices, 0)
    shared_s = (_best_load_s(problem) + problem.op_overhead_s * num_overheads) / problem.num_devices
    return max(shared_s, critical_path_s(problem))


def _best_load_s(problem: ScheduleProblem) -> float:
    return float(np.nanmin(problem.time_s, axis=1).sum())


def critical_path_s(problem: ScheduleProblem) -> float:
    """Seconds of the longest path, every op on its best device and every transfer free, in O(N D + E)."""
    best_s, inputs = np.nanmin(problem.time_s, axis=1), Csr.build(problem.num_ops, problem.edge_dst, problem.edge_src)
    before_s = longest_before(problem.topological_order, inputs, best_s, np.zeros(len(problem.edge_src)))
    return float((before_s + best_s).max())
