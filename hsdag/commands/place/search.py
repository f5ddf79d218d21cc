"""Search for the placements of a session's model that are worth comparing. Legend: N ops, U placement units."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from hsdag.base.errors import SearchError
from hsdag.base.kernels import compiling_at_most, timed_compiling
from hsdag.commands.place.copies import Copies, proposed_copies
from hsdag.commands.place.first_plans import first_splits, openvinos_plans, plan_of, splits_that_fit, staged
from hsdag.commands.place.kinds import Kinds, contiguous
from hsdag.commands.place.loaded_model import with_costs
from hsdag.commands.place.preparing import measured_shardings, profiled, with_timed, within_largest_difference
from hsdag.commands.place.run_folder import RunFolder, RunRecord
from hsdag.commands.place.search_time import SearchTime
from hsdag.commands.place.session import Session, normalize_objective
from hsdag.commands.place.shards import (
    MEASURED_SHARE,
    PROPOSED_SHARE,
    ShardProposals,
    named_ways,
    told_under_hetero,
    told_undivided,
)
from hsdag.commands.place.tuning import Tuned
from hsdag.commands.place.verifying import Verifier, check_of
from hsdag.commands.place.wanted import Wanted
from hsdag.ir.graph.state import results_by_chance
from hsdag.methods.incumbent import Contribution, Limits
from hsdag.methods.shards.choice import Sharding
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.search.driver import COMPILING, Driver, Watcher, compile_search
from hsdag.search.evaluators.base import Checkpoint, SearchStopped
from hsdag.search.evaluators.hybrid import HybridEvaluator, HybridSchedule
from hsdag.search.evaluators.measured import MeasuredEvaluator
from hsdag.search.evaluators.recording import Event, RecordingEvaluator
from hsdag.search.evaluators.schedule import model_values
from hsdag.search.evaluators.seen_plans import SeenPlans
from hsdag.search.options import PlaceOptions
from hsdag.workers.pool import Pool

FIRST_SLICE = 0.05
"""Share of the search's time for the first slice."""

LEAST_SLICE = 0.01
"""Share of the search's time below which no further slice is begun."""

NUM_STARTS = 4
"""Number of plans, the best known ones, that a slice starts from."""

UNCOMPILED = (
    "there was no time to compile all of the search, which is done once: only splits in one piece were simulated; the "
    "next run goes on with it"
)
"""Note on a search whose kernels are not all compiled yet."""


@dataclass(frozen=True, eq=False)
class Course:
    """What a search did.

    Attributes:
        num_simulated: Number of plans that were only simulated.
        calibrated: Costs as calibrated by the measurements.
        seconds: Seconds that the search took, with the steps before it.
    """

    events: Sequence[Event] = ()
    num_simulated: int = 0
    contributions: Sequence[Contribution] = ()
    calibrated: PlacementCosts | None = None
    seconds: float = 0.0


