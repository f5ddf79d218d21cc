"""GreedyPlacer: ops in breadth-first order, each where the latency of all that is scheduled so far stays smallest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hsdag.ir.graph import topological_order
from hsdag.placers.base import PlacerSettings
from hsdag.placers.lists.base import ListPlacer, Proposal
from hsdag.placers.lists.load_balance import balanced_placement
from hsdag.placers.lists.schedule import ListSchedule, list_schedule
from hsdag.placers.lists.tables import tables_of
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.objectives.throughput import THROUGHPUT
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


class GreedyPlacer(ListPlacer):
    """DiviML's Greedy (section V-A); for throughput the load of the busiest resource stays smallest."""

    name = "greedy"

    def proposals(self, costs: ScheduleProblem, objective: Objective) -> Iterator[Proposal]:
        """One placement."""
        if objective is THROUGHPUT:
            yield Proposal(balanced_placement(tables_of(costs), _turns(costs), self._settings.semantics.links))
        else:
            yield Proposal.of(greedy_schedule(costs))


def greedy_schedule(problem: ScheduleProblem) -> ListSchedule:
    """The greedy schedule: ops in breadth-first order, each after all that its device has.

    The latency so far is the larger of what it was and the op's end, so the device where the op ends first keeps it
    smallest; where several do, that is the choice too. Ties go by device index.
    """
    return list_schedule(tables_of(problem), _turns(problem))


def _turns(problem: ScheduleProblem) -> np.ndarray:
    """[N] priorities that stand for breadth-first order."""
    priority = np.empty(problem.num_ops)
    priority[topological_order(problem.num_ops, problem.edge_src, problem.edge_dst)] = -np.arange(problem.num_ops)
    return priority


def make(settings: PlacerSettings) -> GreedyPlacer:
    """The placer of this method."""
    return GreedyPlacer(settings)
