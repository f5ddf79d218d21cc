"""What the costs of an executor say of one placement, and what no placement can beat under them.

Legend: N ops, D devices, B placements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hsdag.explaining.explanation import Bottleneck, Boundary, BoundSaid, Limit
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray, IntArray
from hsdag.methods.cuts.mincut import proven_bound
from hsdag.placing.placed_model import with_costs
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.placement_costs import PlacementCosts
from hsdag.runtime.objectives import Objective
from hsdag.runtime.problem.bounds import Bound
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.semantics import Execution, Semantics


class Term(NamedTuple):
    """Something that takes time: seconds in all, and the costs without it."""

    name: str
    kind: str
    seconds: float
    without: PlacementCosts


@dataclass(frozen=True, eq=False)
class CostedPlacement(ABC):
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


def bound_of(problem: Problem, costs: PlacementCosts, value: float) -> BoundSaid | None:
    """The largest bound that is known, and the share of ``value`` that it leaves open; None where nothing is proven.

    Under HETERO that is the minimum cut. Where devices work side by side, transfers are taken to be free: parts send
    less than units do where they compute a join twice.
    """
    if problem.costs is None or not np.isfinite(value):
        return None
    priced = with_costs(problem, costs.costs, problem.costs.memory_bytes)
    assert priced.costs is not None
    if isinstance(costs, HeteroCosts):
        in_turn = replace(priced, hetero=costs, semantics=Semantics(execution=Execution.SEQUENTIAL))
        seconds, _ = proven_bound(in_turn, priced.costs)
        found = None if seconds is None else Bound(seconds, "the minimum cut")
    else:
        num = problem.num_devices
        free = replace(
            priced.costs, link_latency_s=np.zeros((num, num)), link_bandwidth_bytes_per_s=np.full((num, num), np.inf)
        )
        found = problem.objective.lower_bound(free, Execution.WORK_CONSERVING)
    if found is None or not np.isfinite(found.value_s):
        return None
    return BoundSaid(found.value_s, found.argument, max(0.0, 1.0 - found.value_s / value))
