"""Searching: from a prepared session to the placements worth comparing.

Legend: U placement units.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hsdag.evaluators.base import Evaluator, SearchStopped
from hsdag.evaluators.checkpoint import Checkpoint
from hsdag.evaluators.hybrid import HybridEvaluator
from hsdag.evaluators.measured import MeasuredEvaluator
from hsdag.evaluators.recording import Budget, RecordingEvaluator
from hsdag.ir.errors import SearchError
from hsdag.ir.graph import inverse_of
from hsdag.placers.incumbent import Status
from hsdag.runtime.measuring.candidate import automatic_targets
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem
from hsdag.search.driver import Driver, Watcher, budget_shortage
from hsdag.search.options import PlaceOptions
from hsdag.search.rewards import Ground, prepare
from hsdag.search.run_folder import RunFolder, RunRecord
from hsdag.search.session import Session

MOST_ROUNDS = 4
"""Rounds of solving and measuring for methods that compute on costs."""


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found: all that it measured, how many it simulated, and the plans worth comparing."""

    problem: Problem
    recorder: RecordingEvaluator
    num_simulated: int
    finalists: list[Plan]
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
    placer = options.placer(is_cheap=ground.costs is not None)
    placer.check(ground.problem)
    folder = _open_folder(run_folder, session, ground.problem, options, resume)
    left_s = ground.left_s(options.budget_s, time.monotonic() - begin)
    is_short = options.resolved_reward == "hybrid" and left_s < (ground.problem.num_devices + 1) * ground.compile_s
    if is_short:
        lack = budget_shortage(options.budget_s, ground.compile_s, left_s)
        watcher.on_phase(f"{lack}; nothing is measured before the comparison")
        options = replace(options, reward="simulated")
    options = replace(options, budget_s=left_s)
    inner = MeasuredEvaluator(
        ground.problem, session.devices.placed, session.runner, options.chosen_preset.measurement, options.executor
    )
    driver = Driver(
        placer,
        ground.problem,
        inner,
        Budget(options.budget_s, np.inf if options.max_evaluations is None else options.max_evaluations),
        watcher,
        seed=options.seed,
        journal=folder,
        past=folder.events() if folder is not None else (),
    )
    watcher.on_phase("searching")
    evaluator: Evaluator = driver.recorder
    with contextlib.suppress(SearchStopped):
        if not is_short:
            driver.guess(_automatic(session, ground.problem))
        evaluator = ground.evaluator(options, driver.recorder, folder, watcher.on_simulated)
        if is_short:
            evaluator.evaluate(_contiguous(ground.problem))
        _search_in_rounds(
            driver, ground, evaluator, options, folder, 1 if placer.learns else MOST_ROUNDS, watcher.on_phase
        )
    session.client.should_abandon = lambda: False
    simulated = evaluator.num_simulated if isinstance(evaluator, HybridEvaluator) else 0
    finalists = _finalists(driver.recorder, evaluator, options)
    return Found(ground.problem, driver.recorder, simulated, finalists, time.monotonic() - begin, folder)


def _finalists(recorder: RecordingEvaluator, evaluator: Evaluator, options: PlaceOptions) -> list[Plan]:
    """The best split plans measured, and where there are too few, those of the best simulated value."""
    measured = [event.plan for event in recorder.best(len(recorder.events) + 1) if event.plan.is_split]
    found = measured[: options.finalists]
    if isinstance(evaluator, HybridEvaluator):
        found += evaluator.promising(options.finalists - len(found))
    return found


def _search_in_rounds(
    driver: Driver,
    ground: Ground,
    evaluator: Evaluator,
    options: PlaceOptions,
    checkpoint: Checkpoint | None,
    most_rounds: int,
    on_phase: Callable[[str], None],
) -> None:
    """Search; with the hybrid reward, measure the best, and let methods that compute on costs start again from those
    that were learned, until that changes nothing."""
    problem = ground.problem
    for _ in range(most_rounds):
        result = driver.search(evaluator, checkpoint, problem)
        if result is not None and result.note:
            if not driver.recorder.best():
                raise SearchError(result.note)
            on_phase(result.note)
        if not isinstance(evaluator, HybridEvaluator) or options.resolved_reward != "hybrid":
            return
        stopped = result is None or result.status is Status.TIME_LIMIT
        if stopped or not evaluator.measure_promising(options.finalists):
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
        changes=dict(options.changes),
        seed=options.seed,
        objective=options.objective.name,
        reward=options.resolved_reward,
        executor=options.executor,
        num_units=problem.num_units,
    )
    return RunFolder.resume(path, record) if resume else RunFolder.create(path, record)


def _contiguous(problem: Problem) -> list[Plan]:
    """Plans that are had at once: the first tenth, two tenths, ... of the units on one device, the rest on another."""
    position = inverse_of(problem.units.graph.topological_order)
    pairs = itertools.permutations(range(problem.num_devices), 2)
    shares = [position < tenths * problem.num_units // 10 for tenths in range(1, 10)]
    plans = [Plan(np.where(early, first, then)) for first, then in pairs for early in shares]
    return [plan for plan in plans if problem.is_legal(plan.placement)]


def _automatic(session: Session, problem: Problem) -> Iterator[Plan]:
    """What HETERO would do by itself: a search never ends with less."""
    for target in automatic_targets(session.devices.placed, ()):
        guess = session.automatic(problem, target) if target.startswith("HETERO:") else None
        if guess is not None:
            yield Plan(guess)
