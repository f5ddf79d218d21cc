"""Searching: from a prepared session to the placements worth comparing.

Legend: U placement units.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hsdag.evaluators.base import Evaluator, SearchStopped
from hsdag.evaluators.hybrid import HybridEvaluator
from hsdag.evaluators.measured import MeasuredEvaluator, SearchMeasurement
from hsdag.evaluators.recording import Budget, Event, RecordingEvaluator
from hsdag.ir.graph import IntArray
from hsdag.ir.placement import ExecutorName
from hsdag.placers.base import PlacerSettings
from hsdag.placers.registry import make_placer
from hsdag.runtime.measuring.candidate import automatic_targets
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.simulator import Execution, Semantics
from hsdag.search.options import PlaceOptions
from hsdag.search.rewards import Ground, prepare
from hsdag.search.run_folder import RunFolder, RunRecord
from hsdag.search.session import Session
from hsdag.search.threads import one_torch_thread

LEARNING_METHODS = ("hsdag", "best-device")
"""Methods that learn from evaluations alone, or have nothing to learn."""

EXECUTION: dict[ExecutorName, Execution] = {
    "hetero": Execution.SEQUENTIAL,
    "work-conserving": Execution.WORK_CONSERVING,
}
"""What methods that compute on costs take for granted, by executor."""

MOST_ROUNDS = 4
"""Rounds of solving and measuring for methods that compute on costs."""


@dataclass(frozen=True)
class Watcher:
    """What the caller wants to hear, and its wish to stop. All silent by default."""

    on_phase: Callable[[str], None] = lambda _: None
    on_event: Callable[[Event, RecordingEvaluator], None] = lambda _event, _recorder: None
    on_step: Callable[[str], None] = lambda _: None
    on_simulated: Callable[[int, int], None] = lambda _simulated, _measured: None
    should_stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found: all that it measured, how many it simulated, and the placements [U] worth comparing."""

    problem: Problem
    recorder: RecordingEvaluator
    num_simulated: int
    finalists: list[IntArray]
    search_s: float
    folder: RunFolder | None


def search_placements(
    session: Session,
    options: PlaceOptions,
    *,
    run_folder: Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> Found:
    """Search for placements of a session's model by the options' method and reward, without the final comparison.

    Raises a HsdagError for what the user can put right.
    """
    watcher = watcher or Watcher()
    begin = time.monotonic()
    session.client.should_abandon = watcher.should_stop
    ground = prepare(session, options, watcher.on_phase, watcher.should_stop)
    options = replace(options, budget_s=ground.left_s(options.budget_s, time.monotonic() - begin))
    folder = _open_folder(run_folder, session, ground.problem, options, resume)
    recorder = _recorder(session, ground.problem, options, folder, watcher)
    watcher.on_phase("searching")
    evaluator: Evaluator = recorder
    with one_torch_thread(), contextlib.suppress(SearchStopped):
        recorder.evaluate(_first_guesses(session, ground.problem))
        evaluator = ground.evaluator(options, recorder, watcher.on_simulated)
        settings = PlacerSettings(
            preset=options.preset,
            seed=options.seed,
            is_cheap=evaluator is not recorder,
            semantics=Semantics(execution=EXECUTION[options.executor]),
            budget_s=options.budget_s,
        )
        _search_in_rounds(ground, options, settings, evaluator, folder)
    session.client.should_abandon = lambda: False
    simulated = evaluator.num_simulated if isinstance(evaluator, HybridEvaluator) else 0
    finalists = _finalists(recorder, evaluator, options)
    return Found(ground.problem, recorder, simulated, finalists, time.monotonic() - begin, folder)


def _finalists(recorder: RecordingEvaluator, evaluator: Evaluator, options: PlaceOptions) -> list[IntArray]:
    """The fastest split placements measured, and where there are too few, those of the best simulated cost."""
    measured = [event.placement for event in recorder.best(len(recorder.events))]
    found = [p for p in measured if len(np.unique(p)) > 1][: options.finalists]
    if isinstance(evaluator, HybridEvaluator):
        found += evaluator.promising(options.finalists - len(found))
    return found


def _search_in_rounds(
    ground: Ground, options: PlaceOptions, settings: PlacerSettings, evaluator: Evaluator, folder: RunFolder | None
) -> None:
    """Search; with the hybrid reward, measure the best, and let methods that compute on costs start anew from those
    that were learned, until that changes nothing."""
    problem = ground.problem
    for _ in range(1 if options.method in LEARNING_METHODS else MOST_ROUNDS):
        make_placer(options.method, settings).search(problem, evaluator, folder)
        if not isinstance(evaluator, HybridEvaluator) or options.resolved_reward != "hybrid":
            return
        before = len(evaluator.events)
        evaluator.measure_promising(options.finalists)
        if len(evaluator.events) == before:
            return
        problem = ground.relearned(evaluator)


def _open_folder(
    path: Path | None, session: Session, problem: Problem, options: PlaceOptions, resume: bool
) -> RunFolder | None:
    if path is None:
        return None
    record = RunRecord(
        model=session.model_record,
        devices=session.device_records,
        method=options.method,
        preset=options.preset,
        seed=options.seed,
        objective=options.objective.name,
        reward=options.resolved_reward,
        executor=options.executor,
        num_units=problem.num_units,
    )
    return RunFolder.resume(path, record) if resume else RunFolder.create(path, record)


class NoJournal:
    """A journal for searches that need not survive."""

    def append(self, event: Event) -> None:
        """Keep nothing beyond the process."""


def _recorder(
    session: Session, problem: Problem, options: PlaceOptions, folder: RunFolder | None, watcher: Watcher
) -> RecordingEvaluator:
    how = SearchMeasurement.paper() if options.preset == "paper" else SearchMeasurement()
    inner = MeasuredEvaluator(problem, session.devices.placed, session.runner, how, options.executor)
    evaluations = options.max_evaluations if options.max_evaluations is not None else float("inf")
    recorder = RecordingEvaluator(
        inner,
        Budget(options.budget_s, evaluations),
        folder or NoJournal(),
        folder.events() if folder else (),
        should_stop=watcher.should_stop,
        on_event=lambda event: watcher.on_event(event, recorder),
    )
    return recorder


def _first_guesses(session: Session, problem: Problem) -> list[IntArray]:
    """Every device alone, and what HETERO would do by itself: a search never ends with less than these."""
    guesses = [np.full(problem.num_units, d, dtype=np.int64) for d in range(problem.num_devices)]
    for target in automatic_targets(session.devices.placed, ()):
        if target.startswith("HETERO:"):
            guess = session.automatic(problem, target)
            if guess is not None:
                guesses.append(guess)
    distinct = {guess.tobytes(): guess for guess in guesses if problem.is_legal(guess)}
    return list(distinct.values())
