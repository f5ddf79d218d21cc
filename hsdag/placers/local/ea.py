"""EaPlacer: the (1+1) evolutionary algorithm, from the fastest device of each op."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.placers.base import Placer
from hsdag.placers.incumbent import Incumbent, Status
from hsdag.placers.local.moves import LocalMoves
from hsdag.placers.memory_repair import fastest_devices, repaired


@dataclass(frozen=True)
class EaOptions:
    """Raises OptionError for a value out of range."""

    patience: int = 2000
    """The search ends after this many neighbours in a row without a gain,"""
    patience_per_unit: int = 50
    """and this many more for each unit that can move."""
    batch: int = 8
    """Neighbours that are evaluated at a time where evaluations are cheap; else one by one."""

    def __post_init__(self) -> None:
        if min(self.patience, self.batch) < 1 or self.patience_per_unit < 0:
            raise OptionError("ea takes a patience and a batch of at least 1 and a patience_per_unit of at least 0")


class EaPlacer(Placer[EaOptions]):
    """DiviML's biased (1+1) EA (section V-A), for whatever objective the evaluator has.

    A neighbour moves each unit with probability one by their number, and replaces the placement when it is not
    worse. Where evaluations are cheap, neighbours of one placement are drawn ``batch`` at a time, each still compared
    with the best before it. The same seed and evaluations give the same search.
    """

    name = "ea"
    options_type = EaOptions

    def _search(self, incumbent: Incumbent) -> Status:
        costs, options = incumbent.costs, self.options
        moves = LocalMoves(incumbent.problem.supported, np.random.default_rng(incumbent.limits.seed))
        current = repaired(costs, fastest_devices(costs), incumbent.problem.semantics)
        current_value, version = float(incumbent.values([current])[0]), incumbent.version
        batch = options.batch if incumbent.is_cheap else 1
        patience = options.patience + options.patience_per_unit * len(moves.movable)
        idle = 0
        while len(moves.movable) and idle < patience:
            neighbours = [moves.flipped(current) for _ in range(batch)]
            values = incumbent.values(neighbours).tolist()
            if incumbent.version != version:
                current_value, version = float(incumbent.values([current])[0]), incumbent.version
            for neighbour, value in zip(neighbours, values, strict=True):
                idle = 0 if value < current_value else idle + 1
                if value <= current_value:
                    current, current_value = neighbour, value
        return Status.FEASIBLE


PLACER = EaPlacer
