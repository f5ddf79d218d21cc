"""MilpSplitPlacer: DiviML's MILP-SPLIT, modules solved on their own and joined, with the recursive lower bound."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.exact.base import Judge, start_ranks
from hsdag.methods.exact.cpsat import CpSatMethod
from hsdag.methods.exact.formulation import Formulation
from hsdag.methods.exact.modules import CutRules, ModuleSolver, modules, pivots, solve_chain, split_bound_s
from hsdag.methods.exact.solving import Answer, Program
from hsdag.methods.exact.windows import Judged, Schedule, WindowSolver, sweeps
from hsdag.methods.incumbent import Limits, Status
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


class MilpSplitPlacer(CpSatMethod[CutRules]):
    """Work-conserving latency by modules; objectives without an order have no modules, and are solved whole.

    One channel: dynamic programming over pivots. Several, or large modules: windows over modules and seams are solved
    again, side by side, while that helps, from what annealing finds.
    """

    name = "milp-split"
    argument = "modules solved one by one"
    options_type = CutRules

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        make_placer("sa").prepare(problem, takes_order=takes_order)

    def _latency(self, formulation: Formulation, horizon_s: float, judge: Judge, deadline: float) -> Program:  # noqa: ARG002
        return Program(lambda limits, _: self._split(formulation, limits, judge, deadline), unit_s=1.0)

    def _split(self, formulation: Formulation, limits: Limits, judge: Judge, deadline: float) -> Answer[None]:
        """Solve module by module; the bound is in seconds."""
        found = pivots(formulation)
        gaps = np.diff([0, *(int(formulation.reach[:, o].sum()) + 1 for o in found), formulation.problem.num_ops])
        is_chain = bool(gaps.max(initial=0) <= MOST_OPS_OF_A_SEGMENT)
        if not is_chain or gaps.max(initial=0) > FEW_OPS_OF_A_SEGMENT:
            self._join(formulation, judge, deadline, limits)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return Answer(Status.TIME_LIMIT, 0.0)
        num_workers = limits.num_workers if limits.pool is None else limits.pool.num_workers
        pairs = len(gaps) * formulation.problem.num_devices**2
        each_s = min(MODULE_S, max(left_s * num_workers / pairs, LEAST_S)) if is_chain else MODULE_S
        of_module = Limits(min(each_s, left_s), 1, limits.seed)
        solving = ModuleSolver(
            of_module,
            limits.num_workers,
            deadline=deadline,
            on_wait=judge.wake,
            pool=limits.pool,
        )
        with solving as solver:
            if not is_chain:
                return Answer(Status.FEASIBLE, split_bound_s(formulation, modules(formulation, self.options), solver))
            answer = solve_chain(formulation, found, solver)
        if answer.device is not None and answer.start_s is not None:
            judge.incumbent.consider(answer.device, start_ranks(judge.costs, answer.start_s))
        return Answer(Status.FEASIBLE, answer.bound_s)

    def _join(self, formulation: Formulation, judge: Judge, deadline: float, limits: Limits) -> None:
        """Annealing from the best list schedule; then windows over modules and seams."""
        seconds = SHARE_OF_ANNEALING * max(deadline - time.monotonic(), 0.0)
        known = limits.known if judge.best is None else (judge.best,)
        annealing = replace(judge.incumbent.limits, seconds=seconds, known=known, pool=None)
        make_placer("sa").search(judge.problem, judge.incumbent, annealing)

        def judged(device: IntArray, start_s: FloatArray) -> Schedule | None:
            ranks = start_ranks(judge.costs, start_s)
            is_legal = np.isfinite(judge.incumbent.consider(device, ranks))
            return _schedule_of(judge, Plan(device, ranks)) if is_legal else None

        if judge.best is None:
            return
        plan = _schedule_of(judge, judge.best)
        with WindowSolver(formulation, EFFORT, deadline, limits.num_workers, limits.seed) as windows:
            for size in WINDOW_OPS:
                gained = GAIN
                while gained >= GAIN and time.monotonic() < deadline:
                    before_s, plan = plan.makespan_s, _swept(plan, size, windows, judged, judge, deadline)
                    gained = 1.0 - plan.makespan_s / before_s if before_s > 0 else 0.0


def _swept(plan: Schedule, size: int, windows: WindowSolver, judged: Judged, judge: Judge, deadline: float) -> Schedule:
    """Every window once, disjoint ones side by side; the plan itself where none is better."""
    for first in (0, 1):
        count = len(sweeps(plan, size)[first::2])
        for k in range(0, count, SIDE_BY_SIDE):
            if time.monotonic() > deadline:
                break
            judge.wake()
            plan = windows.improve(plan, sweeps(plan, size)[first::2][k : k + SIDE_BY_SIDE], judged) or plan
    return plan


def _schedule_of(judge: Judge, plan: Plan) -> Schedule:
    """The schedule that the simulator makes of a plan."""
    run_s = judge.costs.time_s[np.arange(judge.costs.num_ops), plan.placement]
    start_s = judge.start_s(plan)
    return Schedule(plan.placement, start_s, float((start_s + run_s).max()))
