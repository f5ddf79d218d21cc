"""MilpSplitPlacer: DiviML's MILP-SPLIT, the modules of a graph with one channel solved on their own and joined.

Dynamic programming over the devices of pivots joins modules (section IV-B1), here called stages and cuts; modules are
solved for those devices alone that matter, one after another on as many threads as there are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsdag.ir.graph.computation_graph import inverse_of
from hsdag.methods.base import NoOptions
from hsdag.methods.exact.base import ExactSearch
from hsdag.methods.exact.cpsat import CpSatMethod, IntervalModel
from hsdag.methods.exact.formulation import Formulation, generous_horizon_s
from hsdag.methods.exact.solving import solve_model
from hsdag.methods.exact.stages import Stages
from hsdag.methods.incumbent import Contribution
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution
from hsdag.runtime.simulator.simulation import Simulation, simulate

MOST_OPS_OF_A_STAGE = 120
"""Up to which every stage is solved."""
FEW_OPS_OF_A_STAGE = 48
"""Beyond which annealing and windows come first, for stages take long."""
FIRST_S = 1.0
"""What one stage may take at first, which triples."""
SHARE_OF_ANNEALING = 0.4
"""Of the time that is left when windows begin: a plan far from a good one takes them many sweeps."""


class MilpSplitPlacer(CpSatMethod[NoOptions]):
    """Work-conserving latency by modules; objectives without an order have no modules, and are solved whole.

    One channel: dynamic programming over pivots. Several, or large modules: windows over modules and seams are searched
    again, side by side, while that helps, from what annealing finds.
    """

    name = "milp-split"
    argument = "modules solved one by one"

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        for method in ("sa", "windows"):
            make_placer(method).prepare(problem, takes_order=takes_order)

    def _latency(self, search: ExactSearch) -> None:
        """Solve stage by stage."""
        stages = Stages(search.incumbent.costs, Execution.WORK_CONSERVING, search.left_s)
        if stages.largest > FEW_OPS_OF_A_STAGE:
            _join(search)
        if stages.largest > MOST_OPS_OF_A_STAGE:
            return

        def solve(part: ScheduleProblem, tries: int, _: float) -> tuple[Simulation | None, float]:
            model = IntervalModel(Formulation(part), generous_horizon_s(part), check=search.left_s)
            limits = search.limits_left
            limits = replace(limits, seconds=min(limits.seconds, FIRST_S * 3 ** (tries - 1)))
            answer = solve_model(model, limits, lambda _: None, lambda _: search.wake())
            bound_s = answer.bound * model.ticks.length_s
            if answer.solution is None:
                return None, bound_s
            device, start_s = answer.solution
            order = np.lexsort((inverse_of(part.topological_order), start_s))
            return simulate(part, device, priority=inverse_of(order)), bound_s

        search.prove(stages.bound.value)
        while stages.improve(solve):
            if (plan := stages.lay()) is not None:
                search.incumbent.consider(*plan)
            search.prove(stages.bound.value)


def _join(search: ExactSearch) -> None:
    """Annealing from the best list schedule, then windows of that over modules and seams."""
    incumbent = search.incumbent
    for method, share in (("sa", SHARE_OF_ANNEALING), ("windows", 1.0)):
        known = incumbent.limits.known if incumbent.best is None else (incumbent.best,)
        limits = replace(incumbent.limits, seconds=share * search.left_s(), known=known, pool=None)
        began_s, before = incumbent.elapsed_s, incumbent.best_score
        end = make_placer(method).search(incumbent.problem, incumbent, limits)
        span = began_s, incumbent.elapsed_s, before, incumbent.best_score
        incumbent.contributions.append(Contribution(method, *span, end.lower_bound, end.status, None))
