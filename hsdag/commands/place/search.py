"""Search for the placements of a session's model that are worth comparing. Legend: N ops, U placement units."""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hsdag.base.errors import DeviceError, SearchError, option
from hsdag.base.kernels import compiling_at_most
from hsdag.base.processes import CandidateFailed
from hsdag.commands.place.copies import Copies, proposed_copies
from hsdag.commands.place.kinds import SHARDS, SPLIT, Kinds, contiguous
from hsdag.commands.place.limits import within_difference
from hsdag.commands.place.loaded_model import with_costs
from hsdag.commands.place.pace import RUNS_EACH_ROUND, Deadline, Pace
from hsdag.commands.place.run_folder import RunFolder, RunRecord
from hsdag.commands.place.session import Session, normalize_objective
from hsdag.commands.place.shards import (
    MEASURED_SHARE,
    PROPOSED_SHARE,
    ShardProposals,
    named,
    told_under_hetero,
    told_undivided,
)
from hsdag.commands.place.tuning import Tuned
from hsdag.commands.place.verifying import Verifier, check_of
from hsdag.commands.place.wanted import Wanted
from hsdag.ir.graph.state import results_by_chance
from hsdag.ir.placement.homes import op_devices, op_priority
from hsdag.methods.base import Placer
from hsdag.methods.cuts.pipeline import PipelinePlacer, stages
from hsdag.methods.incumbent import Contribution
from hsdag.methods.shards.choice import Sharding
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.effort import NO_TIME, Effort
from hsdag.runtime.measuring.inferences import REQUESTS_IN_FLIGHT
from hsdag.runtime.measuring.messages import automatic_targets
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.objectives import Quantity
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.plan import Plan, unit_priority
from hsdag.runtime.problem.problem import Problem
from hsdag.search.driver import ENOUGH_PLACEMENTS, Driver, Watcher, compile_search, shortage
from hsdag.search.evaluators.base import Checkpoint, SearchStopped
from hsdag.search.evaluators.hybrid import HybridEvaluator, HybridSchedule
from hsdag.search.evaluators.measured import MeasuredEvaluator
from hsdag.search.evaluators.memory import MemoryCheck
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

_TRIAL = "trial"
"""Key of a candidate in the runner whose outputs are compared."""

UNCOMPILED = (
    "there was no time to compile all of the search, which is done once: only splits in one piece were simulated; the "
    "next run goes on with it"
)
"""Note on a search whose kernels are not all compiled yet."""

LOST = "the model is not divided: the best way to do so took"
"""Words before the ratio in the note on shards that lost."""

TIMED = "times as long as the fastest device when both were timed"
"""Words after the ratio in the note on shards that lost."""

DIFFERENCE_SHARE = 0.2
"""Largest share of the budget to measure which units may run where within the largest difference of outputs."""


