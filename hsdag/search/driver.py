"""The driver of every search: first guesses, budget, recording, watching and stopping. Legend: U placement units."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba.core import event as numba_event

from hsdag.ir.errors import in_callers_words
from hsdag.ir.kernels import compiled_in_time, compiling, is_interpreted
from hsdag.ir.placement.placement import Record
from hsdag.methods.base import Placer
from hsdag.methods.incumbent import Contribution, Limits, Result
from hsdag.methods.portfolio.turns import search_with_restarts
from hsdag.runtime.objectives import Objective
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.scoring.base import Checkpoint, Evaluator, SearchStopped
from hsdag.scoring.memory import MemoryCheck
from hsdag.scoring.recording import Budget, Event, RecordingEvaluator
from hsdag.workers.pool import Pool

TELL_EVERY_S = 0.1
"""Between two events that a watcher hears of where evaluations are cheap: ten thousand a second may come."""
ENOUGH_PLACEMENTS = 10
"""A budget that is too short to measure this many placements is reported as too short."""
COMPILING = "compiling the search: what this machine has not used yet, up to a minute"
FEW_PLANS = 12
"""Plans, beside every single device, that a method of few plans has simulated at most."""


@dataclass(frozen=True)
class Watcher:
    """What the caller wants to hear, and its wish to stop. All silent by default.

    Notes are phases to those who do not hear of them apart. ``on_left`` hears what the rest of the work takes, in
    seconds, whenever that is known better.
    """

    on_phase: Callable[[str], None] = lambda _: None
    on_event: Callable[[Event, RecordingEvaluator], None] = lambda _event, _recorder: None
    on_step: Callable[[str], None] = lambda _: None
    should_stop: Callable[[], bool] = lambda: False
    on_note: Callable[[str], None] | None = None
    on_left: Callable[[float], None] = lambda _: None

    def note(self, text: str) -> None:
        """Say what is to be read, whatever comes next."""
        (self.on_note or self.on_phase)(in_callers_words(text))


@dataclass(eq=False)
class Driver:
    """One placer on one problem: nothing is evaluated twice, all that was is in ``recorder``.

    The placer begins with plans that are ``known``. ``past`` are the events of an earlier part of the search;
    ``is_done`` says of the best value whether it needs no further search. ``contributions`` are those of all searches,
    ``note`` says why the last one gave up, if it did. Raises OptionError for what the placer cannot search.
    """

    placer: Placer[Any]
    problem: Problem
    inner: Evaluator
    budget: Budget
    watcher: Watcher
    seed: int = 0
    known: Sequence[Plan] = ()
    journal: Callable[[Event], None] = lambda _: None
    past: Sequence[Event] = ()
    is_done: Callable[[float], bool] = lambda _: False
    pool: Pool | None = None
    num_threads: int = 1

    def __post_init__(self) -> None:
        self.placer.check(self.problem)
        self.limits = Limits(self.budget.seconds, self.num_threads, self.seed, tuple(self.known), pool=self.pool)
        self._told_s = 0.0
        self.contributions: list[Contribution] = []
        self.note = ""
        self.recorder = RecordingEvaluator(self.inner, self.budget, self.past, self._should_stop, self._heard)

    def guess(self, others: Iterable[Plan] = ()) -> list[Event]:
        """Evaluate what is known, every device alone and ``others``, as far as they are legal; those of devices alone.

        Where no device may have all, what is nearest to that. What is known and fails is told.

        Cheap evaluations are had whatever the budget; others only of what memory admits. Raises SearchStopped at its
        end.
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
        """Let the placer search, through another evaluator, under other costs or limits where they are given.

        None where the search was over before it began.
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
        self.contributions += [each.later(begin_s) for each in result.contributions]
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
    """One turn of a method of a portfolio; values in the objective's unit, None where there is none yet."""

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
        """Whether it left a better plan than it began with."""
        return self.after is not None and (self.before is None or self.after < self.before)

    @staticmethod
    def of(turn: Contribution) -> Member:
        """The record of a turn."""
        before, after = (value if np.isfinite(value) else None for value in (turn.before, turn.after))
        bound, status = turn.bound and turn.bound.value, turn.status and turn.status.value
        return Member(**vars(turn) | {"before": before, "after": after, "bound": bound, "status": status})


