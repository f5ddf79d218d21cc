"""CpSatPlacer: DiviML's exact formulation, solved by OR-Tools CP-SAT; the default exact method."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TypeVar

import numpy as np

from hsdag.placers.base import NoOptions, O
from hsdag.placers.exact.assignment import AssignmentModel
from hsdag.placers.exact.base import ExactPlacer, horizon_of
from hsdag.placers.exact.cpsat_model import LatencyModel, TickSchedule
from hsdag.placers.exact.formulation import Formulation
from hsdag.placers.exact.judging import Judge, OutOfTime, start_ranks
from hsdag.placers.exact.linear import WholeModel
from hsdag.placers.exact.solving import Answer, Ending, SolverLimits, solve_aloud
from hsdag.placers.exact.ticks import Ticks

T = TypeVar("T")


class CpSatMethod(ExactPlacer[O]):
    """See docs/exact.md: optional intervals for latency, a program of zeros and ones for what has no order."""

    def _schedule(self, formulation: Formulation, limits: SolverLimits, judge: Judge) -> None:
        deadline = time.monotonic() + limits.seconds
        costs = formulation.problem
        ticks = ticks_of(formulation, horizon_of(costs, judge))
        try:
            model = LatencyModel(formulation, ticks, horizon_of(costs, judge), check=lambda: judge.left_s(deadline))
            limits = replace(limits, seconds=judge.left_s(deadline))
        except OutOfTime:  # the answer is the warm start
            return
        if judge.best is not None:
            model.hint(judge.best, judge.start_s(judge.best))

        def on_schedule(found: TickSchedule) -> None:
            judge.consider(found.device, start_ranks(costs, found.start_ticks))

        def on_wait(bound_ticks: int) -> None:
            self._note(formulation, ticks, bound_ticks, judge)
            judge.wake()

        self._end(formulation, ticks, solve_aloud(model, limits, on_schedule, on_wait), judge)

    def _assign(self, formulation: Formulation, limits: SolverLimits, judge: Judge) -> None:
        costs = formulation.problem
        horizon_s = horizon_of(costs, judge)
        ticks = ticks_of(formulation, horizon_s)
        assignment = AssignmentModel(formulation, judge.problem, ticks.down)
        model = WholeModel(assignment.linear, assignment.wanted, int(ticks.down(horizon_s)) + 1)
        if judge.best is not None:
            model.hint(assignment.chosen(judge.best))

        def on_wait(bound_ticks: int) -> None:
            self._note(formulation, ticks, bound_ticks, judge)
            judge.wake()

        answer = solve_aloud(model, limits, lambda found: _take(judge, assignment, found), on_wait)
        self._end(formulation, ticks, answer, judge)

    def _note(self, formulation: Formulation, ticks: Ticks, bound_ticks: int, judge: Judge) -> None:
        self._prove(formulation, float(ticks.seconds(bound_ticks)), judge)

    def _end(self, formulation: Formulation, ticks: Ticks, answer: Answer[T], judge: Judge) -> None:
        if answer.ending is Ending.INFEASIBLE:  # nothing is better than what was found
            self._prove(formulation, np.inf, judge)
        else:
            self._note(formulation, ticks, answer.bound_ticks, judge)


def _take(judge: Judge, assignment: AssignmentModel, values: list[int]) -> None:
    judge.consider(assignment.placement(values))


def ticks_of(formulation: Formulation, horizon_s: float) -> Ticks:
    """Ticks for the durations of a problem."""
    p = formulation.problem
    sizes = sorted(set(formulation.edges.values()))
    transfers = [formulation.transfer_s(size) for size in sizes]
    return Ticks.choose(
        [p.time_s, [p.op_overhead_s, p.transfer_overhead_s], p.launch_s, *transfers], max(horizon_s, 1e-12)
    )


class CpSatPlacer(CpSatMethod[NoOptions]):
    """The whole problem as one program."""

    name = "cpsat"
    knows_peaks = True


PLACER = CpSatPlacer