class Search:
    """Search for placements of a session's model, and its results.

    Args:
        begin_s: ``time.monotonic`` from which the budget runs; now by default.

    Attributes:
        tuned: Devices whose settings were raced, by name.
        kinds: Result of timing each kind of answer before the search.
        wanted: Steps for which there was no time.
        profile: Profile of the model; None if nothing is simulated or it could not be profiled.
        unprofiled: Why there is no profile although there should be one; else None.
        proposals: Proposals of ways to divide the model; None if it is not to be divided.
        shardings: Ways to divide ops that are worth comparing, by name.
        finalists: Plans worth comparing, the best first.
        under_hetero: Plan that suits HETERO best, if the executor is ``auto``.
    """

    def __init__(
        self,
        session: Session,
        options: PlaceOptions,
        watcher: Watcher | None = None,
        begin_s: float | None = None,
        *,
        tuned: Mapping[str, Tuned] | None = None,
        kinds: Kinds | None = None,
        wanted: Wanted | None = None,
    ) -> None:
        self.session = session
        self.options = options
        self.watcher = watcher or Watcher()
        self.tuned = {} if tuned is None else tuned
        self.kinds = kinds or Kinds()
        self.wanted = wanted or Wanted(options.budget_s)
        begin_s = time.monotonic() if begin_s is None else begin_s
        self.time = SearchTime(session, options, self.watcher, self.wanted, begin_s)
        self.problem = _problem_of(session, options, None)
        self.unprofiled: str | None = None
        self.costs: PlacementCosts | None = None
        self.proposals: ShardProposals | None = None
        self.shardings: dict[str, Sharding] = {}
        self.folder: RunFolder | None = None
        self.finalists = list[Plan]()
        self.under_hetero: Plan | None = None
        self.course = Course()

    def run(self, run_folder: Path | None = None, *, resume: bool = False, pool: Pool | None = None) -> None:
        """Search by the method and reward of the options.

        Args:
            resume: Whether to continue the search that ``run_folder`` holds.
            pool: Worker processes that help to simulate.

        Raises DeviceError if the model cannot be profiled, OptionError for what the method cannot search, SearchError
        if the method gave up and nothing was measured.
        """
        session, options, watcher = self.session, self.options, self.watcher
        begin_s = time.monotonic()
        session.client.should_abandon = watcher.should_stop
        self.prepare()
        verifier = Verifier(session.runner, check_of(session, options))
        if verifier.check.is_limit:
            self.problem = within_largest_difference(session, options, watcher, self.problem, verifier)
        problem = self.problem
        placer = options.placer(is_cheap=self.costs is not None)
        placer.check(problem)
        if run_folder is not None:
            self.folder = _opened(self, run_folder, resume=resume)
        inner = MeasuredEvaluator(
            problem,
            session.devices.placed,
            session.runner,
            options.chosen_preset.measurement,
            options.search_executor,
            objection=(lambda key: verifier.compared(key).reason) if verifier.check.is_limit else None,
        )
        limit_s = min(MEASURED_SHARE * options.budget_s, self.time.most_s - self.time.spent_s)
        if self.shardings and self.proposals is not None and limit_s > 0:  # otherwise the comparison measures them
            opening_s = self.time.pace.opening_s
            self.shardings = measured_shardings(self.shardings, self.proposals, self.kinds, watcher, limit_s, opening_s)
        self.time.begin_search()
        is_short = self.time.is_short(problem.num_devices)
        driver = Driver(
            placer,
            problem,
            inner,
            replace(options.budget, seconds=self.time.left_s),
            replace(watcher, on_event=self.time.heed),
            Limits(num_workers=options.num_threads, seed=options.seed, known=tuple(_known(self)), pool=pool),
            journal=lambda event: None if self.folder is None else self.folder.append(event),
            past=() if self.folder is None else self.folder.events,
        )
        self.time.note_if_over(driver.recorder)
        in_stages = staged(problem)
        hybrid = self._search(driver, in_stages, is_short=is_short)
        num_simulated = self._choose(driver.recorder, hybrid, in_stages)
        session.client.should_abandon = lambda: False
        verifier.close()
        events, seconds = driver.recorder.events, time.monotonic() - begin_s
        calibrated = None if hybrid is None else hybrid.costs
        self.course = Course(events, num_simulated, driver.contributions, calibrated, seconds)

    @property
    def profile(self) -> ModelProfile | None:
        """Return the profile of the model; None before it is profiled, or without one."""
        return self.time.profile

    @cached_property
    def copies(self) -> dict[str, Copies]:
        """Return the copies of the whole model that are worth comparing, by name."""
        return proposed_copies(self.session, self.options, self.profile, self.problem)

    @property
    def plans(self) -> dict[str, Plan]:
        """Return the finalists and the plan that suits HETERO best, by their names in the comparison."""
        others = [] if self.under_hetero is None or self.under_hetero in self.finalists else [self.under_hetero]
        return {f"placement {rank}": plan for rank, plan in enumerate([*self.finalists, *others], start=1)}

    def prepare(self) -> None:
        """Profile the model, unless all placements are measured, and propose ways to divide it.

        If it cannot be profiled, or after an interrupt, placements are measured instead. Raises DeviceError if the
        options need a profile that failed, or if no device supports an op.
        """
        session, options = self.session, self.options
        if by_chance := results_by_chance(session.graph):
            self.watcher.note(
                f"{len(by_chance)} of {session.graph.op_types.count('Result')} outputs depend on random numbers: they "
                "are compared where these have a seed, and devices draw alike"
            )
        if options.resolved_reward == "measured":
            return
        spent_s = self.time.spent_s
        profile, self.unprofiled = profiled(session, options, self.watcher, self.wanted, spent_s)
        self.time.profile = profile
        if profile is None:
            return
        costs = session.model.costs(profile, options.search_executor)
        hetero = costs if isinstance(costs, HeteroCosts) else None
        problem = normalize_objective(session, replace(_problem_of(session, options, profile), ops=hetero), costs)
        self.costs, self.problem = costs, problem
        if self.watcher.should_stop():
            return
        proposals = ShardProposals(session, options, profile)
        if options.executor == "hetero":
            note = told_under_hetero(proposals)
        else:
            self.proposals = proposals
            ways = proposals.to_measure(PROPOSED_SHARE * options.budget_s)
            gains = any(way.predicted_s < proposals.whole_s for way in ways)
            self.shardings = named_ways(with_timed(ways, proposals.whole_s, self.kinds, self.watcher.note, gains=gains))
            note = None if gains else told_undivided(proposals)
        if note is not None:
            self.watcher.note(note)

    def _search(self, driver: Driver, in_stages: Sequence[Plan], *, is_short: bool) -> HybridEvaluator | None:
        """Evaluate first plans, and let the placer search to its end.

        Plans ``in_stages`` are evaluated before all others; if ``is_short``, there is no time to measure any plan.
        Returns the evaluator that simulates and measures, if there is one.
        """
        checkpoint = None if self.folder is None else self.folder.state
        hybrid: HybridEvaluator | None = None
        with contextlib.suppress(SearchStopped):
            if not is_short:
                automatic = openvinos_plans(self.session, self.problem)
                splits = first_splits(self.session, self.options, self.problem, self.kinds, self.profile, self.costs)
                driver.guess([*in_stages, *automatic, *splits])
            is_compiled = self._compile(driver)
            self.watcher.on_phase("searching")
            hybrid = _evaluator(self, driver, is_short=is_short or not is_compiled)
            if hybrid is not None and (is_short or not is_compiled):
                hybrid.evaluate(contiguous(self.problem))
            if not is_compiled:
                self.watcher.note(UNCOMPILED)
            elif hybrid is None or is_short or self.options.resolved_reward != "hybrid" or driver.placer.learns:
                driver.search(hybrid, checkpoint)
                _report(driver)
            else:
                search_in_slices(driver, hybrid, checkpoint)
        return hybrid

    def _choose(self, recorder: RecordingEvaluator, hybrid: HybridEvaluator | None, in_stages: Sequence[Plan]) -> int:
        """Choose the finalists and the plan that suits HETERO best; return the number of plans simulated until then.

        Plans ``in_stages`` are compared whatever their values.
        """
        num_simulated = 0 if hybrid is None else hybrid.num_simulated
        count = self.options.finalists
        tried = [event.plan for event in recorder.best(len(recorder.events) + 1) if event.plan.is_split]
        self.finalists = tried[:count]
        if hybrid is not None:  # fill up the best measured splits with the best simulated ones
            self.finalists += hybrid.seen.promising(count - len(self.finalists))
        if not self.finalists and self.costs is not None:  # measuring single devices took all of the time
            plans = splits_that_fit(self.problem)
            values = model_values(self.problem, self.costs, plans)
            self.finalists = [plans[i] for i in np.argsort(values)[:count].tolist() if np.isfinite(values[i])]
            num_simulated += len(plans)
        self.finalists[1:1] = [plan for plan in in_stages if plan not in self.finalists]
        if self.options.executor == "auto" and self.profile is not None and (tried or self.finalists):
            plans = list(dict.fromkeys([*self.finalists, *tried]))
            values = model_values(self.problem, self.session.model.costs(self.profile, "hetero"), plans)
            self.under_hetero = plans[int(np.argmin(values))]
        return num_simulated

    def _compile(self, driver: Driver) -> bool:
        """Compile the kernels of the search while there is time, and return whether all of them are compiled."""
        costs, problem = self.costs, self.problem
        if costs is None or self.watcher.should_stop():
            return True
        some = [Plan(problem.supported.argmax(axis=1))]
        told = partial(self.watcher.on_step, COMPILING)  # as a step: compiling is part of the budget
        with compiling_at_most(self.time.unspent_s), timed_compiling(told):
            evaluate = partial(model_values, problem, costs, some)
            takes_order = driver.recorder.takes_order
            return compile_search(driver.placer, problem, evaluate, steps=costs.steps, takes_order=takes_order)