def members_table(members: Sequence[Member], objective: Objective) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: what each method of a portfolio contributed, in the order of their first turns.

    Those that found and proved nothing share the last row.
    """
    turns: dict[str, list[Member]] = {}
    for each in members:
        turns.setdefault(each.method, []).append(each)
    idle = [m for m, own in turns.items() if not any(t.has_gained or t.failure or t.bound is not None for t in own)]
    others = [turn for method in idle for turn in turns.pop(method)]
    turns |= {", ".join(idle): others} if others else {}
    rows = []
    for method, own in turns.items():
        found = ["-", "-"]
        for turn in own:
            if turn.after is not None and turn.has_gained:
                found = [objective.figure(turn.after), f"{turn.ended_s:.1f}"]
        bounds = [turn.bound for turn in own if turn.bound is not None]
        note = next((turn.failure for turn in own if turn.failure), "")
        seconds = f"{sum(turn.ended_s - turn.began_s for turn in own):.1f}"
        rows.append([method, seconds, *found, objective.figure(max(bounds)) if bounds else "-", note])
    unit = objective.shown_unit
    return ["method", "seconds", f"best {unit}".strip(), "by second", f"bound {unit}".strip(), "failure"], rows


def shortage(each_s: float, left_s: float, enough: int = ENOUGH_PLACEMENTS) -> tuple[str, float] | None:
    """Why ``left_s`` seconds are too short where a placement takes ``each_s``, and how many more are needed.

    None where they are not too short.
    """
    if left_s >= enough * each_s:
        return None
    words = f"only {max(left_s, 0.0):.2g} s are left, and each placement takes {each_s:.2g} s"
    return words, enough * each_s - left_s


class _Compiling(numba_event.Listener):
    """Says that something is compiled, when the first function is; and how long all of them took."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._depth, self._begin_s = 0, 0.0
        self.seconds = 0.0

    def on_start(self, _: numba_event.Event) -> None:
        say, self._say = self._say, lambda _: None
        say(COMPILING)
        if self._depth == 0:
            self._begin_s = time.monotonic()
        self._depth += 1

    def on_end(self, _: numba_event.Event) -> None:
        self._depth = max(self._depth - 1, 0)  # kernels that there was no time to begin end, too
        if self._depth == 0 and self._begin_s:
            self.seconds += time.monotonic() - self._begin_s


class Compiled(NamedTuple):
    """What compiling a search has taken, and whether there was time for all of it."""

    seconds: float
    is_complete: bool


def compile_search(
    placer: Placer[Any],
    problem: Problem,
    evaluate: Callable[[], object],
    *,
    steps: float,
    takes_order: bool,
    say: Callable[[str], None],
    once: Callable[[], object] = lambda: None,
) -> Compiled:
    """Have the kernels compiled of the placer and of ``evaluate``, which has some plan simulated; then call ``once``.

    To simulate a plan takes the interpreter about so many ``steps``.

    What a method of few plans calls on a small problem is interpreted, and not compiled at all. ``say`` hears of it
    when the first function is compiled. Raises OptionError for a problem that the placer cannot search.
    """
    placer.check(problem)
    graph = problem.units.fine
    of_lists = float((graph.num_ops + graph.num_edges) * problem.num_devices * (FEW_PLANS + problem.num_devices))
    listener = _Compiling(say)
    with numba_event.install_listener("numba:compile", listener):
        with compiling(is_short=is_interpreted(placer.num_tried * steps)):
            evaluate()
        with compiling(is_short=is_interpreted(of_lists)):
            is_complete = compiled_in_time(lambda: placer.prepare(problem, takes_order=takes_order))
        once()
    return Compiled(listener.seconds, is_complete)
