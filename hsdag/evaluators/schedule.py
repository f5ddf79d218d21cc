"""Scheduled evaluation: placements of a scheduling problem, simulated; what exceeds a memory limit fails.

Legend: N ops, U placement units, D devices, B placements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from hsdag.evaluators.base import Evaluation, Evaluator
from hsdag.ir.graph import BoolArray, IntArray
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Links, Semantics, simulate

MEMORY_TOLERANCE = 1e-9
"""A peak this share above a limit is rounding, not excess."""


@dataclass(frozen=True, eq=False)
class ScheduleEvaluator(Evaluator):
    """Simulated makespans, or periods for throughput.

    Placements are [N], or [U] where ``unit_of_op`` tells the unit of each op. The memory of a placement is
    that of one inference.
    """

    batch: ClassVar[int] = 1 << 20
    problem: ScheduleProblem
    semantics: Semantics
    objective: Objective = LATENCY
    unit_of_op: IntArray | None = None  # [N]

    def evaluate(self, placements: Sequence[IntArray]) -> list[Evaluation]:
        """One simulated evaluation per placement; those over memory or on a device that lacks an op fail."""
        if not placements:
            return []
        table = np.stack(placements)
        ops = table if self.unit_of_op is None else table[:, self.unit_of_op]
        seconds = self.objective.simulated(self.problem, ops, self.semantics)
        return [self._judged(float(s), device) for s, device in zip(seconds, ops, strict=True)]

    def _judged(self, seconds: float, device: IntArray) -> Evaluation:
        if not np.isfinite(seconds):
            return Evaluation(None, "an op is on a device that does not support it")
        full = self._over_memory(device)
        if full.any():
            names = ", ".join(self.problem.device_names[d] for d in np.flatnonzero(full))
            return Evaluation(None, f"the memory of {names} is exceeded")
        return Evaluation(seconds)

    @cached_property
    def _has_limits(self) -> bool:
        return bool(np.isfinite(self.problem.memory_bytes).any())

    def _over_memory(self, device: IntArray) -> BoolArray:
        """[D] which devices a placement [N] overfills; simulated only where sums do not tell."""
        problem = self.problem
        nothing = np.zeros(problem.num_devices, dtype=np.bool_)
        if not self._has_limits:
            return nothing
        src, dst, d = problem.edge_src, problem.edge_dst, problem.num_devices
        weights = np.bincount(device, problem.weight_bytes, d)
        if over_memory(problem, weights).any():
            return over_memory(problem, weights)
        away = device[src] != device[dst]
        copies = np.bincount(device[dst][away], problem.edge_bytes[away], d)
        if not over_memory(problem, weights + np.bincount(device, problem.output_bytes, d) + copies).any():
            return nothing
        return over_memory(problem, simulate(problem, device, one_inference(self.semantics)).peak_memory_bytes)


def over_memory(problem: ScheduleProblem, held_bytes: ArrayLike) -> BoolArray:
    """[D] which devices have less memory than ``held_bytes`` [D]."""
    return np.asarray(np.asarray(held_bytes) > problem.memory_bytes * (1 + MEMORY_TOLERANCE), dtype=np.bool_)


def one_inference(semantics: Semantics) -> Semantics:
    """The semantics of a single run: blocking links, which only a stream of runs has, become independent."""
    return replace(semantics, links=Links.INDEPENDENT) if semantics.links is Links.BLOCKING else semantics
