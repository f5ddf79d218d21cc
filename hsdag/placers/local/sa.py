"""SaPlacer: simulated annealing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.placers.incumbent import Incumbent
from hsdag.placers.lists.heft import HeftPlacer
from hsdag.placers.local.annealing import Annealing, Heat
from hsdag.placers.local.base import LocalPlacer, placed_and_ranked
from hsdag.placers.local.moves import Move
from hsdag.placers.memory_repair import fastest_devices, repaired
from hsdag.runtime.problems.plan import Plan


@dataclass(frozen=True)
class SaOptions:
    """Raises OptionError for a value out of range."""

    num_chains: int = 8
    """Chains that search side by side, each at its own temperature."""
    hottest: float = 0.02
    """The temperature at which the hottest chain begins a round, as a share of the best value,"""
    coldest: float = 0.0005
    """and that of the coldest one; the others are spread evenly between these two, by ratio."""
    cooling: float = 0.05
    """A round ends at this share of the temperature it began with."""
    first_round: int = 1000
    """Proposals of a chain in the first round; the next ones are longer,"""
    growth: float = 1.5
    """by this factor each."""
    most_idle_rounds: int = 5
    """Rounds in a row without a better plan after which the search ends."""
    patience_per_unit: int = 500
    """Where every proposal is evaluated by itself, the search ends after so many in a row, for each unit, without a
    better plan."""
    kept: float = 0.5
    """Share of the chains, the hottest, that go on from their own plans in the next round, the others from the best."""

    def __post_init__(self) -> None:
        counts = (self.num_chains, self.first_round, self.most_idle_rounds, self.growth)
        if min(counts) < 1 or not 0 < self.coldest <= self.hottest or not 0 < self.cooling <= 1:
            raise OptionError(
                "sa takes counts and a growth of at least 1, and temperatures above 0, coldest <= hottest"
            )


class SaPlacer(LocalPlacer[SaOptions]):
    """Simulated annealing (Kirkpatrick et al. 1983)."""

    name = "sa"
    options_type = SaOptions
    needs_costs = False
    moves = {  # noqa: RUF012 - a class variable of the base
        Move.UNIT: 3, Move.JOIN: 3, Move.SWAP: 1, Move.TWINS: 0.5, Move.GROUP: 0.5, Move.CLUSTER: 0.3,
        Move.STRETCH: 0.5, Move.EXCHANGE: 0.3, Move.SHIFT: 1, Move.BESIDE: 1, Move.TURN: 0.5,
    }  # fmt: skip

    def __init__(self, options: SaOptions | None = None) -> None:
        super().__init__(options)
        self.num_chains = self.options.num_chains

    def rounds(self, chains: Annealing, incumbent: Incumbent, start: Plan) -> None:
        o, num = self.options, self.num_chains
        ladder = o.hottest * (o.coldest / o.hottest) ** (np.arange(num) / max(num - 1, 1))
        length, idle, num_kept = float(o.first_round), 0, 0
        while idle < o.most_idle_rounds:
            best = placed_and_ranked(incumbent, incumbent.best or start)
            chains.begin([None if i < num_kept else best for i in range(num)])
            scale, before = min(incumbent.best_score, chains.value), incumbent.best_score
            chains.run([Heat(scale * t, scale * t * o.cooling) for t in ladder], int(length))
            num_kept = int(o.kept * num)
            length, idle = length * o.growth, 0 if incumbent.best_score < before else idle + 1

    def heat(self, incumbent: Incumbent) -> float:
        return float(incumbent.best_score * self.options.hottest * self.options.cooling**incumbent.progress)

    def patience(self, incumbent: Incumbent) -> float:
        return self.options.patience_per_unit * incumbent.problem.num_units

    def starts(self, incumbent: Incumbent) -> list[Plan]:
        problem = incumbent.problem
        costs, able = problem.costs, np.flatnonzero(problem.supported.all(axis=0))
        alone = [Plan(np.full(problem.num_units, d)) for d in able]
        if costs is None:
            return alone or [Plan(np.argmax(problem.supported, axis=1))]
        spread = [Plan(fastest_devices(costs))]
        if problem.objective.name in HeftPlacer.objectives:
            spread += HeftPlacer().proposals(problem, incumbent.limits.seed)
        return [*(Plan(repaired(costs, p.placement, problem.semantics), p.order) for p in spread), *alone]


PLACER = SaPlacer
