"""Find the devices whose memory a placement exceeds. Legend: N ops, E edges, D devices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import LinkSharing, Order, Semantics
from hsdag.runtime.simulator.simulation import simulate

MEMORY_TOLERANCE = 1e-9
"""Relative excess up to which a peak above a limit counts as rounding."""


@dataclass(frozen=True, eq=False)
class MemoryCheck:
    """Check of placements of ops against the memory of devices, by the peak of one simulated inference."""

    problem: ScheduleProblem
    semantics: Semantics

    @cached_property
    def has_limits(self) -> bool:
        """Return whether any device has a limit."""
        return bool(np.isfinite(self.problem.memory_bytes).any())

    @property
    def resident_bytes(self) -> FloatArray:
        """Return [N] the bytes that each op may keep in memory: its weights and its result."""
        return self.problem.weight_bytes + self.problem.output_bytes

    def fits(self, device: IntArray) -> bool:
        """Return whether a placement [N] exceeds the memory of no device."""
        return not self.overfull(device).any()

    def reason(self, device: IntArray, priority: IntArray | None = None) -> str | None:
        """Return why a placement [N] with ranks [N] does not fit into memory; None if it does."""
        if not (full := self.overfull(device, priority)).any():
            return None
        names = ", ".join(self.problem.device_names[d] for d in np.flatnonzero(full))
        return f"the memory of {names} is exceeded"

    def overfull(self, device: IntArray, priority: IntArray | None = None) -> BoolArray:
        """Return [D] whether a placement [N] exceeds the memory of each device.

        The placement is simulated only if the sums of weights and results leave that open.
        """
        problem = self.problem
        nothing = np.zeros(problem.num_devices, dtype=np.bool_)
        if not self.has_limits:
            return nothing
        src, dst, d = problem.edge_src, problem.edge_dst, problem.num_devices
        weights = np.bincount(device, problem.weight_bytes, d)
        if over_memory(problem, weights).any():
            return over_memory(problem, weights)
        away = device[src] != device[dst]
        copies = np.bincount(device[dst][away], problem.edge_bytes[away], d)
        if not over_memory(problem, weights + np.bincount(device, problem.output_bytes, d) + copies).any():
            return nothing
        return over_memory(problem, self.peak_bytes(device, priority))

    def peak_bytes(self, device: IntArray, priority: IntArray | None = None) -> FloatArray:
        """Return [D] the peak bytes in one simulated inference; without ranks, ops run in the semantics' own order."""
        return simulate(self.problem, device, one_inference(self.optional_ranks), priority).peak_memory_bytes

    @property
    def optional_ranks(self) -> Semantics:
        """Return the semantics under which plans may have ranks and need none: an order by priority is left out."""
        return replace(self.semantics, order=None) if self.semantics.order is Order.PRIORITY else self.semantics


def over_memory(problem: ScheduleProblem, resident_bytes: ArrayLike) -> BoolArray:
    """Return [D] whether ``resident_bytes``, [D] or a number for all devices, exceed the memory of each device."""
    return np.asarray(np.asarray(resident_bytes) > problem.memory_bytes * (1 + MEMORY_TOLERANCE), dtype=np.bool_)


def is_split_forced(problem: ScheduleProblem) -> bool:
    """Return whether no device has the memory for all weights."""
    return bool(over_memory(problem, problem.weight_bytes.sum()).all())


def one_inference(semantics: Semantics) -> Semantics:
    """Return the semantics of a single inference: blocking links, which need a stream of them, become independent."""
    return replace(semantics, links=LinkSharing.INDEPENDENT) if semantics.links is LinkSharing.BLOCKING else semantics
