"""Idle time of devices during insertion scheduling, as sorted gaps. Legend: N ops, D devices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.ir.kernels import inlined


class IdleTime(NamedTuple):
    """The gaps of all devices in ascending order, each of positive length; the last one of a device has no end."""

    begin_s: FloatArray  # [D, N + 1]
    end_s: FloatArray  # [D, N + 1]
    num_gaps: IntArray  # [D]

    @staticmethod
    def of(num_devices: int, num_ops: int) -> IdleTime:
        """Devices that are idle throughout, with room for ``num_ops`` ops."""
        shape = num_devices, num_ops + 1
        return IdleTime(np.zeros(shape), np.full(shape, np.inf), np.ones(num_devices, dtype=np.int64))


@inlined
def earliest(idle: IdleTime, d: int, ready_s: float, duration_s: float, overhead_s: float) -> tuple[float, int]:
    """When device d can first run an op that is ready at ``ready_s``, and the slot of that gap."""
    low, high = 0, idle.num_gaps[d] - 1
    while low < high:  # the first gap that does not end too early
        middle = (low + high) // 2
        if ready_s + duration_s + overhead_s <= idle.end_s[d, middle]:
            high = middle
        else:
            low = middle + 1
    while max(idle.begin_s[d, low], ready_s) + duration_s + overhead_s > idle.end_s[d, low]:
        low += 1
    return max(idle.begin_s[d, low], ready_s), low


@inlined
def occupy(idle: IdleTime, d: int, i: int, start_s: float, until_s: float) -> None:
    """Take [start, until) out of gap i of device d."""
    begin_s, end_s = idle.begin_s[d], idle.end_s[d]
    has_left, has_right = start_s > begin_s[i], until_s < end_s[i]
    if has_left and has_right:
        for j in range(idle.num_gaps[d], i + 1, -1):
            begin_s[j], end_s[j] = begin_s[j - 1], end_s[j - 1]
        idle.num_gaps[d] += 1
        begin_s[i + 1], end_s[i + 1] = until_s, end_s[i]
        end_s[i] = start_s
    elif has_left:
        end_s[i] = start_s
    elif has_right:
        begin_s[i] = until_s
    else:
        idle.num_gaps[d] -= 1
        for j in range(i, idle.num_gaps[d]):
            begin_s[j], end_s[j] = begin_s[j + 1], end_s[j + 1]
