"""MultilevelPlacer: a large graph is searched with pairs of units contracted first, and then as it is.

Legend: U placement units, E edges, D devices, G groups.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.computation_graph import BoolArray, IntArray
from hsdag.ir.graph.partition import Partition
from hsdag.methods.base import Placer
from hsdag.methods.incumbent import GaveUp, Incumbent, Status
from hsdag.methods.lists.base import TWO_OPS
from hsdag.methods.lists.schedulers import HeftPlacer
from hsdag.methods.local.beam import beam_plans
from hsdag.methods.local.parsing import SHIPPED, probabilities_of
from hsdag.methods.local.windows import WindowsPlacer
from hsdag.methods.tied import Expanded, tied
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution
from hsdag.scoring.policy_file import read_policy

COARSE = 0.6
"""Share of the time and of the evaluations for groups; units have the rest."""
BEAM = 0.5
"""Share of the time of groups in which beam search makes the plans that their windows begin with."""
WORTH = 1.5
"""The best of these, over the best known, up to which searching groups is worth its time."""


@dataclass(frozen=True)
class MultilevelOptions:
    """Which edges are contracted: those whose ends good plans keep together, which a network learned from plans of
    other graphs; the likeliest first."""

    least: float = 0.9
    """The probability up to which an edge is left as it is."""
    initial: str | None = None
    """Policy file of 'python -m hsdag.training.parsing'; None: the one that comes with this release."""

    def __post_init__(self) -> None:
        if not 0 <= self.least < 1:
            raise OptionError(f"multilevel takes a probability of at least 0 and below 1 as least, got {self.least}")


class MultilevelPlacer(Placer[MultilevelOptions]):
    """Multilevel search (Hendrickson and Leland 1995): contract a matching of edges, search, refine.

    A window of the groups' schedule holds more units, and a move takes both ends of an edge along. Units follow.
    """

    name = "multilevel"
    objectives = ("latency",)
    executions = (Execution.WORK_CONSERVING,)
    options_type = MultilevelOptions
    gives_order = True
    is_seeded = True

    def _search(self, incumbent: Incumbent) -> Status:
        problem, costs, limits = incumbent.problem, incumbent.costs, incumbent.limits
        incumbent.evaluate(list(limits.known) or list(HeftPlacer().proposals(problem, 0)))
        coarse = tied(costs, contracted(costs, self.edges(costs)), problem)
        kept = (1 - COARSE) * incumbent.evaluations_left if np.isfinite(incumbent.evaluations_left) else 0.0
        expanded = Expanded(incumbent, coarse.units.partition.labels, kept)
        seconds = COARSE * incumbent.left_s
        began_s, best = incumbent.elapsed_s, incumbent.best_score
        with suppress(GaveUp):
            known = tuple(beam_plans(coarse.known_costs, BEAM * seconds, expanded.evaluations_left, incumbent.check))
            if min(score.value for score in expanded.evaluate(known)) <= WORTH * best:
                seconds -= incumbent.elapsed_s - began_s
                WindowsPlacer().search(coarse, expanded, replace(limits, seconds=seconds, known=known))
        if incumbent.best is not None:
            limits = replace(limits, seconds=incumbent.left_s, known=(incumbent.best,))
            WindowsPlacer().search(problem, incumbent, limits)
        return Status.FEASIBLE

    def edges(self, costs: ScheduleProblem) -> IntArray:
        """The edges that may be contracted, in the order in which they are to be. Raises FileFormatError."""
        likely = probabilities_of(costs, read_policy(Path(self.options.initial or SHIPPED), self.name).weights)
        return np.argsort(-likely, kind="stable")[: int((likely > self.options.least).sum())]

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        WindowsPlacer().prepare(problem, takes_order=takes_order)
        list(beam_plans(TWO_OPS, 0.0, 1.0, int))


def joinable(costs: ScheduleProblem) -> BoolArray:
    """[E] whether an edge's end alone reads its begin, or begin alone is read by its end, and both share a device."""
    src, dst = costs.edge_src, costs.edge_dst
    pairs = Partition.identity(costs.num_ops).quotient_edges(src, dst)
    num_readers, num_inputs = (np.bincount(ends, minlength=costs.num_ops) for ends in pairs)
    can_join = (num_readers[src] == 1) | (num_inputs[dst] == 1)
    return np.asarray(can_join & (costs.supported[src] & costs.supported[dst]).any(axis=1))


def contracted(costs: ScheduleProblem, edges: IntArray) -> IntArray:
    """[U] the group of each unit: a matching of ``edges`` [E], whose first ones are taken first.

    Only an edge whose end it is that alone reads the begin, or whose begin alone the end reads, is contracted. So a
    path leads from every unit by which a group is entered to every one by which it is left, and a cycle of groups
    would be one of units: there is none. Both ends of an edge have a device in common.
    """
    group = np.arange(costs.num_ops)
    is_free = [True] * costs.num_ops
    can_join = joinable(costs)
    for u, v in np.stack([costs.edge_src, costs.edge_dst], axis=1)[edges[can_join[edges]]].tolist():
        if is_free[u] and is_free[v]:
            is_free[u] = is_free[v] = False
            group[v] = u
    return group
