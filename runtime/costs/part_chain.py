"""The chain of parts that makes a work-conserving schedule as long as it is. Legend: S parts."""

from __future__ import annotations

import numpy as np
from numba import njit

from hsdag.ir.graph import BoolArray, FloatArray, IntArray


@njit(cache=True)
def longest_chain(
    device: IntArray, duration_s: FloatArray, follows: BoolArray, start_s: FloatArray
) -> BoolArray:  # pragma: no cover - compiled
    """[S] parts on a chain that fills the time from the start to the end of the last part.

    A part begins when the last one it reads ends, or the one before it on its device; from the end back, the chain
    takes the first of those, one that is read before one that merely comes before.
    """
    count = len(device)
    chosen = np.zeros(count, dtype=np.bool_)
    p = -1
    for q in range(count):
        if p < 0 or start_s[q] + duration_s[q] > start_s[p] + duration_s[p]:
            p = q
    while p >= 0:
        chosen[p] = True
        found = -1
        for q in range(count):
            if chosen[q] or start_s[q] + duration_s[q] != start_s[p]:
                continue
            if follows[q, p]:
                found = q
                break
            if found < 0 and device[q] == device[p]:
                found = q
        p = found
    return chosen
