"""Drive a search: evaluate the first plans, keep to the budget, record, report and stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hsdag.base.kernels import compiled_in_time, compiling, is_interpreted
from hsdag.ir.placement.placement import Record
from hsdag.methods.base import Placer
from hsdag.methods.incumbent import Contribution, Limits, Result
from hsdag.methods.turns import search_with_restarts
from hsdag.runtime.objectives import Objective
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.search.evaluators.base import Checkpoint, Evaluator, SearchStopped
from hsdag.search.evaluators.memory import MemoryCheck
from hsdag.search.evaluators.recording import Budget, Event, RecordingEvaluator

TELL_EVERY_S = 0.1
"""Seconds between two calls of ``Watcher.on_event`` if evaluations are cheap: there may be ten thousand a second."""
ENOUGH_PLACEMENTS = 10
"""Report a budget as too short if fewer placements than this can be measured in it."""
COMPILING = "compiling the search: what this machine has not used yet, up to a minute"
"""Line reported when the first kernel is compiled."""
FEW_PLANS = 12
"""Largest number of plans that a method of few plans simulates, besides the single devices."""


@dataclass(frozen=True)
class Watcher:
    """Functions of the caller that a search calls to report, and to ask whether to stop; by default they do nothing.

    Args:
        on_phase: Called with a line at the beginning of each phase.
        on_event: Called with an evaluated plan and the recorder of all of them.
        on_step: Called with a line for each step within a phase.
        should_stop: Returns whether the search should stop.
        on_note: Called with a line that must be read, whatever follows; None hands notes to ``on_phase``.
        on_left: Called with an estimate of the seconds left, whenever there is a better one.
    """

    on_phase: Callable[[str], None] = lambda _: None
    on_event: Callable[[Event, RecordingEvaluator], None] = lambda _event, _recorder: None
    on_step: Callable[[str], None] = lambda _: None
    should_stop: Callable[[], bool] = lambda: False
    on_note: Callable[[str], None] | None = None
    on_left: Callable[[float], None] = lambda _: None

    def note(self, text: str) -> None:
        """Report a line that must be read, whatever follows."""
        (self.on_note or self.on_phase)(text)


@dataclass(eq=False)
class Driver:
    """The search of one placer on one problem; ``recorder`` holds every evaluated plan, none of them evaluated twice.

    After searches, ``contributions`` are the turns of all methods, and ``note`` says why the last search gave up, or is
    empty. Raises OptionError if the placer cannot search the problem.

    Args:
        inner: Evaluator that ``recorder`` wraps.
        limits: Limits of the placer but for its seconds, which are those of ``budget``.
        journal: Called with every event before the watcher is.
        past: Events of an earlier part of the same search.
        is_done: Returns whether the best value, its argument, needs no further search.
    """

    placer: Placer[Any]
    problem: Problem
    inner: Evaluator
    budget: Budget
    watcher: Watcher
    limits: Limits = field(default_factory=Limits)
    journal: Callable[[Event], None] = lambda _: None
    past: Sequence[Event] = ()
    is_done: Callable[[float], bool] = lambda _: False

    def __post_init__(self) -> None:
        self.placer.check(self.problem)
        self.limits = replace(self.limits, seconds=self.budget.seconds)
        self._told_s = 0.0
        self.contributions: list[Contribution] = []
        self.note = ""
        self.recorder = RecordingEvaluator(self.inner, self.budget, self.past, self._should_stop, self._heard)

    def guess(self, others: Iterable[Plan] = ()) -> list[Event]:
        """Evaluate the known plans, every single device and ``others``, as far as they are legal.

        If no single device is legal, the plans nearest to one device take their place. A known plan that fails is
        reported. Cheap plans are evaluated whatever the budget, others only if they fit into memory. Raises
        SearchStopped at the end of the budget.

        Returns the events of the single devices.
        """
        problem, recorder = self.problem, self.recorder
        alone = [Plan(np.full(problem.num_units, d)) for d in range(problem.num_devices)]
        if not any(problem.is_legal(plan.placement) for plan in alone):
            others = [*problem.alone, *others]
        plans = [
            plan for plan in dict.fromkeys([*self.limits.known, *alone, *others]) if problem.is_legal(plan.placement)
        ]
        if recorder.is_cheap:
            recorder.evaluate_all(plans)
        else:
            check = None if problem.costs is None else MemoryCheck(problem.costs, problem.semantics)
            recorder.evaluate([p for p in plans if check is None or not check.overfull(p.placement, p.priority).any()])
        for event in recorder.events:
            if event.plan in self.limits.known and event.score.failure is not None:
                self.watcher.note(f"the placement to start with fails: {event.score.failure}")
        return [event for event in recorder.events if event.plan in alone]

    def search(
        self,
        evaluator: Evaluator | None = None,
        checkpoint: Checkpoint | None = None,
        problem: Problem | None = None,
        limits: Limits | None = None,
    ) -> Result | None:
        """Let the placer search, and return its result; None if the search was over before it began.

        Args:
            evaluator: Evaluator that the placer asks, in place of ``recorder``.
            checkpoint: Store from which the placer resumes, and in which it keeps its state.
            problem: Problem under other costs, in place of the driver's.
            limits: Limits in place of the driver's.
        """
        evaluator = evaluator or self.recorder
        try:
            evaluator.check()
            begin_s = self.recorder.elapsed_s
            result = search_with_restarts(
                self.placer, problem or self.problem, evaluator, limits or self.limits, checkpoint
            )
        except SearchStopped:
            return None
        self.contributions += [turn.later(begin_s) for turn in result.contributions]
        self.note = result.note
        return result

    def _should_stop(self) -> bool:
        best = self.recorder.best()
        return self.watcher.should_stop() or bool(best and self.is_done(best[0].score.value))

    def _heard(self, event: Event) -> None:
        self.journal(event)
        if not self.recorder.is_cheap or event.elapsed_s - self._told_s >= TELL_EVERY_S:
            self._told_s = event.elapsed_s
            self.watcher.on_event(event, self.recorder)


class Member(Record):
    """The record of one turn of a method of a portfolio.

    Args:
        began_s: Seconds into the search at which the turn began; ``ended_s`` likewise.
        before: Best value before the turn, in the objective's unit; None if there was none. ``after`` likewise.
        bound: Lower bound that the method proved, in the objective's unit, if any.
        status: Status with which the method ended, if it did.
        failure: Reason why the method ended without a status.
    """

    method: str
    began_s: float
    ended_s: float
    before: float | None
    after: float | None
    bound: float | None
    status: str | None
    failure: str | None

    @property
    def has_gained(self) -> bool:
        """Return whether the best plan after the turn is better than the one before."""
        return self.after is not None and (self.before is None or self.after < self.before)

    @staticmethod
    def of(turn: Contribution) -> Member:
        """Return the record of a turn."""
        before, after = (value if np.isfinite(value) else None for value in (turn.before, turn.after))
        bound, status = turn.bound and turn.bound.value, turn.status and turn.status.value
        return Member(**vars(turn) | {"before": before, "after": after, "bound": bound, "status": status})


def members_table(members: Sequence[Member], objective: Objective) -> tuple[list[str], list[list[str]]]:
    """Return the column titles and cells of a table of what each method contributed, in the order of first turns.

    Methods that neither improved nor proved anything share the last row.
    """
    by_method: dict[str, list[Member]] = {}
    for turn in members:
        by_method.setdefault(turn.method, []).append(turn)
    useful = {turn.method for turn in members if turn.has_gained or turn.failure or turn.bound is not None}
    idle = [method for method in by_method if method not in useful]
    others = [turn for method in idle for turn in by_method.pop(method)]
    by_method |= {", ".join(idle): others} if others else {}
    rows = []
    for method, turns in by_method.items():
        best = ["-", "-"]
        for turn in turns:
            if turn.after is not None and turn.has_gained:
                best = [objective.figure(turn.after), f"{turn.ended_s:.1f}"]
        bounds = [turn.bound for turn in turns if turn.bound is not None]
        note = next((turn.failure for turn in turns if turn.failure), "")
        seconds = f"{sum(turn.ended_s - turn.began_s for turn in turns):.1f}"
        rows.append([method, seconds, *best, objective.figure(max(bounds)) if bounds else "-", note])
    unit = objective.shown_unit
    return ["method", "seconds", f"best {unit}".strip(), "by second", f"bound {unit}".strip(), "failure"], rows


def shortage(each_s: float, left_s: float, enough: int = ENOUGH_PLACEMENTS) -> tuple[str, float] | None:
    """Return why the remaining time is too short, and the missing seconds; None if the time suffices.

    Args:
        each_s: Seconds that one placement takes.
        left_s: Seconds left.
        enough: Number of placements for which the time should suffice.
    """
    if left_s >= enough * each_s:
        return None
    words = f"only {max(left_s, 0.0):.2g} s are left, and each placement takes {each_s:.2g} s"
    return words, enough * each_s - left_s


def compile_search(
    placer: Placer[Any], problem: Problem, evaluate: Callable[[], object], *, steps: float, takes_order: bool
) -> bool:
    """Compile the kernels that a search will call, and return whether there was time for all of them.

    Kernels that run faster interpreted than they compile, for few plans of a small problem, are not compiled. Raises
    OptionError for a problem that the placer cannot search.

    Args:
        evaluate: Function that simulates any plan, so that its kernels get compiled.
        steps: Steps of the interpreter in one simulation, approximately.
        takes_order: Whether the search's evaluator takes the order of plans into account.
    """
    placer.check(problem)
    graph = problem.units.fine
    of_lists = float((graph.num_ops + graph.num_edges) * problem.num_devices * (FEW_PLANS + problem.num_devices))
    with compiling(is_short=is_interpreted(placer.num_tried * steps)):
        evaluate()
    with compiling(is_short=is_interpreted(of_lists)):
        return compiled_in_time(lambda: placer.prepare(problem, takes_order=takes_order))
