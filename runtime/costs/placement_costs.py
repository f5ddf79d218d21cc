"""PlacementCosts: what search and evaluation ask of simulated costs, whatever executes the placed model."""

from __future__ import annotations

from typing import Protocol

from hsdag.ir.graph import FloatArray, IntArray
from hsdag.runtime.costs.factor_fit import Trust
from hsdag.runtime.problems.cost_model import CostModel


class PlacementCosts(Protocol):
    """Simulated seconds of placements, which measured ones refine. Legend: N ops, D devices, B placements."""

    @property
    def costs(self) -> CostModel:
        """The same by op and link, for methods that compute on costs; ``time_s`` is [N, D]."""

    def latency_s(self, placements: IntArray) -> FloatArray:
        """[B] simulated seconds of one inference under placements [B, N]; infinite where one is illegal."""

    def period_s(self, placements: IntArray) -> FloatArray:
        """[B] simulated seconds per inference with many in flight; infinite where a placement is illegal."""

    def calibrated(self, placements: IntArray, measured_s: FloatArray, trust: Trust | None = None) -> PlacementCosts:
        """Costs refitted to measured latencies [B] of placements [B, N]."""
