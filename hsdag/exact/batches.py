"""Batching: several inputs divided over devices in the batch sizes these allow (DiviML, section III).

Legend: N ops, D devices, S batch sizes, L inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hsdag.ir.graph import FloatArray
from hsdag.runtime.schedule_problem import ScheduleProblem


@dataclass(frozen=True, eq=False)
class BatchTable:
    """What batches of an op take: t(i, u, b) of DiviML, for ``num_inputs`` inputs of the whole graph.

    ``time_s`` is [N, D, S], NaN where a device does not run an op in that size. Raises ValueError for sizes that are
    not rising from 1 to ``num_inputs``, for tables of another shape, and for negative times.
    """

    num_inputs: int
    sizes: tuple[int, ...]
    time_s: FloatArray  # [N, D, S]

    def __post_init__(self) -> None:
        if self.num_inputs < 1 or not self.sizes:
            raise ValueError(f"batching needs inputs and batch sizes, not {self.num_inputs} and {self.sizes}")
        if list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 1 or self.sizes[-1] > self.num_inputs:
            raise ValueError(f"batch sizes must rise from 1 to {self.num_inputs} at most, not {self.sizes}")
        if self.time_s.ndim != 3 or self.time_s.shape[2] != len(self.sizes):
            raise ValueError(f"time_s must be ops by devices by {len(self.sizes)} sizes, not {self.time_s.shape}")
        if np.any(self.time_s < 0) or np.any(np.isinf(self.time_s)):
            raise ValueError("times of batches must be finite and not negative")
        self.time_s.flags.writeable = False

    @staticmethod
    def single(problem: ScheduleProblem) -> BatchTable:
        """One input, in batches of one."""
        return BatchTable(1, (1,), problem.time_s[:, :, None].copy())

    @staticmethod
    def scaled(problem: ScheduleProblem, num_inputs: int, sizes: tuple[int, ...], fixed_share: ArrayLike) -> BatchTable:
        """Batches that take t (fixed_share + (1 - fixed_share) b); ``fixed_share`` is one number, or one a device."""
        share = np.broadcast_to(np.asarray(fixed_share, dtype=np.float64), (problem.num_devices,))[None, :, None]
        return BatchTable(num_inputs, sizes, problem.time_s[:, :, None] * (share + (1 - share) * np.asarray(sizes)))

    def of_ops(self, ops: ArrayLike, num_inputs: int | None = None) -> BatchTable:
        """The table of some of the ops, perhaps for another number of inputs, which leaves out larger sizes."""
        count = num_inputs or self.num_inputs
        kept = [k for k, size in enumerate(self.sizes) if size <= count]
        return BatchTable(count, tuple(self.sizes[k] for k in kept), self.time_s[np.asarray(ops)][:, :, kept].copy())
