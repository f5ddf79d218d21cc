"""Binary heaps inside flat arrays, compiled: entries by a number, ties by a key."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hsdag.ir.kernels import inlined

Records = NDArray[np.void]
ENTRY = np.dtype([("value", "f8"), ("key", "i8")], align=True)


@inlined
def _precedes(heap: Records, i: int, value: float, key: int) -> bool:
    """Whether entry i comes before (value, key); without branches, as nobody could foretell them."""
    earlier: bool = (heap[i].value < value) | ((heap[i].value == value) & (heap[i].key < key))
    return earlier


@inlined
def push(heap: Records, base: int, size: int, value: float, key: int) -> None:
    """Add an entry to the min-heap of ``size`` entries that begins at ``base``."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if _precedes(heap, base + parent, value, key):
            break
        heap[base + i].value = heap[base + parent].value
        heap[base + i].key = heap[base + parent].key
        i = parent
    heap[base + i].value = value
    heap[base + i].key = key


@inlined
def pop(heap: Records, base: int, size: int) -> int:
    """Take the first entry out of the min-heap of ``size`` entries that begins at ``base``; its key."""
    top: int = heap[base].key
    left = size - 1
    value, key = heap[base + left].value, heap[base + left].key
    i, child = 0, 1
    while child < left:
        other = child + 1
        if other < left and _precedes(heap, base + other, heap[base + child].value, heap[base + child].key):
            child = other
        if not _precedes(heap, base + child, value, key):
            break
        heap[base + i].value = heap[base + child].value
        heap[base + i].key = heap[base + child].key
        i = child
        child = 2 * i + 1
    heap[base + i].value = value
    heap[base + i].key = key
    return top
