"""PlacementCosts: simulated costs as searches and evaluators use them, for any executor of the placed model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.runtime.problem.cost_model import CostModel

Ranks: TypeAlias = Sequence[IntArray | None]
"""Of placements, the ranks [N] of their ops, the smallest first; None where the order is left to the executor."""


class PlacementCosts(Protocol):
    """Simulated seconds of placements, which measured ones refine. Legend: N ops, D devices, B placements.

    ``ranks`` are those of each placement; without them the order is the executor's, as it always is under HETERO.
    """

    @property
    def costs(self) -> CostModel:
        """The same by op and link, for methods that compute on costs; ``time_s`` is [N, D]."""

    def latency_s(self, placements: IntArray, ranks: Ranks | None = None) -> FloatArray:
        """[B] simulated seconds of one inference under placements [B, N]; infinite where one is illegal."""

    def period_s(self, placements: IntArray) -> FloatArray:
        """[B] simulated seconds per inference with many in flight; infinite where a placement is illegal."""

    def calibrated(self, placements: IntArray, measured_s: FloatArray, ranks: Ranks | None = None) -> PlacementCosts:
        """Costs refitted to measured latencies [B] of placements [B, N]."""
