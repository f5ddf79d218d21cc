"""GreedyPlacer: ops in breadth-first order, each where the latency of everything scheduled so far stays smallest."""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph import FloatArray, topological_order
from hsdag.placers.lists.base import SchedulePlacer
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.tables import Tables


class GreedyPlacer(SchedulePlacer):
    """DiviML's Greedy (section V-A); for throughput the load of the busiest resource stays smallest.

    The latency so far is the larger of what it was and the op's end, so the device where the op ends first keeps it
    smallest; where several do, that is the choice too.
    """

    name = "greedy"

    def priority(self, costs: ScheduleProblem, tables: Tables) -> FloatArray:  # noqa: ARG002
        return breadth_first(costs)


def breadth_first(problem: ScheduleProblem) -> FloatArray:
    """[N] priorities that give breadth-first order."""
    priority = np.empty(problem.num_ops)
    priority[topological_order(problem.num_ops, problem.edge_src, problem.edge_dst)] = -np.arange(problem.num_ops)
    return priority


PLACER = GreedyPlacer
