"""Methods ``sa`` and ``ea``: simulated annealing, and the (1+1) evolutionary algorithm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hsdag.base.errors import OptionError
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.anneal.base import Annealing, ChainKind, LocalPlacer, placed_and_ranked
from hsdag.methods.anneal.chain import MoveKind, places_of, shares_of
from hsdag.methods.incumbent import LEAST_GAIN, Incumbent
from hsdag.methods.lists.schedulers import HeftPlacer
from hsdag.methods.memory_repair import fastest_devices, repaired
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.semantics import Execution
from hsdag.runtime.problem.tables import levels_of, tables_of


@dataclass(frozen=True)
class SaOptions:
    """Hyper-parameters of ``sa``. Raises OptionError for a value out of range."""

    num_chains: int = 8
    """Number of parallel chains, each at its own temperature."""
    hottest: float = 0.005
    """Temperature of the hottest chain at the start of a round, as a share of the best value."""
    coldest: float = 0.0005
    """Temperature of the coldest chain at the start of a round, as a share of the best value; those of the others are
    spaced geometrically between the two."""
    cooling: float = 0.05
    """Temperature at the end of a round, as a share of that at its start."""
    first_round: int = 1000
    """Number of proposals of each chain in the first round."""
    growth: float = 2.0
    """Factor by which each round is longer than the one before."""
    most_idle_rounds: int = 3
    """Stop after this many rounds in a row without a better plan."""
    patience_per_unit: int = 500
    """Least number of proposals per unit in a round that counts for ``most_idle_rounds``. If each proposal is evaluated
    by itself, stop after this many per unit in a row without a better plan."""
    lists: float = 0.75
    """Share of the chains that search over list schedules, if plans have orders."""
    kept: float = 0.5
    """Share of the chains, the hottest, that continue from their own plans in the next round; the others continue from
    the best plan."""
    restarted: int = 1
    """Number of chains over list schedules, the hottest, that restart from HEFT's priorities in every round."""

    def __post_init__(self) -> None:
        counts = (self.num_chains, self.first_round, self.most_idle_rounds, self.growth)
        is_share = 0 <= self.lists <= 1 and 0 <= self.kept <= 1 and 0 < self.cooling <= 1
        is_finite = np.isfinite([self.growth, self.hottest]).all()
        if min(counts) < 1 or self.restarted < 0 or not (is_share and is_finite and 0 < self.coldest <= self.hottest):
            raise OptionError(
                "sa takes counts and a finite growth of at least 1, shares between 0 and 1, and finite "
                "0 < coldest <= hottest"
            )


MOVES_OF_LISTS = {
    MoveKind.UNIT: 3, MoveKind.JOIN: 1, MoveKind.SWAP: 0.5, MoveKind.CLUSTER: 0.3, MoveKind.STRETCH: 0.3,
    MoveKind.SHIFT: 2, MoveKind.BESIDE: 2, MoveKind.TURN: 1,
}  # fmt: skip
"""Relative frequency of each move in a chain over list schedules."""