def _problem_of(session: Session, options: PlaceOptions, profile: ModelProfile | None) -> Problem:
    problem = session.problem(max_share=options.chosen_preset.max_share, profile=profile)
    return replace(problem, semantics=options.semantics)


def _opened(search: Search, path: Path, *, resume: bool) -> RunFolder:
    """Create or resume the run folder, and write the graph and the profile of the model."""
    session, loaded, labels = search.session, search.session.loaded, search.session.loaded.labels
    source = loaded.name if loaded.is_workload or loaded.name is None else loaded.path.resolve()
    record = RunRecord(
        model=session.model_record,
        devices=list(session.devices.all),
        placed=list(search.problem.devices),
        defaults=dict(session.devices.defaults),
        num_units=search.problem.num_units,
        data_shapes=tuple(scenario.text for scenario in session.scenarios),
        labels=None if labels is None else {name: list(column) for name, column in vars(labels).items()},
        model_path=None if source is None else str(source),
        arguments=search.options.arguments,
        **search.options.record(),
    )
    folder = RunFolder.resume(path, record) if resume else RunFolder.create(path, record)
    session.until_end.enter_context(folder)
    folder.keep_model(session.graph, search.profile)
    return folder


def _evaluator(search: Search, driver: Driver, *, is_short: bool) -> HybridEvaluator | None:
    """Return the evaluator that simulates and measures; None if every placement is to be measured."""
    if search.costs is None:
        return None
    schedule = HybridSchedule() if driver.placer.learns else HybridSchedule.between_slices()
    if is_short or search.options.resolved_reward == "simulated":
        schedule = HybridSchedule.simulated()
    return HybridEvaluator(
        search.problem,
        search.costs,
        driver.recorder,
        schedule,
        SeenPlans() if search.folder is None else SeenPlans(search.folder.kept, search.folder.keep),
        on_round=search.watcher.on_step,
    )