class Search:
    """Search for placements of a session's model, and its results.

    Attributes:
        begin_s: ``time.monotonic`` from which the budget runs.
        profile: Profile of the model; None if nothing is simulated or it could not be profiled.
        unprofiled: Why there is no profile although there should be one; else None.
        costs: Costs by the profile.
        calibrated: Costs as calibrated by the search's measurements.
        events: Plans that were measured.
        num_simulated: Number of plans that were only simulated.
        finalists: Plans worth comparing, the best first.
        under_hetero: Plan that suits HETERO best, if the executor is ``auto``.
        shardings: Ways to divide ops that are worth comparing, by name.
        tuned: Devices whose settings were raced, by name.
        kinds: Result of timing each kind of answer before the search.
        wanted: Steps for which there was no time.
        search_s: Seconds that the search took.
        left_s: Seconds for the search when it began, without those for the final comparison.
    """

    def __init__(
        self, session: Session, options: PlaceOptions, watcher: Watcher | None = None, begin_s: float | None = None
    ) -> None:
        self.session = session
        self.options = options
        self.watcher = watcher or Watcher()
        self.begin_s = time.monotonic() if begin_s is None else begin_s
        self.problem = self._problem_of(None)
        self.profile: ModelProfile | None = None
        self.unprofiled: str | None = None
        self.costs: PlacementCosts | None = None
        self.calibrated: PlacementCosts | None = None
        self.folder: RunFolder | None = None
        self.events: list[Event] = []
        self.num_simulated = 0
        self.finalists = list[Plan]()
        self.under_hetero: Plan | None = None
        self.shardings: dict[str, Sharding] = {}
        self.proposals: ShardProposals | None = None
        self.tuned: dict[str, Tuned] = {}
        self.kinds = Kinds()
        self.wanted = Wanted(options.budget_s)
        self.contributions: list[Contribution] = []
        self.search_s = self.left_s = self._before_s = 0.0

    def run(self, run_folder: Path | None = None, *, resume: bool = False, pool: Pool | None = None) -> None:
        """Search by the method and reward of the options.

        Args:
            run_folder: Folder to keep the search in.
            resume: Whether to continue the search in that folder.
            pool: Worker processes that help to simulate.

        Raises DeviceError if the model cannot be profiled, OptionError for what the method cannot search, SearchError
        if the method gave up and nothing was measured.
        """
        session, options, watcher = self.session, self.options, self.watcher
        begin_s = time.monotonic()
        session.client.should_abandon = watcher.should_stop
        session.client.on_wait = watcher.on_phase
        self.prepare()
        verifier = Verifier(session.runner, check_of(session, options))
        if verifier.check.is_limit:
            self._keep_difference(verifier)
        problem = self.problem
        placer = options.placer(is_cheap=self.costs is not None)
        placer.check(problem)
        if run_folder is not None:
            self.folder = self._open(run_folder, resume=resume)
        inner = MeasuredEvaluator(
            problem,
            session.devices.placed,
            session.runner,
            options.chosen_preset.measurement,
            options.search_executor,
            objection=(lambda key: verifier.compared(key).reason) if verifier.check.is_limit else None,
        )
        self._measure_shardings()
        self._before_s = time.monotonic() - self.begin_s
        self.left_s = self._for_search_s
        watcher.on_left(self.left_s + options.budget_s - self._most_s)
        is_short = self._is_short()
        driver = Driver(
            placer,
            problem,
            inner,
            replace(options.budget, seconds=self.left_s),
            replace(watcher, on_event=self._tell_what_it_takes),
            seed=options.seed,
            known=self._start(),
            journal=lambda event: None if self.folder is None else self.folder.append(event),
            past=() if self.folder is None else self.folder.events,
            pool=pool,
            num_threads=options.num_threads,
        )
        self.events = driver.recorder.events
        if self.events and driver.recorder.elapsed_s >= self.left_s:
            watcher.note(
                f"the search has already taken the time that {option('budget')} {options.budget_s:.0f}s leaves for it; "
                f"raise {option('budget')} to go on"
            )
        self._search(driver, placer, is_short=is_short)
        session.client.should_abandon = lambda: False
        verifier.close()
        self.contributions = driver.contributions
        self.search_s = time.monotonic() - begin_s

    @cached_property
    def copies(self) -> dict[str, Copies]:
        """Copies of the whole model that are worth comparing, by name."""
        return proposed_copies(self.session, self.options, self.profile, self.problem)

    @property
    def plans(self) -> dict[str, Plan]:
        """Finalists and the plan that suits HETERO best, by their names in the comparison."""
        others = [] if self.under_hetero is None or self.under_hetero in self.finalists else [self.under_hetero]
        return {f"placement {rank}": plan for rank, plan in enumerate([*self.finalists, *others], start=1)}

    @property
    def pace(self) -> Pace:
        """Seconds of the steps of the final comparison, by the profile and by what was opened and measured so far."""
        taken = self.session.runner.taken
        is_steady = Quantity.PERIOD in self.options.objective.quantities
        runs = (REQUESTS_IN_FLIGHT, taken.value_s / RUNS_EACH_ROUND) if is_steady else (1, taken.value_s)
        return Pace.of(self.profile, taken.slowest_open_s, *runs, self.session.client.start_s, taken.part_s)

    @property
    def _most_s(self) -> float:
        """Seconds of the budget before the final comparison."""
        return self.options.budget_s - self.pace.comparison_s(self.options.budget_s, self.options.protocol)[0]

    @property
    def _for_search_s(self) -> float:
        """Seconds of the budget for the search, between the steps before it and the final comparison."""
        return max(self._most_s - self._before_s, 0.0)

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
        self.profile = profile = None if options.resolved_reward == "measured" else self._profiled()
        if profile is None:
            return
        costs = session.model.costs(profile, options.search_executor)
        hetero = costs if isinstance(costs, HeteroCosts) else None
        problem = normalize_objective(session, replace(self._problem_of(profile), ops=hetero), costs)
        self.costs, self.problem = costs, problem
        if self.watcher.should_stop():
            return
        proposals = ShardProposals(session, options, profile)
        if options.executor == "hetero":
            note = told_under_hetero(proposals)
        else:
            self.proposals = proposals
            found = proposals.to_measure(PROPOSED_SHARE * options.budget_s)
            gains = any(each.predicted_s < proposals.whole_s for each in found)
            self.shardings = named(self._with_timed(found, proposals.whole_s, gains=gains))
            note = None if gains else told_undivided(proposals)
        if note is not None:
            self.watcher.note(note)

    def _with_timed(self, found: list[Sharding], whole_s: float, *, gains: bool) -> list[Sharding]:
        """Add the sharding that was timed before the search, unless it has lost.

        Returns nothing if it has clearly lost and the others are not predicted to gain anything either.
        """
        early, times = self.kinds.sharding, self.kinds.times.get(SHARDS)
        if early is None or times is None:
            return found
        if self.kinds.has_lost(SHARDS) and not gains:
            self.watcher.note(f"{LOST} {times:.2f} {TIMED}")
            return []
        if self.kinds.is_near(SHARDS) and early not in found:
            found.insert(int(gains), replace(early, predicted_s=times * whole_s))
        return found

    def _measure_shardings(self) -> None:
        """Keep the shardings that win when measured or, if none does, the one that did well before the search.

        If there is no time, all are left to the comparison.
        """
        watcher = self.watcher
        limit_s = min(MEASURED_SHARE * self.options.budget_s, self._most_s - (time.monotonic() - self.begin_s))
        if not self.shardings or self.proposals is None or limit_s <= 0:
            return
        watcher.on_phase("measuring shards")
        found = list(self.shardings.values())
        measured = self.proposals.measured(found, limit_s, watcher.should_stop, self.pace.opening_s)
        self.shardings = named(self.kinds.believed(measured))
        if not self.shardings and (times := self.proposals.best_times) is not None:
            watcher.note(f"{LOST} {times:.2f} {TIMED}")

    def _profiled(self) -> ModelProfile | None:
        """Profile the model; None, with a note, if that fails and the options do not need a profile."""
        session, options = self.session, self.options
        effort = Effort.within(options.budget_s, len(session.devices.placed))
        left_s = options.budget_s - (time.monotonic() - self.begin_s)
        try:
            return session.profile(
                ProfileCache(None) if options.fresh else None,
                replace(effort, total_s=min(effort.total_s, 0.4 * left_s)),
                self.watcher.on_phase,
                self.watcher.should_stop,
                on_note=self._heed,
                side_by_side=options.executor != "hetero" or options.objective.is_steady,
            )
        except DeviceError as error:
            needs_one = options.reward is not None or options.memory_bytes or options.objective.counts_memory
            stopped = self.watcher.should_stop()
            if needs_one and not stopped:
                raise
            self.unprofiled = str(error) if stopped else f"{error}; every placement was measured instead"
            self.watcher.note(self.unprofiled)
            return None

    def _heed(self, note: str) -> None:
        """Pass on a note of the profiler, and add to ``wanted`` if it had too little time."""
        if note.startswith(NO_TIME):
            self.wanted.add("measure what happens between devices well")
        self.watcher.note(note)

    def _problem_of(self, profile: ModelProfile | None) -> Problem:
        problem = self.session.problem(max_share=self.options.chosen_preset.max_share, profile=profile)
        return replace(problem, semantics=self.options.semantics)

    def _keep_difference(self, verifier: Verifier) -> None:
        """Restrict the problem to choices that were measured to keep the largest difference of outputs."""
        session, watcher, problem = self.session, self.watcher, self.problem
        watcher.on_phase("measuring how far the outputs of devices differ")
        deadline = Deadline(time.monotonic() + DIFFERENCE_SHARE * self.options.budget_s, watcher.should_stop)

        def difference(plan: Plan) -> float:
            try:
                session.runner.open(_TRIAL, session.placed(problem, plan, self.options.search_executor))
                found = verifier.compared(_TRIAL).difference
                session.runner.close(_TRIAL)
            except CandidateFailed:
                return np.inf
            relative = None if found is None else found["max_relative"]
            return np.inf if relative is None else relative

        self.problem, sentences = within_difference(problem, verifier.check.least, difference, deadline.is_over)
        for sentence in sentences:
            watcher.note(sentence)

    def _is_short(self) -> bool:
        """Return whether there is no time to measure before the comparison, and add a note if so."""
        num_first = self.problem.num_devices + 1
        pace = Pace.of(self.profile)
        measurement = self.options.chosen_preset.measurement
        each_s = pace.compile_s + (measurement.warm_ups + measurement.runs) * pace.run_s
        if self.options.resolved_reward != "hybrid" or self.left_s >= num_first * each_s:
            return False
        lack = self._lacks(each_s, self.left_s, max(ENOUGH_PLACEMENTS, num_first))
        self.watcher.note(f"{lack}; nothing is measured before the comparison")
        return True

    def _lacks(self, each_s: float, left_s: float, enough: int = ENOUGH_PLACEMENTS) -> str | None:
        """Return why the time left is too short to measure ``enough`` placements; None if it is not.

        The lack is added to ``wanted``.
        """
        found = shortage(each_s, left_s, enough)
        if found is None:
            return None
        self.wanted.add(f"measure {enough} placements", self.options.budget_s + found[1])
        return found[0]

    def _tell_what_it_takes(self, event: Event, recorder: RecordingEvaluator) -> None:
        """Reserve more time for the comparison if measuring takes longer than the profile says.

        After the first event, which is mostly compilation, add a note if the budget is too short.
        """
        self.watcher.on_event(event, recorder)
        recorder.budget = replace(recorder.budget, seconds=min(self.left_s, self._for_search_s))
        if recorder.num_evaluations == 1:
            left_s = recorder.budget.seconds - recorder.elapsed_s
            lack = self._lacks(recorder.elapsed_s, left_s)
            if lack is not None:
                self.watcher.note(f"{lack}: few are measured")

    def _search(self, driver: Driver, placer: Placer[Any], *, is_short: bool) -> None:
        """Evaluate first plans, let the placer search to its end, and choose the finalists."""
        session, recorder = self.session, driver.recorder
        checkpoint = None if self.folder is None else self.folder.state
        hybrid: HybridEvaluator | None = None
        staged = self._staged()
        with contextlib.suppress(SearchStopped):
            if not is_short:
                targets = () if session.is_on_torch else automatic_targets(session.devices.placed, ())
                chosen = [session.automatic_ops(target) for target in targets if target.startswith("HETERO:")]
                homes = [session.devices.index.openvino_positions(ops) for ops in chosen]
                own = [session.model.of_units(self.problem, each) for each in homes]  # the least to end with
                given = [Plan(units) for units in own if units is not None]
                driver.guess([*staged, *given, *self._first_splits()])
            is_compiled = self._compile(placer, takes_order=recorder.takes_order)
            self.watcher.on_phase("searching")
            hybrid = self._hybrid(recorder, placer, is_short=is_short or not is_compiled)
            if hybrid is not None and (is_short or not is_compiled):
                hybrid.evaluate(contiguous(self.problem))
            if not is_compiled:
                self.watcher.note(UNCOMPILED)
            elif hybrid is None or is_short or self.options.resolved_reward != "hybrid" or placer.learns:
                driver.search(hybrid, checkpoint)
                _report(driver, self.watcher)
            else:
                search_in_slices(driver, self.problem, hybrid, self.watcher, checkpoint)
        count = self.options.finalists
        tried = [event.plan for event in recorder.best(len(recorder.events) + 1) if event.plan.is_split]
        self.finalists = tried[:count]
        if hybrid is not None:  # fill up the best measured splits with the best simulated ones
            self.finalists += hybrid.seen.promising(count - len(self.finalists))
            self.num_simulated, self.calibrated = hybrid.num_simulated, hybrid.costs
        if not self.finalists and self.costs is not None:  # measuring single devices took all of the time
            memory = MemoryCheck(self.problem.known_costs, self.problem.semantics)
            plans = [p for p in contiguous(self.problem) if p.is_split and not memory.overfull(p.placement).any()]
            values = model_values(self.problem, self.costs, plans)
            self.finalists = [plans[i] for i in np.argsort(values)[:count].tolist() if np.isfinite(values[i])]
            self.num_simulated += len(plans)
        self.finalists[1:1] = [plan for plan in staged if plan not in self.finalists]
        if self.options.executor == "auto" and self.profile is not None and (tried or self.finalists):
            plans = list(dict.fromkeys([*self.finalists, *tried]))
            values = model_values(self.problem, self.session.model.costs(self.profile, "hetero"), plans)
            self.under_hetero = plans[int(np.argmin(values))]

    def _staged(self) -> list[Plan]:
        """Return the plan of a pipeline, with as few boundaries as possible, if no device can hold the whole model.

        Memory forces a split then, and a search that simulates may find one with many more boundaries.
        """
        if self.problem.costs is None or self.problem.objective.name not in PipelinePlacer.objectives:
            return []
        first = next(stages(self.problem), None)  # has all on one device if one can hold it
        plan = None if first is None else Plan(first)
        return [plan] if plan is not None and plan.is_split and self.problem.is_legal(plan.placement) else []

    def _first_splits(self) -> list[Plan]:
        """Return splits to measure first: the best contiguous ones by simulation, with and without slow-downs.

        A split that was timed before the search and has not lost comes first.
        """
        split = self.kinds.split if self.kinds.is_near(SPLIT) else None
        early = None if split is None else self.session.model.of_units(self.problem, split)
        known = [] if early is None else [Plan(early)]
        if self.costs is None or self.profile is None:
            return known
        memory = MemoryCheck(self.problem.known_costs, self.problem.semantics)
        plans = [p for p in contiguous(self.problem) if p.is_split and not memory.overfull(p.placement).any()]
        free = self.session.model.costs(self.profile.without_contention, self.options.search_executor)
        values = [model_values(self.problem, costs, plans) for costs in (self.costs, free) if plans]
        return list(dict.fromkeys([*known, *(plans[int(np.argmin(each))] for each in values)]))

    def _compile(self, placer: Placer[Any], *, takes_order: bool) -> bool:
        """Compile the kernels of the search while there is time, and return whether all of them are compiled."""
        costs, problem = self.costs, self.problem
        if costs is None or self.watcher.should_stop():
            return True
        some = [Plan(problem.supported.argmax(axis=1))]
        with compiling_at_most(self._for_search_s - (time.monotonic() - self.begin_s - self._before_s)):
            return compile_search(
                placer,
                problem,
                lambda: model_values(problem, costs, some),
                steps=costs.steps,
                takes_order=takes_order,
                say=self.watcher.on_step,  # compiling is part of the budget
            ).is_complete

    def _hybrid(self, measured: RecordingEvaluator, placer: Placer[Any], *, is_short: bool) -> HybridEvaluator | None:
        """Return the evaluator that simulates and measures; None if every placement is to be measured."""
        if self.costs is None:
            return None
        schedule = HybridSchedule() if placer.learns else HybridSchedule.between_slices()
        if is_short or self.options.resolved_reward == "simulated":
            schedule = HybridSchedule.simulated()
        return HybridEvaluator(
            self.problem,
            self.costs,
            measured,
            schedule,
            SeenPlans() if self.folder is None else SeenPlans(self.folder.kept, self.folder.keep),
            on_round=self.watcher.on_step,
        )

    def _open(self, path: Path, *, resume: bool) -> RunFolder:
        """Create or resume the run folder, and write the graph and the profile of the model."""
        session, loaded, labels = self.session, self.session.loaded, self.session.loaded.labels
        source = loaded.name if loaded.is_workload or loaded.name is None else loaded.path.resolve()
        record = RunRecord(
            model=session.model_record,
            devices=list(session.devices.all),
            placed=list(self.problem.devices),
            defaults=dict(session.devices.defaults),
            num_units=self.problem.num_units,
            data_shapes=tuple(scenario.text for scenario in session.scenarios),
            labels=None if labels is None else {name: list(column) for name, column in vars(labels).items()},
            model_path=None if source is None else str(source),
            arguments=self.options.arguments,
            **self.options.record(),
        )
        folder = RunFolder.resume(path, record) if resume else RunFolder.create(path, record)
        session.until_end.enter_context(folder)
        folder.keep_model(session.graph, self.profile)
        return folder

    def _start(self) -> list[Plan]:
        """Return the placement to start with as a plan of units; nothing, with a note, if it is not a legal plan."""
        start, session, problem = self.options.start, self.session, self.problem
        if start is None:
            return []
        homes = session.devices.index.positions(op_devices(start, session.graph))
        placement = session.model.of_units(problem, homes)
        if placement is None:
            note = "the placement to start with is no plan of this search, and takes part in the comparison alone"
            self.watcher.note(note)
            return []
        priority = op_priority(start, session.graph)
        if priority is None or None in priority:
            return [Plan(placement)]
        return [Plan(placement, unit_priority(problem.units.partition.labels, np.asarray(priority)))]


