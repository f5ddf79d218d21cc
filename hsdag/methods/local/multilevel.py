"""MultilevelPlacer: a large graph is searched with pairs of units contracted first, and then as it is.

Legend: U placement units, E edges, D devices, G groups.
"""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph.computation_graph import IntArray
from hsdag.ir.graph.partition import Partition
from hsdag.methods.base import NoOptions, Placer
from hsdag.methods.incumbent import Incumbent, Limits, Status
from hsdag.methods.lists.etf import EtfPlacer
from hsdag.methods.lists.schedulers import HeftPlacer
from hsdag.methods.local.windows import WindowsPlacer
from hsdag.methods.tied import Expanded, tied
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution
from hsdag.runtime.problem.tables import mean_transfers, tables_of

COARSE = 0.5
"""Share of the time and of the evaluations for groups; units have the rest."""
WORTH = 1.01
"""The best list schedule of the groups, over the best known, up to which searching groups is worth its time."""


class MultilevelPlacer(Placer[NoOptions]):
    """Multilevel search (Hendrickson and Leland 1995): contract a heavy-edge matching, search, refine.

    Windows of a schedule of the groups hold nearly twice as many units, and a move takes both ends of an edge along.
    Windows of units follow.
    """

    name = "multilevel"
    objectives = ("latency",)
    executions = (Execution.WORK_CONSERVING,)
    gives_order = True
    is_seeded = True

    def _search(self, incumbent: Incumbent) -> Status:
        problem, costs, limits = incumbent.problem, incumbent.costs, incumbent.limits
        incumbent.evaluate(list(limits.known) or list(HeftPlacer().proposals(problem, 0)))
        coarse = tied(costs, contracted(costs, heavy_edges(costs)), problem)
        left = incumbent.evaluations_left
        kept = (1 - COARSE) * left if np.isfinite(left) else 0.0
        expanded = Expanded(incumbent, coarse.units.partition.labels, kept)
        known = tuple(plan for each in (HeftPlacer(), EtfPlacer()) for plan in each.proposals(coarse, 0))
        best = incumbent.best_score
        if min(score.value for score in expanded.evaluate(known)) <= WORTH * best:
            seconds = COARSE * incumbent.left_s
            WindowsPlacer().search(coarse, expanded, Limits(seconds, limits.num_workers, limits.seed, known))
        if incumbent.best is not None:
            fine = Limits(incumbent.left_s, limits.num_workers, limits.seed, (incumbent.best,))
            WindowsPlacer().search(problem, incumbent, fine)
        return Status.FEASIBLE

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        WindowsPlacer().prepare(problem, takes_order=takes_order)


def heavy_edges(costs: ScheduleProblem) -> IntArray:
    """[E] edges in the order in which they are to be contracted: those of the longest transfers first."""
    return np.argsort(-mean_transfers(tables_of(costs), costs.edge_bytes), kind="stable")


def contracted(costs: ScheduleProblem, edges: IntArray) -> IntArray:
    """[U] the group of each unit: a matching of ``edges`` [E], whose first ones are taken first.

    Only an edge whose end it is that alone reads the begin, or whose begin alone the end reads, is contracted. So a
    path leads from every unit by which a group is entered to every one by which it is left, and a cycle of groups
    would be one of units: there is none. Both ends of an edge have a device in common.
    """
    num, src, dst = costs.num_ops, costs.edge_src, costs.edge_dst
    pairs = Partition.identity(num).quotient_edges(src, dst)
    num_readers, num_inputs = (np.bincount(ends, minlength=num) for ends in pairs)
    can_join = ((num_readers[src] == 1) | (num_inputs[dst] == 1)) & (costs.supported[src] & costs.supported[dst]).any(1)
    group, is_free = np.arange(num), [True] * num
    for u, v in np.stack([src, dst], axis=1)[edges[can_join[edges]]].tolist():
        if is_free[u] and is_free[v]:
            is_free[u] = is_free[v] = False
            group[v] = u
    return group
