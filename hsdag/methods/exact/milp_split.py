"""MilpSplitPlacer: DiviML's MILP-SPLIT, modules solved on their own and joined."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.base import NoOptions
from hsdag.methods.exact.base import ExactSearch
from hsdag.methods.exact.cpsat import CpSatMethod
from hsdag.methods.exact.modules import ModuleSolver, pivots, solve_chain
from hsdag.methods.exact.windows import Schedule, WindowSolver, sweeps
from hsdag.methods.incumbent import Limits
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem

MOST_OPS_OF_A_SEGMENT = 120
"""Up to which every segment between pivots is solved for all devices of its ends."""
FEW_OPS_OF_A_SEGMENT = 48
"""Beyond which windows come first, for segments take long."""
MODULE_S, LEAST_S = 5.0, 0.2
"""What one module may take, and gets at least."""
SHARE_OF_ANNEALING = 0.4
"""Of the time that is left when windows begin: a plan far from a good one takes them many sweeps."""
EFFORT = 0.005
"""What one window may take, in CP-SAT's deterministic time: some 0.02 s."""
WINDOW_OPS = (16, 28)
"""Ops of a window; the larger come when the smaller find little more."""
GAIN = 5e-3
"""Share of the makespan that a sweep has to gain for another of its size to follow; less is not pursued."""
SIDE_BY_SIDE = 8
"""Windows of one plan; the next ones see what became of them."""


class MilpSplitPlacer(CpSatMethod[NoOptions]):
    """Work-conserving latency by modules; objectives without an order have no modules, and are solved whole.

    One channel: dynamic programming over pivots. Several, or large modules: windows over modules and seams are solved
    again, side by side, while that helps, from what annealing finds.
    """

    name = "milp-split"
    argument = "modules solved one by one"

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        make_placer("sa").prepare(problem, takes_order=takes_order)

    def _latency(self, search: ExactSearch) -> None:
        """Solve module by module."""
        formulation, limits = search.formulation, search.incumbent.limits
        found = pivots(formulation)
        gaps = np.diff([0, *(int(formulation.reach[:, o].sum()) + 1 for o in found), formulation.problem.num_ops])
        is_chain = bool(gaps.max(initial=0) <= MOST_OPS_OF_A_SEGMENT)
        if not is_chain or gaps.max(initial=0) > FEW_OPS_OF_A_SEGMENT:
            _join(search)
        if not is_chain:
            return
        left_s = search.left_s()
        share_s = left_s * limits.num_workers / (len(gaps) * formulation.problem.num_devices**2)
        of_module = Limits(min(MODULE_S, max(share_s, LEAST_S), left_s), 1, limits.seed)
        with ModuleSolver(of_module, limits.num_workers, deadline=search.deadline, on_wait=search.wake) as solver:
            answer = solve_chain(formulation, found, solver)
        if answer.device is not None and answer.start_s is not None:
            search.consider(answer.device, answer.start_s)
        search.prove(answer.bound_s)


def _join(search: ExactSearch) -> None:
    """Annealing from the best list schedule; then windows over modules and seams."""
    incumbent, limits = search.incumbent, search.incumbent.limits
    known = limits.known if incumbent.best is None else (incumbent.best,)
    annealing = replace(limits, seconds=SHARE_OF_ANNEALING * search.left_s(), known=known, pool=None)
    make_placer("sa").search(incumbent.problem, incumbent, annealing)
    if incumbent.best is None:
        return
    plan = _schedule_of(search, incumbent.best)
    with WindowSolver(search.formulation, EFFORT, search.deadline, limits.num_workers, limits.seed) as windows:
        for size in WINDOW_OPS:
            gained = GAIN
            while gained >= GAIN and time.monotonic() < search.deadline:
                before_s, plan = plan.makespan_s, _swept(plan, size, windows, search)
                gained = 1.0 - plan.makespan_s / before_s if before_s > 0 else 0.0


def _swept(plan: Schedule, size: int, windows: WindowSolver, search: ExactSearch) -> Schedule:
    """Every window once, disjoint ones side by side; the plan itself where none is better."""

    def simulated(device: IntArray, start_s: FloatArray) -> Schedule | None:
        ranks = search.ranks(start_s)
        is_legal = np.isfinite(search.incumbent.consider(device, ranks))
        return _schedule_of(search, Plan(device, ranks)) if is_legal else None

    for first in (0, 1):
        count = len(sweeps(plan, size)[first::2])
        for k in range(0, count, SIDE_BY_SIDE):
            if time.monotonic() > search.deadline:
                break
            search.wake()
            plan = windows.improve(plan, sweeps(plan, size)[first::2][k : k + SIDE_BY_SIDE], simulated) or plan
    return plan


def _schedule_of(search: ExactSearch, plan: Plan) -> Schedule:
    """The schedule that the simulator makes of a plan."""
    costs, start_s = search.incumbent.costs, search.starts_s(plan)
    run_s = costs.time_s[np.arange(costs.num_ops), plan.placement]
    return Schedule(plan.placement, start_s, float((start_s + run_s).max()))