def _known(search: Search) -> list[Plan]:
    """Return the placement to start with as a plan of units; nothing, with a note, if it is not a legal plan."""
    if search.options.start is None:
        return []
    plan = plan_of(search.session, search.problem, search.options.start)
    if plan is None:
        note = "the placement to start with is no plan of this search, and takes part in the comparison alone"
        search.watcher.note(note)
        return []
    return [plan]


def search_in_slices(driver: Driver, hybrid: HybridEvaluator, checkpoint: Checkpoint | None = None) -> None:
    """Search in slices; after each one measure the best plans, recalibrate costs, and continue from the best.

    The search ends when measuring finds nothing better. The first slice is short, as the costs are least certain then.
    Each later one lasts as long as all before it, but at most half of the time left.

    Raises SearchStopped at the end of the budget.
    """
    limits, problem = driver.limits, driver.problem
    searched_s = 0.0
    for number in itertools.count():
        left_s = driver.recorder.budget.seconds - driver.recorder.elapsed_s
        slice_s = min(max(searched_s, FIRST_SLICE * limits.seconds), 0.5 * left_s)
        if slice_s < LEAST_SLICE * limits.seconds:
            raise SearchStopped
        begin_s = time.monotonic()
        starts = tuple(hybrid.seen.best(NUM_STARTS)) if hybrid.seen.promising(1) else ()
        within = replace(
            limits, seconds=slice_s, seed=limits.seed + number, known=starts or limits.known, is_again=bool(starts)
        )
        driver.search(hybrid, checkpoint, problem, within)
        searched_s += time.monotonic() - begin_s
        hybrid.measure_promising()
        if hybrid.rounds.has_converged:
            _report(driver)
            return
        if problem.costs is not None:
            ops = None if problem.ops is None else hybrid.costs
            problem = replace(with_costs(problem, hybrid.costs.costs, problem.costs.memory_bytes), ops=ops)


def _report(driver: Driver) -> None:
    """Add a note if the placer gave up. Raises SearchError if it did and nothing was measured."""
    if driver.note:
        if not driver.recorder.best():
            raise SearchError(driver.note)
        driver.watcher.note(driver.note)