def search_in_slices(
    driver: Driver,
    problem: Problem,
    hybrid: HybridEvaluator,
    watcher: Watcher,
    checkpoint: Checkpoint | None = None,
) -> None:
    """Search in slices; after each one measure the best plans, recalibrate costs, and continue from the best.

    The search ends when measuring finds nothing better. The first slice is short, as the costs are least certain then.
    Each later one lasts as long as all before it, but at most half of the time left.

    Raises SearchStopped at the end of the budget.
    """
    limits = driver.limits
    searched_s = 0.0
    for number in itertools.count():
        left_s = driver.recorder.budget.seconds - driver.recorder.elapsed_s
        slice_s = min(max(searched_s, FIRST_SLICE * limits.seconds), 0.5 * left_s)
        if slice_s < LEAST_SLICE * limits.seconds:
            raise SearchStopped
        begin_s = time.monotonic()
        known = tuple(hybrid.seen.best(NUM_STARTS)) if hybrid.seen.promising(1) else ()
        within = replace(
            limits, seconds=slice_s, seed=limits.seed + number, known=known or limits.known, is_again=bool(known)
        )
        driver.search(hybrid, checkpoint, problem, within)
        searched_s += time.monotonic() - begin_s
        hybrid.measure_promising()
        if hybrid.rounds.has_converged:
            _report(driver, watcher)
            return
        if problem.costs is not None:
            ops = None if problem.ops is None else hybrid.costs
            problem = replace(with_costs(problem, hybrid.costs.costs, problem.costs.memory_bytes), ops=ops)


def _report(driver: Driver, watcher: Watcher) -> None:
    """Add a note if the placer gave up. Raises SearchError if it did and nothing was measured."""
    if driver.note:
        if not driver.recorder.best():
            raise SearchError(driver.note)
        watcher.note(driver.note)
