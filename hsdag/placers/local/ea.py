"""EaPlacer: the (1+1) evolutionary algorithm, from the fastest device of each op."""

from __future__ import annotations

import numpy as np

from hsdag.evaluators.base import Evaluator
from hsdag.ir.graph import IntArray
from hsdag.placers.base import Checkpoint, Placer, PlacerSettings
from hsdag.placers.lists.tables import costs_of
from hsdag.placers.local.moves import BATCH, LocalMoves, judged_s
from hsdag.placers.memory_repair import fastest_devices, repaired
from hsdag.runtime.problems.problem import Problem

PATIENCE, PATIENCE_PER_UNIT = 2000, 50
"""The search ends after so many neighbours in a row, and so many more for each unit, none of which was better."""


class EaPlacer(Placer):
    """DiviML's biased (1+1) EA (section V-A), for latency and throughput as the evaluator has it.

    A neighbour moves each unit with probability one by their number, and replaces the placement when it is not
    worse. Where evaluations are cheap, neighbours of one placement are drawn ``BATCH`` at a time, each still compared
    with the best before it.
    """

    def __init__(self, settings: PlacerSettings) -> None:
        self._settings = settings

    def search(self, problem: Problem, evaluator: Evaluator, checkpoint: Checkpoint | None = None) -> IntArray:  # noqa: ARG002
        """The best placement [U] found; the same seed and evaluations give the same one.

        Raises OptionError when costs are unknown, SearchStopped when the evaluator does.
        """
        costs = costs_of(problem, "ea")
        moves = LocalMoves(problem.supported, np.random.default_rng(self._settings.seed))
        current = repaired(costs, fastest_devices(costs), self._settings.semantics)
        current_s = float(judged_s(evaluator, [current])[0])
        batch = BATCH if self._settings.is_cheap else 1
        patience = PATIENCE + PATIENCE_PER_UNIT * len(moves.movable)
        idle = 0
        while len(moves.movable) and idle < patience:
            neighbours = [moves.flipped(current) for _ in range(batch)]
            for neighbour, seconds in zip(neighbours, judged_s(evaluator, neighbours).tolist(), strict=True):
                idle = 0 if seconds < current_s else idle + 1
                if seconds <= current_s:
                    current, current_s = neighbour, seconds
        return current


def make(settings: PlacerSettings) -> EaPlacer:
    """The placer of this method."""
    return EaPlacer(settings)
