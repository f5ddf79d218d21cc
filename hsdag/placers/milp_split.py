"""MilpSplitPlacer: DiviML's MILP-SPLIT, modules solved on their own and joined, with the recursive lower bound."""

from __future__ import annotations

import time

import numpy as np

from hsdag.exact.cuts import CutRules, modules, pivots
from hsdag.exact.exact_placer import NUM_WORKERS
from hsdag.exact.formulation import Formulation
from hsdag.exact.judging import Judge, start_ranks
from hsdag.exact.module_solving import ModuleSolver
from hsdag.exact.single_channel import ChainAnswer, solve_chain
from hsdag.exact.solving import SolverLimits
from hsdag.exact.split_bound import submit_bound
from hsdag.exact.windows import Plan, WindowSolver, sweeps
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.placers.base import PlacerSettings
from hsdag.placers.cpsat import CpSatPlacer

MOST_OPS_OF_A_SEGMENT = 48
"""Up to which every segment between pivots is solved for all devices of its ends."""
MODULE_S, WINDOW_S = 5.0, 0.4
"""What one module and one window may take."""
WINDOW_OPS = 20


class MilpSplitPlacer(CpSatPlacer):
    """Work-conserving latency by modules; objectives without an order have no modules, and are solved whole.

    One channel: dynamic programming over pivots. Several: modules are solved in turn, each together with the next,
    and windows over the seams are solved again while that helps.
    """

    method = "milp-split"
    knows_peaks = False

    def __init__(self, settings: PlacerSettings, rules: CutRules | None = None, *, use_milp: bool = False) -> None:
        super().__init__(settings)
        self._cut_rules, self._use_milp = rules or CutRules(), use_milp
        self.num_modules = 0
        self.num_solved = 0

    def _schedule(self, formulation: Formulation, limits: SolverLimits, judge: Judge) -> None:
        deadline = time.monotonic() + limits.seconds
        found = pivots(formulation)
        gaps = np.diff([0, *(int(formulation.reach[:, o].sum()) + 1 for o in found), formulation.problem.num_ops])
        of_module = SolverLimits(min(MODULE_S, limits.seconds), 1, limits.seed)
        with ModuleSolver(of_module, NUM_WORKERS, use_milp=self._use_milp) as solver:
            if gaps.max(initial=0) <= MOST_OPS_OF_A_SEGMENT:
                self.num_modules = int((gaps > 0).sum())
                self._take_chain(solve_chain(formulation, found, solver), formulation, judge)
            else:
                self._join(formulation, solver, limits, judge, deadline)
            self.num_solved = solver.num_solved

    def _take_chain(self, answer: ChainAnswer, formulation: Formulation, judge: Judge) -> None:
        if answer.device is not None and answer.segment is not None and answer.start_s is not None:
            ends = np.cumsum(np.append(0.0, np.full(int(answer.segment.max()), answer.start_s.max() + 1.0)))
            judge.consider(answer.device, start_ranks(judge.costs, ends[answer.segment] + answer.start_s))
        self._prove(formulation, answer.bound_s, judge)

    def _join(
        self, formulation: Formulation, solver: ModuleSolver, limits: SolverLimits, judge: Judge, deadline: float
    ) -> None:
        """Modules of several channels."""
        parts = modules(formulation, self._cut_rules)
        self.num_modules = len(parts)
        windows = WindowSolver(formulation, SolverLimits(min(WINDOW_S, limits.seconds), NUM_WORKERS, limits.seed))

        def judged(device: IntArray, start_s: FloatArray) -> Plan | None:
            judge.consider(device, start_ranks(judge.costs, start_s))
            return _plan_of(judge, device)

        plan = _plan_of(judge, judge.best) if judge.best is not None else None
        first = windows.forward(parts, judge.wake)
        if first is not None:
            begun = judged(*first)
            plan = begun if plan is None or (begun is not None and begun.makespan_s < plan.makespan_s) else plan
        while plan is not None and time.monotonic() < deadline:
            better = self._sweep(plan, windows, judge, deadline)
            if better is None:
                break
            plan = better
        if deadline - time.monotonic() > 0:
            self._prove(formulation, submit_bound(formulation, parts, solver).seconds(), judge)

    def _sweep(self, plan: Plan, windows: WindowSolver, judge: Judge, deadline: float) -> Plan | None:
        """Every window once; None where none is better."""
        is_better = False

        def judged(device: IntArray, start_s: FloatArray) -> Plan | None:
            judge.consider(device, start_ranks(judge.costs, start_s))
            return _plan_of(judge, device)

        for k in range(len(sweeps(plan, WINDOW_OPS))):
            if time.monotonic() > deadline:
                break
            judge.wake()
            better = windows.improve(plan, sweeps(plan, WINDOW_OPS)[k], judged)
            if better is not None:
                plan, is_better = better, True
        return plan if is_better else None


def _plan_of(judge: Judge, device: IntArray) -> Plan | None:
    """The schedule that the simulator makes of a placement and its best order; None where it has none."""
    if judge.ranks(device) is None:
        return None
    run_s = judge.costs.time_s[np.arange(judge.costs.num_ops), device]
    start_s = judge.start_s(device)
    return Plan(device, start_s, float((start_s + run_s).max()))


def make(settings: PlacerSettings) -> MilpSplitPlacer:
    """The placer of this method."""
    return MilpSplitPlacer(settings)
