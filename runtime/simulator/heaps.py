"""Binary heaps inside flat arrays, compiled: of whole-number keys, and of timed events.

Compiled functions of the simulator that allocate nothing are built without numba's reference counting (``_nrt``):
counting references to the tables at every call took more than half of the time of a simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from hsdag.ir.graph import IntArray

F = TypeVar("F", bound=Callable[..., Any])
Records = NDArray[np.void]
EVENT = np.dtype([("time_s", "f8"), ("what", "i8")], align=True)
"""An event: op v becomes ready, or bus b (what = N + b) is free again."""


def bare(function: F) -> F:
    """Compile a function that allocates nothing."""
    options: dict[str, Any] = {"_nrt": False}
    compiled: F = numba.njit(cache=True, nogil=True, error_model="numpy", **options)(function)
    return compiled


def inlined(function: F) -> F:
    """Compile a function that allocates nothing into its callers."""
    options: dict[str, Any] = {"_nrt": False, "forceinline": True}
    compiled: F = numba.njit(cache=True, nogil=True, error_model="numpy", **options)(function)
    return compiled


@inlined
def push_key(heap: IntArray, base: int, size: int, key: int) -> None:
    """Add ``key`` to the min-heap of ``size`` keys that begins at ``base``."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        other = heap[base + parent]
        if other <= key:
            break
        heap[base + i] = other
        i = parent
    heap[base + i] = key


@inlined
def pop_key(heap: IntArray, base: int, size: int) -> int:
    """Take the smallest key out of the min-heap of ``size`` keys that begins at ``base``."""
    top: int = heap[base]
    left = size - 1
    last = heap[base + left]
    i, child = 0, 1
    while child < left:
        if child + 1 < left and heap[base + child + 1] < heap[base + child]:
            child += 1
        if heap[base + child] >= last:
            break
        heap[base + i] = heap[base + child]
        i = child
        child = 2 * i + 1
    heap[base + i] = last
    return top


@inlined
def push_event(heap: Records, size: int, time_s: float, what: int) -> None:
    """Add an event to the heap of ``size`` events ordered by time alone."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if heap[parent].time_s <= time_s:
            break
        heap[i].time_s = heap[parent].time_s
        heap[i].what = heap[parent].what
        i = parent
    heap[i].time_s = time_s
    heap[i].what = what


@inlined
def pop_event(heap: Records, size: int) -> int:
    """Take the earliest event out of the heap of ``size`` events."""
    top: int = heap[0].what
    left = size - 1
    time_s, what = heap[left].time_s, heap[left].what
    i, child = 0, 1
    while child < left:
        if child + 1 < left and heap[child + 1].time_s < heap[child].time_s:
            child += 1
        if heap[child].time_s >= time_s:
            break
        heap[i].time_s = heap[child].time_s
        heap[i].what = heap[child].what
        i = child
        child = 2 * i + 1
    heap[i].time_s = time_s
    heap[i].what = what
    return top
