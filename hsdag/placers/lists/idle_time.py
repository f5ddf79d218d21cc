"""Idle time of devices during insertion scheduling: sorted gaps in chained blocks, skipped a block at a time.

Legend: D devices, P blocks, B gaps a block has room for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.ir.compiled import inlined
from hsdag.ir.graph import FloatArray, IntArray

SMALLEST_BLOCK = 32
ROUNDING = 1e-15
"""Ends of gaps times this is more than the rounding of a gap's length."""


class IdleTime(NamedTuple):
    """The gaps of all devices, each of positive length; the last one of a device has no end.

    A search passes over a block whose longest gap is too short, or that ends too early, without looking into it;
    blocks at the front of a device in which nothing is left are dropped.
    """

    begin_s: FloatArray  # [P, B]
    end_s: FloatArray  # [P, B]
    num_gaps: IntArray  # [P]
    longest_s: FloatArray  # [P]
    following: IntArray  # [P] the block behind, or -1
    first: IntArray  # [D] block
    used: IntArray  # [1] blocks in use

    @staticmethod
    def of(num_devices: int, num_ops: int) -> IdleTime:
        """Devices that are idle throughout, with room for ``num_ops`` ops."""
        size = max(SMALLEST_BLOCK, int(np.sqrt(num_ops)))
        num_blocks = num_devices + 2 * num_ops // size + 1
        idle = IdleTime(
            begin_s=np.zeros((num_blocks, size)),
            end_s=np.zeros((num_blocks, size)),
            num_gaps=np.zeros(num_blocks, dtype=np.int64),
            longest_s=np.zeros(num_blocks),
            following=np.full(num_blocks, -1, dtype=np.int64),
            first=np.arange(num_devices),
            used=np.array([num_devices]),
        )
        idle.end_s[:num_devices, 0] = np.inf
        idle.longest_s[:num_devices] = np.inf
        idle.num_gaps[:num_devices] = 1
        return idle


@inlined
def earliest(idle: IdleTime, d: int, ready_s: float, duration_s: float, overhead_s: float) -> tuple[float, int, int]:
    """When device d can first run an op that is ready at ``ready_s``, and the block and slot of that gap."""
    b = idle.first[d]
    while True:
        if idle.num_gaps[b] > 0:
            last_s = idle.end_s[b, idle.num_gaps[b] - 1]
            is_long = idle.longest_s[b] >= duration_s + overhead_s - ROUNDING * last_s
            if is_long and ready_s + duration_s + overhead_s <= last_s:
                for i in range(idle.num_gaps[b]):
                    start_s = max(idle.begin_s[b, i], ready_s)
                    if start_s + duration_s + overhead_s <= idle.end_s[b, i]:
                        return start_s, b, i
        b = idle.following[b]


@inlined
def occupy(idle: IdleTime, d: int, b: int, i: int, start_s: float, until_s: float) -> None:
    """Take [start, until) out of gap i of block b of device d."""
    has_left, has_right = start_s > idle.begin_s[b, i], until_s < idle.end_s[b, i]
    if has_left and has_right:
        if idle.num_gaps[b] == idle.begin_s.shape[1]:
            half = idle.num_gaps[b] // 2
            _split(idle, b, half)
            if i >= half:
                b, i = idle.following[b], i - half
        for j in range(idle.num_gaps[b], i + 1, -1):
            idle.begin_s[b, j], idle.end_s[b, j] = idle.begin_s[b, j - 1], idle.end_s[b, j - 1]
        idle.num_gaps[b] += 1
        idle.begin_s[b, i + 1], idle.end_s[b, i + 1] = until_s, idle.end_s[b, i]
        idle.end_s[b, i] = start_s
    elif has_left:
        idle.end_s[b, i] = start_s
    elif has_right:
        idle.begin_s[b, i] = until_s
    else:
        for j in range(i, idle.num_gaps[b] - 1):
            idle.begin_s[b, j], idle.end_s[b, j] = idle.begin_s[b, j + 1], idle.end_s[b, j + 1]
        idle.num_gaps[b] -= 1
    _measure(idle, b)
    while idle.num_gaps[idle.first[d]] == 0:
        idle.first[d] = idle.following[idle.first[d]]


@inlined
def _split(idle: IdleTime, b: int, half: int) -> None:
    """Move the gaps of block b from ``half`` on into a new block behind it."""
    new = idle.used[0]
    idle.used[0] += 1
    for j in range(half, idle.num_gaps[b]):
        idle.begin_s[new, j - half], idle.end_s[new, j - half] = idle.begin_s[b, j], idle.end_s[b, j]
    idle.num_gaps[new] = idle.num_gaps[b] - half
    idle.num_gaps[b] = half
    idle.following[new] = idle.following[b]
    idle.following[b] = new
    _measure(idle, new)
    _measure(idle, b)


@inlined
def _measure(idle: IdleTime, b: int) -> None:
    longest_s = 0.0
    for j in range(idle.num_gaps[b]):
        longest_s = max(longest_s, idle.end_s[b, j] - idle.begin_s[b, j])
    idle.longest_s[b] = longest_s
