"""Graphs of equal blocks in a row, for tests of what looks for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem

BLOCK = ("split", "left", "left", "left", "right", "right", "right", "join", "scale")
"""Types of a block's ops; both branches begin at the first op and end at the eighth."""
EDGES = ((0, 1), (1, 2), (2, 3), (0, 4), (4, 5), (5, 6), (3, 7), (6, 7), (7, 8))


def chain(widths: Sequence[float], num_devices: int = 2, *, loads: int = 0, **tables: object) -> ScheduleProblem:
    """Blocks in a row between an op of its own at each end; times are those of BLOCK times the block's width.

    Each block has so many more ops in a row, the first of them without inputs, the last of which its eighth reads.
    """
    seconds = np.array([1.0, 4, 3, 2, 3, 4, 2, 1, 1, *[1.0] * loads])
    time_s = np.concatenate([[0.5], *(seconds * width for width in widths), [0.7]])
    kinds, more = (
        (*BLOCK, *("load", "convert")[:loads]),
        [(8 + loads - i, 7 if i == 0 else 9 + loads - i) for i in range(loads)],
    )
    inner = (*EDGES, *more)
    size, edges = len(kinds), [(0, 1)]
    for number in range(len(widths)):
        first = 1 + number * size
        edges += [(first + u, first + v) for u, v in inner]
        edges += [(first + 8, first + size if number + 1 < len(widths) else 1 + len(widths) * size)]
    types = ("begin", *kinds * len(widths), "end")
    return ScheduleProblem.from_arrays(
        np.repeat(time_s[:, None], num_devices, axis=1),
        edges,
        output_bytes=0.5,
        link_bandwidth_bytes_per_s=1.0,
        labels=OpLabels.empty(len(types), types),
        **tables,  # type: ignore[arg-type]
    )
