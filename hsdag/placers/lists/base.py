"""ListPlacer: what all placers have in common that schedule ops one by one. Legend: U placement units."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hsdag.evaluators.base import Evaluation, Evaluator
from hsdag.ir.graph import IntArray
from hsdag.placers.base import Checkpoint, Placer, PlacerSettings
from hsdag.placers.lists.schedule import ListSchedule
from hsdag.placers.lists.tables import costs_of
from hsdag.placers.memory_repair import fastest_devices, repaired
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Execution


@dataclass(frozen=True, eq=False)
class Proposal:
    """A placement [U] that a method wants judged, with the schedule it comes from where it has one."""

    device: IntArray
    schedule: ListSchedule | None = None

    @staticmethod
    def of(schedule: ListSchedule) -> Proposal:
        """The placement of a schedule."""
        return Proposal(schedule.device, schedule)


class ListPlacer(Placer):
    """A placer that makes one or a few placements from costs alone, and has them evaluated.

    The warm start, every unit on its fastest device, is evaluated first. Placements that exceed a memory are
    repaired; where no repair is found, they are evaluated as they are. For latency the schedules assume that
    devices work side by side and that links are independent: under sequential execution they still optimise that
    makespan, and only the choice among several placements follows the evaluator.
    """

    name: str

    def __init__(self, settings: PlacerSettings) -> None:
        self._settings = settings
        self._returned: tuple[IntArray, IntArray | None] | None = None

    @abstractmethod
    def proposals(self, costs: ScheduleProblem, objective: Objective) -> Iterator[Proposal]:
        """The placements of the method; at least one."""

    def search(self, problem: Problem, evaluator: Evaluator, checkpoint: Checkpoint | None = None) -> IntArray:  # noqa: ARG002
        """The best of the method's own placements [U].

        Raises OptionError when costs are unknown, SearchStopped when the evaluator does.
        """
        costs = costs_of(problem, self.name)
        self._returned = None
        semantics = self._settings.semantics
        evaluator.evaluate([repaired(costs, fastest_devices(costs), semantics)])
        ordered = semantics.execution is not Execution.SEQUENTIAL and problem.objective is LATENCY
        best_s = np.inf
        for proposal in self.proposals(costs, problem.objective):
            placement = repaired(costs, proposal.device, semantics)
            seconds = _seconds(evaluator.evaluate([placement])[0])
            if self._returned is None or seconds < best_s:
                schedule, best_s = proposal.schedule, seconds
                self._returned = placement, schedule.ranks if schedule is not None and ordered else None
        assert self._returned is not None
        return self._returned[0]

    @property
    def incumbent(self) -> IntArray | None:
        """[U] the best of the method's own placements so far; None before there is one."""
        return None if self._returned is None else self._returned[0]

    def ranks(self, placement: IntArray) -> IntArray | None:
        """[U] the order in which the schedule behind ``placement`` starts its units, smallest first.

        None for other placements than the one returned, and where order has no say: for throughput, under
        sequential execution, and for methods without a schedule.
        """
        if self._returned is None or not np.array_equal(placement, self._returned[0]):
            return None
        return self._returned[1]


def _seconds(evaluation: Evaluation) -> float:
    return np.inf if evaluation.latency_s is None else evaluation.latency_s
