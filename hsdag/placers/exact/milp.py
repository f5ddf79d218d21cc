"""MilpPlacer: DiviML's mixed-integer program (1)-(7) as printed, solved by HiGHS; the reference for CP-SAT."""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph import FloatArray
from hsdag.placers.base import NoOptions
from hsdag.placers.exact.assignment import AssignmentModel
from hsdag.placers.exact.base import ExactPlacer
from hsdag.placers.exact.formulation import Formulation
from hsdag.placers.exact.highs import TOLERANCE, highs_program
from hsdag.placers.exact.judging import Judge, OutOfTime
from hsdag.placers.exact.milp_model import BatchedModel, num_entries
from hsdag.placers.exact.solving import Program

MOST_OPS, MOST_ENTRIES, ENTRIES_PER_S = 20_000, 10_000_000, 500_000
"""Of a program that is begun: in all, and for each second that there is, for it has to be made and sent to HiGHS."""


class MilpPlacer(ExactPlacer[NoOptions]):
    """Work-conserving latency by big-M constraints and order variables; the other objectives without an order.

    Where the program is too large to be made within the budget, the warm start is the answer.
    """

    name = "milp"
    argument = "the integer program"

    def _latency(self, formulation: Formulation, horizon_s: float, judge: Judge, deadline: float) -> Program:
        most = min(MOST_ENTRIES, ENTRIES_PER_S * judge.left_s(deadline))
        if formulation.problem.num_ops > MOST_OPS or num_entries(formulation) > most:
            raise OutOfTime
        model = BatchedModel(formulation, horizon_s * (1 + TOLERANCE), check=lambda: judge.left_s(deadline))
        return model.program(judge.consider_schedule, None if judge.best is None else judge.best.placement)

    def _assignment(self, formulation: Formulation, horizon_s: float, judge: Judge, deadline: float) -> Program:  # noqa: ARG002
        unit_s = max(horizon_s, 1e-12) / 1000
        model = AssignmentModel(formulation, judge.problem, lambda seconds: np.asarray(seconds) / unit_s)

        def on_solution(values: FloatArray) -> None:
            judge.incumbent.consider(model.placement(values[model.wanted]))

        hint = None
        if judge.best is not None:
            hint = model.wanted, [float(value) for value in model.chosen(judge.best.placement)]
        return highs_program(model.linear, unit_s, on_solution, hint)


PLACER = MilpPlacer
