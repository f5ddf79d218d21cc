"""CpSatPlacer: DiviML's exact formulation, solved by OR-Tools CP-SAT; the default exact method."""

from __future__ import annotations

from hsdag.methods.base import NoOptions, O
from hsdag.methods.exact.assignment import AssignmentModel, WholeModel
from hsdag.methods.exact.base import ExactPlacer, Judge
from hsdag.methods.exact.batches import BatchSchedule
from hsdag.methods.exact.cpsat_model import IntervalModel
from hsdag.methods.exact.formulation import Formulation
from hsdag.methods.exact.solving import Program, Ticks, cpsat_program


class CpSatMethod(ExactPlacer[O]):
    """See docs/exact.md: a program of zeros and ones for what has no order."""

    def _assignment(self, formulation: Formulation, horizon_s: float, judge: Judge, deadline: float) -> Program:
        ticks = Ticks.choose(formulation.durations_s, max(horizon_s, 1e-12))
        assignment = AssignmentModel(formulation, judge.problem, ticks.down)
        largest = int(ticks.down(horizon_s)) + 1
        model = WholeModel(assignment.linear, assignment.wanted, largest, lambda: judge.left_s(deadline))
        if judge.best is not None:
            model.hint(assignment.chosen(judge.best.placement))

        def on_placement(values: list[int]) -> None:
            judge.incumbent.consider(assignment.placement(values))

        return cpsat_program(model, ticks, on_placement)


class CpSatPlacer(CpSatMethod[NoOptions]):
    """The whole problem as one program, with optional intervals for latency."""

    name = "cpsat"
    argument = "CP-SAT"
    knows_peaks = True

    def _latency(self, formulation: Formulation, horizon_s: float, judge: Judge, deadline: float) -> Program:
        model = IntervalModel(formulation, horizon_s, check=lambda: judge.left_s(deadline))
        if judge.best is not None:
            model.hint(BatchSchedule.single(judge.best.placement, judge.start_s(judge.best), judge.costs.num_devices))
        return cpsat_program(model, model.ticks, judge.consider_schedule)