class SaPlacer(LocalPlacer[SaOptions]):
    """Simulated annealing (Kirkpatrick et al. 1983) in rounds of growing length, by chains at different temperatures.

    If plans have orders, some chains search over list schedules, starting from HEFT's priorities without pins. The
    others search over placements and orders, starting from the best known plan. After a round the hottest chains of
    each kind continue from their own plans, except that the very hottest over list schedules restart; the other chains
    continue from the best plan. The last round is stretched to the limit of seconds. The same seed and number of
    proposals give the same result on any number of threads. If plans are measured one by one, a single chain cools
    down over the budget.
    """

    name = "sa"
    options_type = SaOptions
    needs_costs = False
    gives_order = True
    moves = {  # noqa: RUF012 - a class variable of the base
        MoveKind.UNIT: 3, MoveKind.JOIN: 3, MoveKind.SWAP: 1, MoveKind.CLUSTER: 0.3, MoveKind.STRETCH: 0.5,
        MoveKind.SHIFT: 1, MoveKind.BESIDE: 1, MoveKind.TURN: 0.5,
    }  # fmt: skip

    def sources(self, problem: Problem, share: FloatArray, takes_order: bool) -> list[ChainKind]:
        direct = ChainKind(share, takes_order)
        if not takes_order or problem.semantics.execution is not Execution.WORK_CONSERVING:
            return [direct] * self.options.num_chains
        lists = ChainKind(shares_of(problem, MOVES_OF_LISTS, takes_order=True), takes_order=True, has_pins=True)
        num_lists = round(self.options.lists * self.options.num_chains)
        return [lists] * num_lists + [direct] * (self.options.num_chains - num_lists)

    def rounds(self, chains: Annealing, incumbent: Incumbent, start: Plan) -> None:
        o = self.options
        num = len(chains.chains)
        num_lists = chains.num_with_pins
        ladder = np.concatenate([_ladder(o, num_lists), _ladder(o, num - num_lists)])
        upward_s = levels_of(tables_of(incumbent.costs)).upward_s
        num_new = min(num_lists, o.restarted)
        unpinned = np.full(len(upward_s), incumbent.problem.num_devices), places_of(-upward_s).astype(np.float64)
        chains.begin([unpinned] * num_lists + [None] * (num - num_lists))
        length = float(o.first_round)
        idle = 0
        kept = 0.0
        while idle < o.most_idle_rounds:
            best = placed_and_ranked(incumbent, incumbent.best or start)
            first = num_lists + int(kept * (num - num_lists))
            chains.begin([unpinned] * num_new + [None] * (first - num_new) + [best] * (num - first))
            scale = min(incumbent.best_score, chains.value)
            before, began_s = incumbent.best_score, incumbent.elapsed_s
            made = length * num
            chains.run([(scale * t, scale * t * o.cooling) for t in ladder], int(length))
            kept = o.kept
            chains.share_best(range(int(kept * num_lists), num_lists))
            rest = length * incumbent.left_s / max(incumbent.elapsed_s - began_s, 1e-9)
            length *= o.growth
            if rest < (1.0 + o.growth) * length:  # not enough for this round and another one
                length = max(rest, 1.0)
            if incumbent.best_score < before * (1 - LEAST_GAIN):
                idle = 0
            elif made >= self.patience(incumbent):
                idle += 1

    def heat(self, incumbent: Incumbent) -> float:
        return float(incumbent.best_score * self.options.hottest * self.options.cooling**incumbent.progress)

    def patience(self, incumbent: Incumbent) -> float:
        return self.options.patience_per_unit * incumbent.problem.num_units

    def starts(self, incumbent: Incumbent) -> list[Plan]:
        problem = incumbent.problem
        costs = problem.costs
        alone = [Plan(np.full(problem.num_units, d)) for d in np.flatnonzero(problem.supported.all(axis=0))]
        if costs is None:
            return alone or [Plan(np.argmax(problem.supported, axis=1))]
        spread = [Plan(fastest_devices(costs))]
        if problem.objective.name in HeftPlacer.objectives:
            spread += HeftPlacer().proposals(problem, incumbent.limits.seed)
        return [*(Plan(repaired(costs, p.placement, problem.semantics), p.priority) for p in spread), *alone]


def _ladder(options: SaOptions, count: int) -> FloatArray:
    """Return the temperatures [count] of chains at the start of a round, as shares of the best value, hottest first."""
    ratio = options.coldest / options.hottest
    return np.asarray(options.hottest * ratio ** (np.arange(count) / max(count - 1, 1)), dtype=np.float64)


LOOK_EVERY = 1000
"""Number of proposals of ``ea`` between two checks whether to stop."""


@dataclass(frozen=True)
class EaOptions:
    """Hyper-parameters of ``ea``. Raises OptionError for a value out of range."""

    patience: int = 2000
    """Stop after this many neighbours in a row without a gain, plus ``patience_per_unit`` for each movable unit."""
    patience_per_unit: int = 50
    """Number of further neighbours without a gain for each unit that more than one device supports."""

    def __post_init__(self) -> None:
        if self.patience < 1 or self.patience_per_unit < 0:
            raise OptionError("ea takes a patience of at least 1 and a patience_per_unit of at least 0")


class EaPlacer(LocalPlacer[EaOptions]):
    """DiviML's biased (1+1) EA (section V-A), for any objective.

    A neighbour moves each of n movable units with probability 1 / n, and replaces the placement if it is not worse.
    Plans have no order. The same seed and number of evaluations give the same result.
    """

    name = "ea"
    options_type = EaOptions
    gives_order = False
    moves = {MoveKind.FLIPS: 1}  # noqa: RUF012 - a class variable of the base

    def starts(self, incumbent: Incumbent) -> list[Plan]:
        return [Plan(repaired(incumbent.costs, fastest_devices(incumbent.costs), incumbent.problem.semantics))]

    def rounds(self, chains: Annealing, incumbent: Incumbent, start: Plan) -> None:
        chains.begin([placed_and_ranked(incumbent, start)])
        state = chains.chains[0].state
        while state["num_proposals"][0] - state["gained_at"][0] < self.patience(incumbent):
            chains.run([(0.0, 0.0)], LOOK_EVERY)

    def heat(self, incumbent: Incumbent) -> float:  # noqa: ARG002
        return 0.0

    def patience(self, incumbent: Incumbent) -> float:
        num_movable = int((incumbent.problem.supported.sum(axis=1) > 1).sum())
        return self.options.patience + self.options.patience_per_unit * num_movable
