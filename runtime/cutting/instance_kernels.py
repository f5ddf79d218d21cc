"""Compiled loops over ops and their instances: where joins are copied to, and what crosses before and after.

Legend: N ops, R ops that run, D devices, I instances, J edges between instances, W words of a bit set.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hsdag.ir.graph import BoolArray, FloatArray, IntArray
from hsdag.ir.kernels import kernel

Words = NDArray[np.uint64]


@kernel
def cheaper_again(
    order: IntArray,
    indptr: IntArray,
    producers: IntArray,
    is_join: BoolArray,
    read_bytes: FloatArray,
    device: IntArray,
    num_devices: int,
) -> BoolArray:  # pragma: no cover - compiled
    """[N, D] joins for which less has to be sent to a device when they are computed there once more."""
    sent_bytes = np.zeros((len(device), num_devices))
    again = np.zeros((len(device), num_devices), dtype=np.bool_)
    for v in order:
        for d in range(num_devices):
            if d == device[v]:
                continue
            sent_bytes[v, d] = read_bytes[v]
            if is_join[v]:
                brought = 0.0
                for k in range(indptr[v], indptr[v + 1]):
                    brought += sent_bytes[producers[k], d]
                again[v, d] = brought < sent_bytes[v, d]
                sent_bytes[v, d] = min(sent_bytes[v, d], brought)
    return again


@kernel
def homes_of(
    order: IntArray, indptr: IntArray, readers: IntArray, is_end: BoolArray, again: BoolArray, device: IntArray
) -> BoolArray:  # pragma: no cover - compiled
    """[N, D] where each op has an instance: copied where it is read, and at home if anything else reads it.

    ``is_end`` [N] are ops that run for the sake of what they give; others that no instance reads have none.
    """
    homes = np.zeros(again.shape, dtype=np.bool_)
    for r in range(len(order) - 1, -1, -1):
        v = order[r]
        at_home = is_end[v]
        for k in range(indptr[v], indptr[v + 1]):
            for d in range(again.shape[1]):
                if homes[readers[k], d]:
                    if again[v, d]:
                        homes[v, d] = True
                    else:
                        at_home = True
        if at_home:
            homes[v, device[v]] = True
    return homes


@kernel
def crossings_around(
    src: IntArray, dst: IntArray, crossing: IntArray, by_source: IntArray, before: Words, after: Words
) -> None:  # pragma: no cover - compiled
    """Write the sets [I, W] of crossings that lie before and after each instance.

    ``crossing`` [J] is the number of an edge's crossing, -1 where it has none; edges come sorted by consumer, and in
    the order ``by_source`` by producer.
    """
    words = before.shape[1]
    for e in range(len(src)):
        for w in range(words):
            before[dst[e], w] |= before[src[e], w]
        if crossing[e] >= 0:
            before[dst[e], crossing[e] // 64] |= np.uint64(1) << np.uint64(crossing[e] % 64)
    for k in range(len(src) - 1, -1, -1):
        e = by_source[k]
        for w in range(words):
            after[src[e], w] |= after[dst[e], w]
        if crossing[e] >= 0:
            after[src[e], crossing[e] // 64] |= np.uint64(1) << np.uint64(crossing[e] % 64)
