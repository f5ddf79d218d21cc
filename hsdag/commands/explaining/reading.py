"""Reading: what the costs of an executor say of one placement. Legend: N ops, D devices, B placements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hsdag.ir.graph import ComputationGraph, FloatArray, IntArray
from hsdag.reports.explanation import Bottleneck, Boundary, Limit
from hsdag.runtime.costs.placement_costs import PlacementCosts
from hsdag.runtime.problems.objectives import Objective


class Term(NamedTuple):
    """Something that takes time: seconds in all, and the costs without it."""

    name: str
    kind: str
    seconds: float
    without: PlacementCosts


@dataclass(frozen=True, eq=False)
class Reading(ABC):
    """A placement [N] of a graph, with ranks [N] where it has some, and its costs; final classes are by executor."""

    graph: ComputationGraph
    devices: tuple[str, ...]
    placement: IntArray
    ranks: IntArray | None
    objective: Objective

    @property
    @abstractmethod
    def costs(self) -> PlacementCosts:
        """The costs."""

    @abstractmethod
    def boundaries(self) -> tuple[Boundary, ...]:
        """What it takes to enter submodels, in running order."""

    @abstractmethod
    def terms(self) -> Iterator[Term]:
        """What the placement's time is made of, but for what it does not have."""

    def bottleneck(self) -> Bottleneck | None:
        """The longest chain and the busiest device; None where everything runs in turn."""
        return None

    @cached_property
    def value(self) -> float:
        """Simulated value of the placement; infinite where it is illegal."""
        return float(self.values(self.placement[None])[0])

    def values(self, placements: IntArray, costs: PlacementCosts | None = None) -> FloatArray:
        """[B] simulated values of placements [B, N] that run by the same ranks."""
        ranks = None if self.ranks is None else [self.ranks] * len(placements)
        return np.asarray(self.objective.of_model(costs or self.costs, placements, ranks), dtype=np.float64)

    def limits(self) -> tuple[Limit, ...]:
        """What each term would gain if it were free, the most first; the placement stays as it is."""
        found = []
        for term in self.terms():
            if term.seconds > 0:
                left = float(self.values(self.placement[None], term.without)[0])
                found.append(Limit(term.name, term.kind, term.seconds, 1.0 - left / self.value))
        return tuple(sorted(found, key=lambda limit: -limit.gain))

    @cached_property
    def used(self) -> list[int]:
        """Devices that hold an op, ascending."""
        return [int(d) for d in np.unique(self.placement)]
