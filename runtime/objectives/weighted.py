"""Weighted sums of objectives, each over the value that the best single device has. Legend: T terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.runtime.objectives.base import Meter, Objective, find_objective
from hsdag.runtime.problem.semantics import Execution, Semantics

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from hsdag.ir.graph.computation_graph import FloatArray, IntArray
    from hsdag.runtime.costs.placement_costs import PlacementCosts, Ranks
    from hsdag.runtime.problem.bounds import Bound
    from hsdag.runtime.problem.schedule_problem import ScheduleProblem


@dataclass(frozen=True)
class Weighted(Objective):
    """The sum of terms, each with its weight, over the sum of weights.

    A term is the value of an objective over that of the best single device for it, ``scales`` [T], which are known once
    the problem is: so a plan that is as good as these in everything has the value 1.
    """

    name: str
    terms: tuple[tuple[Objective, float], ...]  # [T]
    scales: tuple[float, ...] | None = None  # [T]

    unit = ""
    meaning = "a smaller weighted sum"
    value_name = "weighted_sum"
    shown_unit = ""
    shown_factor = 1.0
    takes = "times the weighted sum"

    @property
    def counts_memory(self) -> bool:
        return any(term.counts_memory for term, _ in self.terms)

    @staticmethod
    def parse(text: str) -> Weighted:
        """A sum from ``latency=1,memory=0.5``. Raises OptionError for other forms, and as ``find_objective`` does."""
        terms: dict[Objective, float] = {}
        for item in text.split(","):
            name, equals, weight = (part.strip() for part in item.partition("="))
            try:
                share = float(weight)
            except ValueError:
                share = np.nan
            if not equals or not 0 < share < np.inf:
                raise OptionError(
                    f"--objective {text!r}: {item.strip()!r} is not of the form OBJECTIVE=WEIGHT, with a weight above "
                    "0, such as latency=1,memory=0.5"
                )
            term = find_objective(name)
            if term in terms:
                raise OptionError(f"--objective {text!r} gives {name} two weights")
            terms[term] = share
        canonical = ",".join(f"{term.name}={share:g}" for term, share in terms.items())
        return Weighted(canonical, tuple(terms.items()))

    def settled(self, best_single: Callable[[Objective], float]) -> Weighted:
        """The same with the values of the best single device, or 1 in the place of a value of 0."""
        return replace(self, scales=tuple(best_single(term) or 1.0 for term, _ in self.terms))

    def check(self, semantics: Semantics) -> None:
        for term, _ in self.terms:
            term.check(semantics)

    def check_problem(self, problem: ScheduleProblem) -> None:
        for term, _ in self.terms:
            term.check_problem(problem)

    def uses_order(self, execution: Execution) -> bool:
        return any(term.uses_order(execution) for term, _ in self.terms)

    def _sum(self, value_of: Callable[[Objective], FloatArray | float]) -> FloatArray:
        """Of values of the terms [T]."""
        assert self.scales is not None, "settled once the problem is known"
        total = sum(share for _, share in self.terms)
        shares = [share / total / scale for (_, share), scale in zip(self.terms, self.scales, strict=True)]
        values = [share * np.asarray(value_of(term)) for share, (term, _) in zip(shares, self.terms, strict=True)]
        return np.asarray(sum(values), dtype=np.float64)

    def simulated(
        self, problem: ScheduleProblem, placements: IntArray, semantics: Semantics, priority: ArrayLike | None = None
    ) -> FloatArray:
        execution = semantics.execution
        return self._sum(
            lambda term: term.simulated(
                problem, placements, semantics, priority if term.uses_order(execution) else None
            )
        )

    def lower_bound(self, problem: ScheduleProblem, execution: Execution) -> Bound:
        from hsdag.runtime.problem.bounds import Bound

        value = self._sum(lambda term: term.lower_bound(problem, execution).value_s)
        return Bound(float(value), "the bounds of its terms")

    def of_model(
        self,
        costs: PlacementCosts,
        placements: IntArray,
        ranks: Ranks | None = None,
        peak_bytes: FloatArray | None = None,
    ) -> FloatArray:
        return self._sum(lambda term: term.of_model(costs, placements, ranks, peak_bytes))

    def calibrated(
        self, costs: PlacementCosts, placements: IntArray, measured: FloatArray, ranks: Ranks | None = None
    ) -> tuple[PlacementCosts, float]:
        """One factor for all, since a sum does not tell what its terms were; 1 where peaks of memory are among them."""
        if self.counts_memory:
            return costs, 1.0
        ratios = measured / self.of_model(costs, placements, ranks)
        usable = np.isfinite(ratios) & (ratios > 0)
        return costs, float(np.median(ratios[usable])) if usable.any() else 1.0

    def measured(self, meter: Meter, runs: int) -> list[float]:
        """As many sums as the term that was measured most often has values; of other terms their mean."""
        values = [term.measured(meter, runs) for term, _ in self.terms]
        most = max(map(len, values))
        even = iter([each if len(each) == most else [float(np.mean(each))] for each in values])
        found: list[float] = np.broadcast_to(self._sum(lambda _: np.array(next(even))), (most,)).tolist()
        return found
