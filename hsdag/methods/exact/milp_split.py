"""MilpSplitPlacer: DiviML's MILP-SPLIT, modules solved on their own and joined."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsdag.methods.base import NoOptions
from hsdag.methods.exact.base import ExactSearch
from hsdag.methods.exact.cpsat import CpSatMethod
from hsdag.methods.exact.modules import ModuleSolver, pivots, solve_chain
from hsdag.methods.incumbent import Limits
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.problem import Problem

MOST_OPS_OF_A_SEGMENT = 120
"""Up to which every segment between pivots is solved for all devices of its ends."""
FEW_OPS_OF_A_SEGMENT = 48
"""Beyond which annealing and windows come first, for segments take long."""
MODULE_S, LEAST_S = 5.0, 0.2
"""What one module may take, and gets at least."""
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
        """Solve module by module."""
        formulation, limits = search.formulation, search.incumbent.limits
        found = pivots(formulation)
        gaps = np.diff([0, *(int(formulation.reach[:, o].sum()) + 1 for o in found), formulation.problem.num_ops])
        if gaps.max() > FEW_OPS_OF_A_SEGMENT:
            _join(search)
        if gaps.max() > MOST_OPS_OF_A_SEGMENT:
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
    """Annealing from the best list schedule, then windows of that over modules and seams."""
    incumbent = search.incumbent
    for method, share in (("sa", SHARE_OF_ANNEALING), ("windows", 1.0)):
        known = incumbent.limits.known if incumbent.best is None else (incumbent.best,)
        limits = replace(incumbent.limits, seconds=share * search.left_s(), known=known, pool=None)
        make_placer(method).search(incumbent.problem, incumbent, limits)
