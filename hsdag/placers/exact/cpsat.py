"""CpSatPlacer: DiviML's exact formulation, solved by OR-Tools CP-SAT; the default exact method."""

from __future__ import annotations

import time
from dataclasses import replace

from hsdag.placers.base import NoOptions, O
from hsdag.placers.exact.assignment import AssignmentModel
from hsdag.placers.exact.base import ExactPlacer, horizon_of
from hsdag.placers.exact.batches import BatchSchedule
from hsdag.placers.exact.cpsat_model import IntervalModel
from hsdag.placers.exact.formulation import Formulation
from hsdag.placers.exact.judging import Judge, OutOfTime
from hsdag.placers.exact.linear import WholeModel
from hsdag.placers.exact.solving import solve_aloud
from hsdag.placers.exact.ticks import Ticks
from hsdag.placers.incumbent import Limits


class CpSatMethod(ExactPlacer[O]):
    """See docs/exact.md: optional intervals for latency, a program of zeros and ones for what has no order."""

    def _schedule(self, formulation: Formulation, limits: Limits, judge: Judge) -> None:
        deadline = time.monotonic() + limits.seconds
        costs = formulation.problem
        try:
            model = IntervalModel(formulation, horizon_of(costs, judge), check=lambda: judge.left_s(deadline))
            limits = replace(limits, seconds=judge.left_s(deadline))
        except OutOfTime:  # the answer is the warm start
            return
        if judge.best is not None:
            model.hint(BatchSchedule.single(judge.best, judge.start_s(judge.best), costs.num_devices))
        self._follow(
            formulation,
            judge,
            lambda on_wait: solve_aloud(model, limits, judge.consider_schedule, on_wait),
            model.ticks.length_of,
        )

    def _assign(self, formulation: Formulation, limits: Limits, judge: Judge) -> None:
        costs = formulation.problem
        horizon_s = horizon_of(costs, judge)
        ticks = Ticks.choose(formulation.durations_s, max(horizon_s, 1e-12))
        assignment = AssignmentModel(formulation, judge.problem, ticks.down)
        model = WholeModel(assignment.linear, assignment.wanted, int(ticks.down(horizon_s)) + 1)
        if judge.best is not None:
            model.hint(assignment.chosen(judge.best))

        def on_placement(values: list[int]) -> None:
            judge.consider(assignment.placement(values))

        self._follow(
            formulation, judge, lambda on_wait: solve_aloud(model, limits, on_placement, on_wait), ticks.length_of
        )


class CpSatPlacer(CpSatMethod[NoOptions]):
    """The whole problem as one program."""

    name = "cpsat"
    knows_peaks = True


PLACER = CpSatPlacer
