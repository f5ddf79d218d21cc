"""MilpPlacer: DiviML's mixed-integer program (1)-(7) as printed, solved by HiGHS; the reference for CP-SAT."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from hsdag.ir.graph import FloatArray
from hsdag.placers.base import NoOptions
from hsdag.placers.exact.assignment import AssignmentModel
from hsdag.placers.exact.base import ExactPlacer, horizon_of
from hsdag.placers.exact.formulation import Formulation
from hsdag.placers.exact.highs import solve_linear
from hsdag.placers.exact.judging import Judge, OutOfTime
from hsdag.placers.exact.milp_model import BatchedModel, num_entries
from hsdag.placers.incumbent import Limits

TOLERANCE = 1e-6
"""Share by which HiGHS may be wrong: its bounds are lowered by it."""
MOST_OPS, MOST_ENTRIES, ENTRIES_PER_S = 20_000, 10_000_000, 500_000
"""Of a program that is begun: in all, and for each second that there is, for it has to be made and sent to HiGHS."""


class MilpPlacer(ExactPlacer[NoOptions]):
    """Work-conserving latency by big-M constraints and order variables; the other objectives without an order.

    Where the program is too large to be made within the budget, the warm start is the answer.
    """

    name = "milp"

    def _schedule(self, formulation: Formulation, limits: Limits, judge: Judge) -> None:
        deadline = time.monotonic() + limits.seconds
        try:
            model = _made(formulation, horizon_of(formulation.problem, judge) * (1 + TOLERANCE), deadline, judge)
            limits = replace(limits, seconds=judge.left_s(deadline))
        except OutOfTime:
            self.is_cut_off = True
            return

        def on_solution(values: FloatArray) -> None:
            judge.consider_schedule(model.read(values))

        hint = model.hint(judge.best) if judge.best is not None else None
        self._follow(
            formulation,
            judge,
            lambda on_wait: solve_linear(model.linear, limits, on_solution, on_wait, hint),
            lambda bound: bound * model.unit_s * (1 - TOLERANCE),
            judge.best_s * (1 - TOLERANCE),
        )

    def _assign(self, formulation: Formulation, limits: Limits, judge: Judge) -> None:
        unit_s = max(horizon_of(formulation.problem, judge), 1e-12) / 1000
        model = AssignmentModel(formulation, judge.problem, lambda seconds: np.asarray(seconds) / unit_s)

        def on_solution(values: FloatArray) -> None:
            judge.consider(model.placement(values[model.wanted]))

        hint = None
        if judge.best is not None:
            hint = model.wanted, [float(value) for value in model.chosen(judge.best)]
        self._follow(
            formulation,
            judge,
            lambda on_wait: solve_linear(model.linear, limits, on_solution, on_wait, hint),
            lambda bound: bound * unit_s * (1 - TOLERANCE),
            judge.best_s * (1 - TOLERANCE),
        )


def _made(formulation: Formulation, horizon_s: float, deadline: float, judge: Judge) -> BatchedModel:
    """The program. Raises OutOfTime where it is too large for the time there is."""
    most = min(MOST_ENTRIES, ENTRIES_PER_S * judge.left_s(deadline))
    if formulation.problem.num_ops > MOST_OPS or num_entries(formulation) > most:
        raise OutOfTime

    return BatchedModel(formulation, horizon_s, check=lambda: judge.left_s(deadline))


PLACER = MilpPlacer
