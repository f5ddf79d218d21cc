"""EaPlacer: the (1+1) evolutionary algorithm, from the fastest device of each op."""

from __future__ import annotations

from dataclasses import dataclass

from hsdag.ir.errors import OptionError
from hsdag.placers.incumbent import Incumbent
from hsdag.placers.local.annealing import Annealing, Heat
from hsdag.placers.local.base import LocalPlacer, placed_and_ranked
from hsdag.placers.local.moves import Move
from hsdag.placers.memory_repair import fastest_devices, repaired
from hsdag.runtime.problems.plan import Plan

LOOK_EVERY = 1000
"""Proposals between two looks at whether the search has come to its end."""


@dataclass(frozen=True)
class EaOptions:
    """Raises OptionError for a value out of range."""

    patience: int = 2000
    """The search ends after this many neighbours in a row without a gain,"""
    patience_per_unit: int = 50
    """and this many more for each unit that can move."""

    def __post_init__(self) -> None:
        if self.patience < 1 or self.patience_per_unit < 0:
            raise OptionError("ea takes a patience of at least 1 and a patience_per_unit of at least 0")


class EaPlacer(LocalPlacer[EaOptions]):
    """DiviML's biased (1+1) EA (section V-A), for whatever objective the evaluator has.

    A neighbour moves each unit with probability one by their number, and replaces the placement when it is not
    worse. The order is the executor's. The same seed and evaluations give the same search.
    """

    name = "ea"
    options_type = EaOptions
    gives_order = False
    moves = {Move.FLIPS: 1}  # noqa: RUF012 - a class variable of the base

    def starts(self, incumbent: Incumbent) -> list[Plan]:
        costs = incumbent.costs
        return [Plan(repaired(costs, fastest_devices(costs), incumbent.problem.semantics))]

    def rounds(self, chains: Annealing, incumbent: Incumbent, start: Plan) -> None:
        chains.begin([placed_and_ranked(incumbent, start)])
        while chains.num_idle < self.patience(incumbent):
            chains.run([Heat(0.0, 0.0)], LOOK_EVERY)

    def heat(self, incumbent: Incumbent) -> float:  # noqa: ARG002
        return 0.0

    def patience(self, incumbent: Incumbent) -> float:
        num_movable = int((incumbent.problem.supported.sum(axis=1) > 1).sum())
        return self.options.patience + self.options.patience_per_unit * num_movable
