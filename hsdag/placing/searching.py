"""Searching: from a session to the placements worth comparing. Legend: U placement units."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hsdag.ir.errors import DeviceError, SearchError
from hsdag.ir.graph.computation_graph import inverse_of
from hsdag.ir.processes import CandidateFailed
from hsdag.methods.base import Placer
from hsdag.methods.incumbent import Contribution, Result
from hsdag.placing.limits import within_difference
from hsdag.placing.placed_model import with_costs
from hsdag.placing.ruled_out import without_ruled_out
from hsdag.placing.session import Session, normalize_objective
from hsdag.placing.verifying import Verifier, check_of
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.placement_costs import PlacementCosts
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.candidate import automatic_targets
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.measuring.profiler import Effort
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.units import unit_ranks
from hsdag.scoring.base import Checkpoint, SearchStopped
from hsdag.scoring.hybrid import HybridEvaluator, HybridSchedule
from hsdag.scoring.measured import MeasuredEvaluator
from hsdag.scoring.recording import RecordingEvaluator
from hsdag.scoring.schedule import model_values
from hsdag.search.driver import ENOUGH_PLACEMENTS, Driver, Watcher, budget_shortage, compile_search
from hsdag.search.options import PlaceOptions
from hsdag.search.run_folder import RunFolder, RunRecord
from hsdag.workers.pool import Pool

FIRST_SLICE, LEAST_SLICE = 0.05, 0.01
"""Shares of the budget: a search in slices begins with the first, and ends where less than the last is left for one."""

NUM_STARTS = 4
"""Plans, the best that are known, which a slice goes on from."""

_TRIAL = "trial"

DIFFERENCE_SHARE = 0.2
"""Share of the budget in which is measured what may run where so that outputs keep the largest difference."""

LEAST_SEARCH_SHARE = 0.25
"""Share of the budget that is left to the search, however long the profile took."""


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """The problem to search over, and where the reward simulates, a profile and the costs that follow from it.

    ``ruled_out`` are sentences on splits that the profile leaves out of the problem; ``unprofiled`` says why there is
    no profile where there should be one.
    """

    problem: Problem
    costs: PlacementCosts | None = None
    profile: ModelProfile | None = None
    ruled_out: tuple[str, ...] = ()
    unprofiled: str | None = None

    @property
    def compile_s(self) -> float:
        """Seconds to compile the whole model, 0 where it is not known."""
        return 0.0 if self.profile is None else max(times.compile_s for times in self.profile.times)


@dataclass(frozen=True, eq=False)
class SearchSummary:
    """What a search found: all that it measured, how many it simulated, and the plans worth comparing.

    ``profile`` is what was measured of the model, and ``unprofiled`` why it was not where it should have been;
    ``costs`` is what the measurements of the search made of it.
    ``ruled_out`` says why nothing was searched, where the profile left no split to search for. ``compiling_s`` came
    before the search, and is not part of the budget. ``left_s`` of the budget were left when the search began.
    """

    problem: Problem
    recorder: RecordingEvaluator
    num_simulated: int
    finalists: list[Plan]
    search_s: float
    folder: RunFolder | None
    ruled_out: str | None = None
    contributions: tuple[Contribution, ...] = ()
    compiling_s: float = 0.0
    left_s: float = 0.0
    profile: ModelProfile | None = None
    unprofiled: str | None = None
    costs: PlacementCosts | None = None


def search_placements(
    session: Session,
    options: PlaceOptions,
    *,
    run_folder: Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    pool: Pool | None = None,
) -> SearchSummary:
    """Search for placements of a session's model by the options' method and reward, without the final comparison.

    What is simulated is computed by a ``pool`` as well.
    """
    watcher, begin_s = watcher or Watcher(), time.monotonic()
    session.client.should_abandon, session.client.on_wait = watcher.should_stop, watcher.on_phase
    space, verifier = prepare(session, options, watcher), _verifier(session, options)
    if options.max_difference is not None:
        space = _within_difference(session, space, options, verifier, watcher)
    problem, left_s = space.problem, options.budget_s
    placer = options.placer(is_cheap=space.costs is not None)
    placer.check(problem)
    folder = _open_folder(run_folder, session, problem, options, resume)
    if folder is not None:
        session.open_until_end(folder)
        folder.keep_model(session.graph, space.profile)
    inner = MeasuredEvaluator(
        problem,
        session.devices.placed,
        session.runner,
        options.chosen_preset.measurement,
        options.executor,
        objection=(lambda key: verifier.compared(key).reason) if verifier.is_limit else None,
    )
    compiling_s = 0.0
    if space.costs is not None:
        costs, some = space.costs, problem.supported.argmax(axis=1)
        compiling_s = compile_search(
            placer,
            problem,
            lambda: model_values(problem, costs, [Plan(some)]),
            takes_order=inner.takes_order,
            say=watcher.on_phase,
        )
        begin_s += compiling_s
        left_s = max(left_s - (time.monotonic() - begin_s), LEAST_SEARCH_SHARE * left_s)
    num_first = problem.num_devices + 1
    is_short = options.resolved_reward == "hybrid" and left_s < num_first * space.compile_s
    if is_short:
        lack = budget_shortage(options.budget_s, space.compile_s, left_s, max(ENOUGH_PLACEMENTS, num_first))
        watcher.note(f"{lack}; nothing is measured before the comparison")
        options = replace(options, reward="simulated")
    options = replace(options, budget_s=left_s)
    past = folder.events() if folder is not None else ()
    begun = _start(session, problem, options, watcher)
    driver = Driver(
        placer,
        problem,
        inner,
        options.budget,
        watcher,
        seed=options.seed,
        known=begun,
        journal=folder,
        past=past,
        pool=pool,
        num_threads=options.num_threads,
    )
    if space.ruled_out:
        watcher.note("; ".join(space.ruled_out))
        if problem.supported.any(axis=0).sum() == 1:
            spent_s, why = time.monotonic() - begin_s, "; ".join(space.ruled_out)
            return SearchSummary(
                problem, driver.recorder, 0, [], spent_s, folder, why, (), compiling_s, left_s, space.profile
            )
    watcher.on_phase("searching")
    hybrid: HybridEvaluator | None = None
    with contextlib.suppress(SearchStopped):
        if not is_short:
            driver.guess(_automatic(session, problem))
        hybrid = _hybrid(space, driver.recorder, options, placer, folder, watcher)
        if is_short and hybrid is not None:
            hybrid.evaluate(_contiguous(problem))
        if hybrid is None or options.resolved_reward != "hybrid" or placer.learns:
            _report(driver, driver.search(hybrid, folder), watcher)
        else:
            search_in_slices(driver, problem, hybrid, watcher, folder)
    session.client.should_abandon = lambda: False
    verifier.close()
    return SearchSummary(
        problem=problem,
        recorder=driver.recorder,
        num_simulated=0 if hybrid is None else hybrid.num_simulated,
        finalists=_finalists(driver.recorder, hybrid, options.finalists),
        search_s=time.monotonic() - begin_s,
        folder=folder,
        contributions=tuple(driver.contributions),
        compiling_s=compiling_s,
        left_s=left_s,
        profile=space.profile,
        unprofiled=space.unprofiled,
        costs=None if hybrid is None else hybrid.costs,
    )


def prepare(session: Session, options: PlaceOptions, watcher: Watcher) -> SearchSpace:
    """Profile the model where the reward simulates.

    A device that cannot be profiled leaves measuring, unless simulation was requested by name; so does an
    interrupt. Raises DeviceError then, and when an op runs nowhere.
    """
    max_share, semantics = options.chosen_preset.max_share, options.semantics
    measured_alone = SearchSpace(replace(session.problem(max_share=max_share), semantics=semantics))
    if options.resolved_reward == "measured":
        return measured_alone
    try:
        profile = session.profile(
            ProfileCache(None) if options.fresh else None,
            Effort.within(options.budget_s, len(session.devices.placed)),
            watcher.on_phase,
            watcher.should_stop,
            side_by_side=options.executor != "hetero" or options.objective.is_steady,
        )
    except DeviceError as error:
        needs_one = options.reward is not None or options.memory_bytes or options.objective.counts_memory
        if needs_one and not watcher.should_stop():
            raise
        unprofiled = f"{error}; every placement was measured instead"
        watcher.note(unprofiled)
        return replace(measured_alone, unprofiled=unprofiled)
    problem = replace(session.problem(max_share=max_share, profile=profile), semantics=semantics)
    costs, ruled_out = session.costs(profile, options.executor), tuple[str, ...]()
    hetero = costs if isinstance(costs, HeteroCosts) else None
    problem = normalize_objective(session, replace(problem, hetero=hetero), costs)
    if hetero is not None:
        return SearchSpace(problem, costs, profile)
    if profile.contention is not None:
        problem, ruled_out = without_ruled_out(problem, profile.contention)
    return SearchSpace(problem, costs, profile, ruled_out)


def _verifier(session: Session, options: PlaceOptions) -> Verifier:
    return Verifier(session.runner, check_of(session, options.reference, options.max_difference))


def _within_difference(
    session: Session, space: SearchSpace, options: PlaceOptions, verifier: Verifier, watcher: Watcher
) -> SearchSpace:
    """The space with those choices alone that were measured to keep the largest difference."""
    assert options.max_difference is not None
    watcher.on_phase("measuring how far the outputs of devices differ")
    problem, end_s = space.problem, time.monotonic() + DIFFERENCE_SHARE * options.budget_s

    def difference(plan: Plan) -> float:
        try:
            session.runner.open(_TRIAL, session.placed(problem, plan, options.executor))
            found = verifier.compared(_TRIAL).difference
            session.runner.close(_TRIAL)
        except CandidateFailed:
            return float("inf")
        relative = None if found is None else found["max_relative"]
        return float("inf") if relative is None else relative

    def is_over() -> bool:
        return watcher.should_stop() or time.monotonic() >= end_s

    allowed, sentences = within_difference(problem, options.max_difference, difference, is_over)
    for sentence in sentences:
        watcher.note(sentence)
    return replace(space, problem=allowed)


def _hybrid(
    space: SearchSpace,
    measured: RecordingEvaluator,
    options: PlaceOptions,
    placer: Placer[Any],
    folder: RunFolder | None,
    watcher: Watcher,
) -> HybridEvaluator | None:
    """What the placer asks where not every placement is to be measured."""
    if space.costs is None:
        return None
    schedule = HybridSchedule() if placer.learns else HybridSchedule.between_slices()
    if options.resolved_reward == "simulated":
        schedule = HybridSchedule.simulated()
    return HybridEvaluator(
        space.problem,
        space.costs,
        measured,
        schedule,
        kept=folder.kept() if folder is not None else (),
        keep=folder.keep if folder is not None else lambda _: None,
        on_round=watcher.on_simulated,
    )


def _finalists(recorder: RecordingEvaluator, hybrid: HybridEvaluator | None, count: int) -> list[Plan]:
    """The best split plans measured, and where there are too few, those of the best simulated value."""
    found = [event.plan for event in recorder.best(len(recorder.events) + 1) if event.plan.is_split][:count]
    return found + (hybrid.promising(count - len(found)) if hybrid is not None else [])


def search_in_slices(
    driver: Driver,
    problem: Problem,
    hybrid: HybridEvaluator,
    watcher: Watcher,
    checkpoint: Checkpoint | None = None,
) -> None:
    """Search for a slice of the budget, measure a few, and go on from the best with costs that were recalibrated.

    Until measuring finds nothing better. The first slice is short, since the costs are least certain then. Each of the
    next ones lasts as long as all before it, but leaves as much of the budget as it takes. Raises SearchStopped at the
    end of the budget.
    """
    limits, searched_s = driver.limits, 0.0
    for number in itertools.count():
        left_s = limits.seconds - driver.recorder.elapsed_s
        slice_s = min(max(searched_s, FIRST_SLICE * limits.seconds), 0.5 * left_s)
        if slice_s < LEAST_SLICE * limits.seconds:
            raise SearchStopped
        begin_s, known = time.monotonic(), tuple(hybrid.best(NUM_STARTS)) if hybrid.promising(1) else ()
        within = replace(
            limits, seconds=slice_s, seed=limits.seed + number, known=known or limits.known, is_again=bool(known)
        )
        result = driver.search(hybrid, checkpoint, problem, within)
        searched_s += time.monotonic() - begin_s
        hybrid.measure_promising()
        if hybrid.is_settled:
            _report(driver, result, watcher)
            return
        if problem.costs is not None:
            hetero = None if problem.hetero is None else hybrid.costs
            problem = replace(with_costs(problem, hybrid.costs.costs, problem.costs.memory_bytes), hetero=hetero)


def _report(driver: Driver, result: Result | None, watcher: Watcher) -> None:
    """Say why the placer gave up. Raises SearchError where it did and nothing was ever measured."""
    if result is not None and result.note:
        if not driver.recorder.best():
            raise SearchError(result.note)
        watcher.note(result.note)


def _open_folder(
    path: Path | None, session: Session, problem: Problem, options: PlaceOptions, resume: bool
) -> RunFolder | None:
    if path is None:
        return None
    subject, labels = session.subject, session.subject.labels
    source = subject.name if subject.is_workload or subject.name is None else subject.path.resolve()
    record = RunRecord(
        model=session.model_record,
        devices=session.device_records,
        placed=list(problem.devices),
        num_units=problem.num_units,
        data_shapes=tuple(scenario.text for scenario in session.scenarios),
        labels=None if labels is None else {name: list(column) for name, column in vars(labels).items()},
        model_path=None if source is None else str(source),
        arguments=options.arguments,
        **options.record(),
    )
    return RunFolder.resume(path, record) if resume else RunFolder.create(path, record)


def _contiguous(problem: Problem) -> list[Plan]:
    """Plans that are had at once: the first tenth, two tenths, ... of the units on one device, the rest on another.

    As near to that as pins and devices allow.
    """
    position = inverse_of(problem.units.graph.topological_order)
    pairs = itertools.permutations(range(problem.num_devices), 2)
    shares = [position < tenths * problem.num_units // 10 for tenths in range(1, 10)]
    return [problem.nearest(np.where(early, first, then)) for first, then in pairs for early in shares]


def _start(session: Session, problem: Problem, options: PlaceOptions, watcher: Watcher) -> list[Plan]:
    """The placement to start with as a plan, as near to it as units come."""
    if options.start is None:
        return []
    names = {device.name: device.spec().openvino_name for device in options.start.devices}
    placement = session.of_units(problem, [names[device] for device in options.start.devices_of(session.graph)])
    if placement is None:
        watcher.note("the placement to start with is no plan of this search, and takes part in the comparison alone")
        return []
    ranks = options.start.priority_of(session.graph)
    if ranks is None or None in ranks:
        return [Plan(placement)]
    return [Plan(placement, unit_ranks(problem.units.partition.labels, np.asarray(ranks)))]


def _automatic(session: Session, problem: Problem) -> Iterator[Plan]:
    """What HETERO would do by itself, where it has the devices: a search never ends with less."""
    if session.is_on_torch:
        return
    for target in automatic_targets(session.devices.placed, ()):
        guess = session.automatic(problem, target) if target.startswith("HETERO:") else None
        if guess is not None:
            yield Plan(guess)
