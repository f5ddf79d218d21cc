"""DiviML's MILP-SPLIT: solve the modules of a graph with one channel separately, and join them.

Dynamic programming over the devices of pivots (here cuts) joins modules (here stages), section IV-B1. Modules are
solved only for those devices that matter, one after another, each with all threads.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsdag.ir.graph.computation_graph import inverse_of
from hsdag.methods.exact.base import ExactPlacer, ExactSearch
from hsdag.methods.exact.cpsat import IntervalModel
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
"""Solve every stage if the largest has at most this many ops."""
FEW_OPS_OF_A_STAGE = 48
"""Run annealing and windows first if the largest stage has more ops, because such stages take long."""
FIRST_S = 1.0
"""Seconds that the first attempt at a stage may take; each further attempt may take three times as long."""
SHARE_OF_ANNEALING = 0.4
"""Share of the remaining time for annealing before windows, which take many sweeps from a poor plan."""


class MilpSplitPlacer(ExactPlacer):
    """Work-conserving latency by modules; objectives without an order have no modules and are solved as a whole.

    With one channel: dynamic programming over pivots. With several channels, or large modules: windows over modules and
    seams are searched repeatedly, side by side, starting from the result of annealing, as long as that helps.
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
            """Search one stage; attempt ``tries`` gets three times the time of the previous one."""
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
    """Run annealing from the best list schedule, then windows over modules and seams of its result."""
    incumbent = search.incumbent
    for method, share in (("sa", SHARE_OF_ANNEALING), ("windows", 1.0)):
        known = incumbent.limits.known if incumbent.best is None else (incumbent.best,)
        limits = replace(incumbent.limits, seconds=share * search.left_s(), known=known, pool=None)
        began_s, before = incumbent.elapsed_s, incumbent.best_score
        end = make_placer(method).search(incumbent.problem, incumbent, limits)
        span = began_s, incumbent.elapsed_s, before, incumbent.best_score
        incumbent.contributions.append(Contribution(method, *span, end.lower_bound, end.status, None))
