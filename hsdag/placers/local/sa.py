"""SaPlacer: simulated annealing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.graph import IntArray
from hsdag.placers.base import Placer
from hsdag.placers.incumbent import Incumbent, Status
from hsdag.placers.lists.heft import HeftPlacer
from hsdag.placers.local.moves import LocalMoves
from hsdag.placers.memory_repair import fastest_devices, repaired


@dataclass(frozen=True)
class SaOptions:
    """Raises OptionError for a value out of range."""

    num_samples: int = 32
    """Neighbours of the start that show how large a worsening is;"""
    sample_share: float = 0.1
    """no more are drawn once this share of the budget is spent on them."""
    first_acceptance: float = 0.2
    """A round begins where the mean worsening is taken with this probability,"""
    last_temperature: float = 1e-3
    """and ends at this share of that heat."""
    first_round: int = 1000
    """Proposals of the first round; the next ones are twice as long each."""
    most_proposals: int = 500_000
    """Proposals after which the search ends."""
    most_idle_rounds: int = 3
    """Rounds in a row without a better placement after which it ends."""
    reheat: float = 2.0
    """A round that found nothing better is followed by one that begins so much hotter."""
    batch: int = 8
    """Proposals that are evaluated at a time where evaluations are cheap; else one by one."""

    def __post_init__(self) -> None:
        counts = (self.num_samples, self.first_round, self.most_proposals, self.most_idle_rounds, self.batch)
        shares = (self.sample_share, self.first_acceptance, self.last_temperature)
        if min(counts) < 1 or not all(0 < share < 1 for share in shares) or self.reheat < 1:
            raise OptionError("sa takes counts and a reheat of at least 1, and shares between 0 and 1")


class SaPlacer(Placer[SaOptions]):
    """Simulated annealing (Kirkpatrick et al. 1983) in rounds of doubling length, each from the best so far.

    The start is the best of every unit on its fastest device, of HEFT's placement and of all on one device. A
    proposal moves one unit anywhere, or to the device of a neighbour, or a stretch of the topological order to one
    device. Where evaluations are cheap, ``batch`` proposals are drawn from one placement; once one of them is taken,
    others of the same batch are taken only when they are better still. A round that the budget would cut short cools
    down with the share of the budget that is spent, so that it ends cold. The same seed and evaluations give the same
    search, as long as no time is part of the budget of evaluations that each take long.
    """

    name = "sa"
    options_type = SaOptions
    needs_costs = False

    def _search(self, incumbent: Incumbent) -> Status:
        annealing, options = _Annealing(incumbent, self.options), self.options
        length, idle_rounds, spent, can_move = options.first_round, 0, 0, len(annealing.moves.movable) > 0
        while can_move and idle_rounds < options.most_idle_rounds and spent < options.most_proposals:
            before = incumbent.best_score
            annealing.run_round(length)
            spent += length
            length *= 2
            idle_rounds = 0 if incumbent.best_score < before else idle_rounds + 1
            annealing.heat = options.reheat**idle_rounds
        return Status.FEASIBLE


class _Annealing:
    """The state of one search."""

    def __init__(self, incumbent: Incumbent, options: SaOptions) -> None:
        self._incumbent, self._options = incumbent, options
        self._graph = incumbent.problem.units.graph
        self._rng = np.random.default_rng(incumbent.limits.seed)
        self.moves = LocalMoves(incumbent.problem.supported, self._rng)
        self._batch = options.batch if incumbent.is_cheap else 1
        starts = _starts(incumbent)
        values = incumbent.values(starts)
        self._start = starts[int(np.argmin(values))]
        self.heat = 1.0
        self._first_temperature: float | None = None

    def run_round(self, length: int) -> None:
        """Cool down once, over about ``length`` proposals or what is left of the budget."""
        if self._first_temperature is None:
            self._first_temperature = self._sampled_temperature()
        best = self._incumbent.best
        current = self._start if best is None else best.placement
        value, version = self._incumbent.best_score, self._incumbent.version
        spent = self._incumbent.progress
        for done in range(0, length, self._batch):
            of_budget = (self._incumbent.progress - spent) / max(1.0 - spent, 1e-9)
            temperature = self._temperature(max(done / length, of_budget))
            taken, proposals = False, [self._proposal(current) for _ in range(self._batch)]
            values = self._incumbent.values(proposals).tolist()
            if self._incumbent.version != version:
                value, version = float(self._incumbent.values([current])[0]), self._incumbent.version
            for proposal, other, u in zip(proposals, values, self._rng.random(self._batch).tolist(), strict=True):
                worse = other - value if np.isfinite(value) else -np.inf
                if worse < 0 or (not taken and (worse == 0 or u < np.exp(-worse / max(temperature, 1e-300)))):
                    current, value, taken = proposal, other, True

    def _temperature(self, share: float) -> float:
        """In units of the objective, when ``share`` of the round is over."""
        assert self._first_temperature is not None
        return float(self.heat * self._first_temperature * self._options.last_temperature ** min(share, 1.0))

    def _proposal(self, placement: IntArray) -> IntArray:
        kind = int(self._rng.integers(3))
        if kind == 0:
            return self.moves.moved(placement)
        if kind == 1:
            return self.moves.joined(placement, self._graph)
        return self.moves.stretched(placement, self._graph.topological_order)

    def _sampled_temperature(self) -> float:
        """From the mean worsening of neighbours of the start; those that fail do not count."""
        incumbent, options, start = self._incumbent, self._options, self._incumbent.best
        if start is None:
            return 0.0
        known, spent, worse = incumbent.best_score, incumbent.progress, np.zeros(0)
        at_once = options.num_samples if incumbent.is_cheap else 1
        while len(worse) < options.num_samples and (
            not len(worse) or incumbent.progress - spent < options.sample_share
        ):
            neighbours = [self.moves.moved(start.placement) for _ in range(at_once)]
            worse = np.append(worse, incumbent.values(neighbours) - known)
        worse = worse[np.isfinite(worse) & (worse > 0)]
        return float(worse.mean()) / -np.log(options.first_acceptance) if len(worse) else 0.0


def _starts(incumbent: Incumbent) -> list[IntArray]:
    """Where costs are known, every unit on its fastest device and what HEFT proposes; and all on one device."""
    problem = incumbent.problem
    costs, able = problem.costs, np.flatnonzero(problem.supported.all(axis=0))
    alone = [np.full(problem.num_units, d, dtype=np.int64) for d in able]
    if costs is None or problem.objective.name not in HeftPlacer.objectives:
        return alone or [np.argmax(problem.supported, axis=1).astype(np.int64)]
    proposals = HeftPlacer().proposals(problem, incumbent.limits.seed)
    spread = [fastest_devices(costs), *(plan.placement for plan in proposals)]
    return [*(repaired(costs, placement, problem.semantics) for placement in spread), *alone]


PLACER = SaPlacer
