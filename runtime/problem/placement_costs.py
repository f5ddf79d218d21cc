"""The interface of simulated costs that searches use, for any executor. Legend: N ops, B placements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self, TypeAlias

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.runtime.objectives import Objective, Quantity
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

Priorities: TypeAlias = Sequence[IntArray | None]
"""Ranks [N] of ops for each placement, smallest first; None if the order is left to the executor."""


class PlacementCosts(ABC):
    """Base of simulated costs of placements, which measured ones refine.

    ``priority`` has ranks for each placement; without them the order is the executor's, as it always is under HETERO.
    """

    costs: ScheduleProblem
    """Costs by op and link, for methods that compute on costs; ``time_s`` is [N, D]."""

    @property
    def steps(self) -> float:
        """Return the approximate steps of interpreting one placement, in units of the time to simulate one op."""
        return float(self.costs.num_ops + len(self.costs.edge_src))

    @abstractmethod
    def latency_s(self, placements: IntArray, priority: Priorities | None = None) -> FloatArray:
        """Return [B] the simulated seconds of one inference under placements [B, N]; infinite where one is illegal."""

    @abstractmethod
    def period_s(self, placements: IntArray) -> FloatArray:
        """Return [B] the simulated seconds per inference in steady state; infinite where a placement is illegal.

        That is the load of the busiest device. Devices that slow each other down begin together, and each works until
        its own load is done.
        """

    @abstractmethod
    def calibrated(self, placements: IntArray, measured_s: FloatArray, priority: Priorities | None = None) -> Self:
        """Return costs refitted to measured latencies [B] of placements [B, N]; unchanged without observations."""

    def values(
        self,
        objective: Objective,
        placements: IntArray,
        priority: Priorities | None = None,
        peak_bytes: FloatArray | None = None,
    ) -> FloatArray:
        """Return [B] the simulated values of an objective; infinite where a placement is illegal.

        ``peak_bytes`` [B] are those of the fullest devices, if the objective counts memory. The power of devices is
        unknown: energy is that at one watt, which measurements correct.
        """

        def figures(quantity: Quantity) -> FloatArray:
            if quantity is Quantity.PEAK:
                assert peak_bytes is not None, "the objective counts memory"
                return peak_bytes
            return self.period_s(placements) if quantity is Quantity.PERIOD else self.latency_s(placements, priority)

        return objective.value(*map(figures, objective.quantities))

    def fitted(
        self, objective: Objective, placements: IntArray, measured: FloatArray, priority: Priorities | None = None
    ) -> tuple[Self, float]:
        """Return costs, and a factor on their values, refitted to measured values [B] of an objective.

        Only latencies tell the costs of ops and transfers; other objectives get one factor for all values, and those
        that count memory, which nothing measures, none.
        """
        if objective.quantities == (Quantity.LATENCY,):
            return self.calibrated(placements, measured, priority), 1.0
        if objective.counts_memory:
            return self, 1.0
        ratios = measured / self.values(objective, placements, priority)
        usable = np.isfinite(ratios) & (ratios > 0)
        return self, float(np.median(ratios[usable])) if usable.any() else 1.0
