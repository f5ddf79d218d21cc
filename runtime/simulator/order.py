"""The keys of the queues: given priorities, random ranks, and lengths of the way to the end.

Legend: N ops, D devices.
"""

from __future__ import annotations

import numba
import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.runtime.simulator.heaps import Records
from hsdag.runtime.simulator.semantics import Execution, Order, Semantics
from hsdag.runtime.simulator.work_conserving import BY_ARRIVAL, BY_KEY, BY_LATEST_ARRIVAL, BY_PATH

SEQUENTIAL = -1
"""The mode of a simulation that needs no queue."""


def mode_and_keys(semantics: Semantics, priority: FloatArray | None, num_ops: int) -> tuple[int, IntArray]:
    """The mode of a simulation and the keys [N] of the ops, zeros where the mode needs none.

    Raises OptionError when PRIORITY is asked for without priorities, or they are not [N] or not numbers.
    """
    if priority is not None and (priority.shape != (num_ops,) or np.isnan(priority).any()):
        raise OptionError(f"priorities must be {num_ops} numbers, one for each op")
    order = semantics.order or (Order.FIFO if priority is None else Order.PRIORITY)
    nothing = np.zeros(num_ops, dtype=np.int64)
    if order is Order.PRIORITY and priority is None:
        raise OptionError("order 'priority' needs priorities; the placement has none")
    if semantics.execution is Execution.SEQUENTIAL:
        return SEQUENTIAL, nothing
    if order is Order.PRIORITY and priority is not None:
        return BY_KEY, _keys(np.argsort(priority, kind="stable"))
    if order is Order.RANDOM:
        rank = np.random.default_rng(semantics.seed).permutation(num_ops)
        return BY_KEY, _keys(np.argsort(rank))
    modes = {Order.FIFO: BY_ARRIVAL, Order.DEPTH_FIRST: BY_LATEST_ARRIVAL, Order.CRITICAL_PATH: BY_PATH}
    return modes[order], nothing


def _keys(ops: IntArray) -> IntArray:
    """[N] keys of all ops: rank in the high half, op in the low half."""
    keys = np.empty(len(ops), dtype=np.int64)
    keys[ops] = (np.arange(len(ops)) << 32) | ops
    return keys


@numba.njit(cache=True, nogil=True, error_model="numpy")
def set_path_keys(ops: Records, edges: Records, links: Records, time_s: FloatArray) -> None:
    """Keys by the longest way from each op's start to the end: nominal times on the placed devices, and links."""
    n = len(ops)
    level_s = np.zeros(n)
    for i in range(n - 1, -1, -1):
        v = ops[i].order
        home = ops[v].device
        longest_s = 0.0
        for k in range(ops[v].first, ops[v].stop):
            u = edges[k].consumer
            away = ops[u].device
            behind_s = level_s[u]
            if away != home:
                link = links[home, away]
                behind_s += link.latency_s + edges[k].size_bytes / link.bandwidth_bytes_per_s
            longest_s = max(longest_s, behind_s)
        level_s[v] = time_s[v, home] + longest_s
    by_level = np.argsort(-level_s, kind="mergesort")
    for rank in range(n):
        ops[by_level[rank]].key = (rank << 32) | by_level[rank]
