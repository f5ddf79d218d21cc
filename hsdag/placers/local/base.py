"""LocalPlacer: the base of methods that change a plan by small random moves. Legend: U placement units."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from hsdag.ir.graph import FloatArray, IntArray, inverse_of
from hsdag.placers.base import O, Placer
from hsdag.placers.incumbent import Incumbent, Status
from hsdag.placers.local.annealing import Annealing, Source
from hsdag.placers.local.chain import chain_for, places_of, restore, settle
from hsdag.placers.local.loop import propose, start
from hsdag.placers.local.moves import Move, draw_move, shares_of
from hsdag.placers.local.of_hetero import UnderHetero, under_hetero
from hsdag.placers.local.values import Scheduled, scheduled
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.runtime.problems.objectives.throughput import THROUGHPUT
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.simulator import simulate

SIMULATED = (LATENCY, THROUGHPUT)
"""The objectives whose values are computed inside the compiled loop."""


class LocalPlacer(Placer[O]):
    """A search from the best of a few plans.

    Where plans are simulated, chains of compiled moves and simulations go side by side on threads, and the evaluator
    hears of what they find; elsewhere, every proposal of one chain is evaluated. ``moves`` are the kinds of moves and
    how often they come.
    """

    is_seeded = True
    moves: ClassVar[Mapping[Move, float]]

    @abstractmethod
    def starts(self, incumbent: Incumbent) -> list[Plan]:
        """Where the search may start; it does at the best of them."""

    @abstractmethod
    def rounds(self, chains: Annealing, incumbent: Incumbent, start: Plan) -> None:
        """Let the chains search from ``start`` until nothing better is found."""

    @abstractmethod
    def heat(self, incumbent: Incumbent) -> float:
        """The temperature of single proposals, in units of the objective."""

    @abstractmethod
    def patience(self, incumbent: Incumbent) -> float:
        """Single proposals in a row without a better plan after which the search ends."""

    def _search(self, incumbent: Incumbent) -> Status:
        problem, takes_order = incumbent.problem, incumbent.takes_order and self.gives_order
        starts = list(incumbent.limits.known) or self.starts(incumbent)
        incumbent.evaluate(starts)
        share = shares_of(problem, self.moves, takes_order=takes_order)
        if share.any() and incumbent.is_cheap and problem.objective in SIMULATED and problem.costs is not None:
            with Annealing(incumbent, self.sources(problem, share, takes_order)) as chains:
                self.rounds(chains, incumbent, incumbent.best or starts[0])
        elif share.any():
            self._step_by_step(incumbent, share, takes_order)
        return Status.FEASIBLE

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        takes_order = takes_order and self.gives_order
        share = shares_of(problem, self.moves, takes_order=takes_order)
        if not share.any() or problem.objective not in SIMULATED or problem.costs is None:
            return
        for source in dict.fromkeys(self.sources(problem, share, takes_order)):
            chain, ground = chain_for(problem, source.share, seed=0, has_pins=source.has_pins), source.ground()
            chain.device[:] = problem.supported.argmax(axis=1)
            start(ground, chain)
            propose(ground, chain, 1)

    def sources(self, problem: Problem, share: FloatArray, takes_order: bool) -> list[Source]:
        """What each chain draws its moves by, and where its values come from."""
        return [Source(share, lambda: ground_of(problem, takes_order), takes_order=takes_order)]

    def _step_by_step(self, incumbent: Incumbent, share: FloatArray, takes_order: bool) -> None:
        """One chain, whose every proposal is evaluated."""
        chain, idle = chain_for(incumbent.problem, share, incumbent.limits.seed), 0
        rng, best, value = np.random.default_rng(incumbent.limits.seed), incumbent.best, incumbent.best_score
        if best is None:
            return
        chain.device[:], chain.rank[:] = placed_and_ranked(incumbent, best)
        while idle < self.patience(incumbent):
            draw_move(chain)
            before = incumbent.best_score
            if chain.state["num_changed"][0]:
                order = places_of(chain.rank) if takes_order else None
                other = incumbent.evaluate([Plan(chain.device, order)])[0].value
                if other <= value - self.heat(incumbent) * np.log(1.0 - rng.random()):
                    value = other
                else:
                    restore(chain)
                settle(chain)
            idle = 0 if incumbent.best_score < before else idle + 1


def ground_of(problem: Problem, takes_order: bool) -> Scheduled | UnderHetero:
    """What the values of a chain come from: HETERO, the ops, where they are what is simulated, else the units.

    Raises ValueError for a problem without costs.
    """
    if problem.costs is None:
        raise ValueError("a problem without costs cannot be simulated")
    if problem.ops is not None:
        return scheduled(problem, problem.ops, problem.units.partition.labels, takes_order=takes_order)
    of_units = scheduled(problem, problem.costs, np.arange(problem.num_units), takes_order=takes_order)
    if isinstance(problem.hetero, HeteroCosts):
        return under_hetero(problem, problem.hetero, of_units)
    return of_units


def placed_and_ranked(incumbent: Incumbent, plan: Plan) -> tuple[IntArray, FloatArray]:
    """[U] the placement and the ranks of a plan; without an order, by the times when units start, where known."""
    position = inverse_of(incumbent.problem.units.graph.topological_order)
    order = position if plan.order is None else plan.order
    if plan.order is None and incumbent.takes_order and incumbent.problem.costs is not None:
        start_s = simulate(incumbent.costs, plan.placement).start_s
        order = inverse_of(np.lexsort((position, start_s)))
    return plan.placement, order.astype(np.float64)
