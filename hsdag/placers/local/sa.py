"""SaPlacer: simulated annealing."""

from __future__ import annotations

import numpy as np

from hsdag.evaluators.base import Evaluator
from hsdag.ir.graph import IntArray
from hsdag.placers.base import Checkpoint, Placer, PlacerSettings
from hsdag.placers.lists.heft import HeftPlacer
from hsdag.placers.local.moves import BATCH, LocalMoves, judged_s
from hsdag.placers.memory_repair import fastest_devices, repaired
from hsdag.runtime.problems.problem import Problem

NUM_SAMPLES = 32
"""Neighbours of the start that tell how large a worsening is."""
FIRST_ACCEPTANCE, LAST_TEMPERATURE = 0.2, 1e-3
"""A round begins where the mean worsening is taken with this probability, and ends at this share of that heat."""
FIRST_ROUND, MOST_PROPOSALS, MOST_IDLE_ROUNDS = 1000, 500_000, 3
"""Rounds double in length; after so many in a row without a better placement, or proposals in all, it ends."""
REHEAT = 2.0
"""A round that found nothing better is followed by one that begins so much hotter."""


class SaPlacer(Placer):
    """Simulated annealing (Kirkpatrick et al. 1983) in rounds of doubling length, each from the best so far.

    The start is the best of every unit on its fastest device, of HEFT's placement and of all on one device. A
    proposal moves one unit anywhere, or to the device of a neighbour, or a stretch of the topological order to one
    device. Where evaluations are cheap, ``BATCH`` proposals are drawn from one placement; once one of them is taken,
    others of the same batch are taken only when they are better still. It follows the evaluator, whatever execution
    or objective that has.
    """

    def __init__(self, settings: PlacerSettings) -> None:
        self._settings = settings

    def search(self, problem: Problem, evaluator: Evaluator, checkpoint: Checkpoint | None = None) -> IntArray:  # noqa: ARG002
        """The best placement [U] found; the same seed and evaluations give the same one.

        Costs need not be known. Raises SearchStopped when the evaluator does.
        """
        annealing = _Annealing(problem, evaluator, self._settings)
        length, idle_rounds, spent = FIRST_ROUND, 0, 0
        while annealing.can_move and idle_rounds < MOST_IDLE_ROUNDS and spent < MOST_PROPOSALS:
            before_s = annealing.best_s
            annealing.run_round(length)
            spent += length
            length *= 2
            idle_rounds = 0 if annealing.best_s < before_s else idle_rounds + 1
            annealing.heat = REHEAT**idle_rounds
        return annealing.best


class _Annealing:
    """The state of one search."""

    def __init__(self, problem: Problem, evaluator: Evaluator, settings: PlacerSettings) -> None:
        self._graph, self._evaluator = problem.units.graph, evaluator
        self._rng = np.random.default_rng(settings.seed)
        self._moves = LocalMoves(problem.supported, self._rng)
        self._batch = BATCH if settings.is_cheap else 1
        starts = _starts(problem, settings)
        costs_s = judged_s(evaluator, starts)
        self.best, self.best_s = starts[int(np.argmin(costs_s))], float(costs_s.min())
        self.heat = 1.0
        self._first_s: float | None = None

    @property
    def can_move(self) -> bool:
        """Whether there is more than one placement."""
        return len(self._moves.movable) > 0

    def run_round(self, length: int) -> None:
        """Cool down once, over about ``length`` proposals."""
        if self._first_s is None:
            self._first_s = self._first_temperature_s()
        current, current_s = self.best, self.best_s
        for done in range(0, length, self._batch):
            heat_s = self.heat * self._first_s * LAST_TEMPERATURE ** (done / length)
            base, taken = current, False
            proposals = [self._proposal(base) for _ in range(self._batch)]
            seconds = judged_s(self._evaluator, proposals).tolist()
            for proposal, proposal_s, u in zip(proposals, seconds, self._rng.random(self._batch).tolist(), strict=True):
                worse_s = proposal_s - current_s if np.isfinite(current_s) else -np.inf
                if worse_s < 0 or (not taken and (worse_s == 0 or u < np.exp(-worse_s / max(heat_s, 1e-300)))):
                    current, current_s, taken = proposal, proposal_s, True
                if proposal_s < self.best_s:
                    self.best, self.best_s = proposal, proposal_s

    def _proposal(self, placement: IntArray) -> IntArray:
        kind = int(self._rng.integers(3))
        if kind == 0:
            return self._moves.moved(placement)
        if kind == 1:
            return self._moves.joined(placement, self._graph)
        return self._moves.stretched(placement, self._graph.topological_order)

    def _first_temperature_s(self) -> float:
        """From the mean worsening of neighbours of the start; those that fail do not count."""
        if not np.isfinite(self.best_s):
            return 0.0
        worse_s = judged_s(self._evaluator, [self._moves.moved(self.best) for _ in range(NUM_SAMPLES)]) - self.best_s
        worse_s = worse_s[np.isfinite(worse_s) & (worse_s > 0)]
        return float(worse_s.mean()) / -np.log(FIRST_ACCEPTANCE) if len(worse_s) else 0.0


def _starts(problem: Problem, settings: PlacerSettings) -> list[IntArray]:
    """Where costs are known, every unit on its fastest device and what HEFT proposes; and all on one device."""
    costs, able = problem.costs, np.flatnonzero(problem.supported.all(axis=0))
    alone = [np.full(problem.num_units, d, dtype=np.int64) for d in able]
    if costs is None:
        return alone or [np.argmax(problem.supported, axis=1).astype(np.int64)]
    proposals = HeftPlacer(settings).proposals(costs, problem.objective)
    spread = [fastest_devices(costs), *(proposal.device for proposal in proposals)]
    return [*(repaired(costs, placement, settings.semantics) for placement in spread), *alone]


def make(settings: PlacerSettings) -> SaPlacer:
    """The placer of this method."""
    return SaPlacer(settings)
