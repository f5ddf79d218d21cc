"""The main job: search for a placement of a model, compare the best with every alternative, and keep it."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from hsdag import __version__
from hsdag.ir.errors import OptionError, SearchError
from hsdag.ir.files import check_writable, write_atomically
from hsdag.ir.graph.colocation import held_bytes
from hsdag.ir.host import command_line
from hsdag.ir.placement.divided import sharded_fields
from hsdag.ir.placement.placement import SPREAD_VERSION, Placement, SpeedupRecord
from hsdag.methods.sharding import Sharding
from hsdag.placing.answer import (
    NO_SINGLE,
    faster_but_disallowed,
    left_to_gain,
    nearest_of,
    speed_sentence,
    turned_down,
)
from hsdag.placing.final import FinalComparison, Pace, check_of, family_ratios, final_comparison
from hsdag.placing.limits import check_start, disallowed_devices, disallowed_start
from hsdag.placing.result import CostsRecord, PlaceResult, PlanRecord, Row, Tally, TimelineRecord
from hsdag.placing.run_folder import RESULT, RUN
from hsdag.placing.searching import Search
from hsdag.placing.session import Session, measured_timeline, placed_candidate
from hsdag.placing.shards import ops_by_device, sharded_candidate, weights_by_device
from hsdag.runtime.machine.devices import (
    DeviceSet,
    make_core,
    resolve_devices,
    with_precision,
)
from hsdag.runtime.machine.usable import BUSY, OtherPrograms, usable_cpus
from hsdag.runtime.measuring.caches import identity
from hsdag.runtime.measuring.messages import Call, Candidate, automatic_targets
from hsdag.runtime.objectives import LATENCY
from hsdag.runtime.problem.plan import Plan
from hsdag.search.driver import Member, Watcher, budget_shortage
from hsdag.search.options import LIMITS, PlaceOptions, flag
from hsdag.workers.pool import pool_of

UNDER_HETERO = "HETERO:"
"""What goes before the name of a placement that HETERO runs for comparison."""

NO_MEMORY = "No device has the memory for the whole model"

START = "start"
"""The name of the placement that the search started with."""

TIMELINE_RUNS = 5
"""Of a measured timeline of the answer."""

FAR_SLOWER = 2.0
"""Times the best device's value: one beyond it is compared only where there is time; after an interrupt all others."""

LEAST_CANDIDATE_LIMIT_S = 60.0
"""A candidate may take as long as the whole budget, and at least this, before it counts as hanging."""

INTERRUPTED_LIMIT_S = 4.0
"""Seconds for the final comparison after an interrupt."""


def run_place(
    source: Any,
    options: PlaceOptions,
    *,
    run_folder: Path | None = None,
    resume: bool = False,
    output: Path | None = None,
    watcher: Watcher | None = None,
    begin_s: float | None = None,
) -> PlaceResult:
    """Place a model, a path or an ``ov.Model``, as ``hsdag.place`` does; with one device only nothing is searched.

    The placement is written to ``output``. The budget runs from ``begin_s``, by default from now.
    """
    watcher, begin_s = watcher or Watcher(), time.monotonic() if begin_s is None else begin_s
    options.check()
    if output is not None:
        check_writable(output)
    if run_folder is not None:  # whose folders are made as well
        check_writable(next(each for each in (run_folder, *run_folder.parents) if each.parent.exists()), is_folder=True)
        if resume and not (run_folder / RUN).is_file():
            raise SearchError(f"nothing to resume: {run_folder} holds no search; start it without --resume")
    watcher.on_phase("loading devices")
    devices = _devices(options)
    watcher.on_phase("reading the model")
    with Session(
        source,
        devices,
        shapes=options.shapes,
        seed=options.seed,
        inputs=options.inputs,
        scenarios=options.scenarios,
        memory_bytes=options.memory_bytes,
        pins=options.pins,
        objective=options.objective,
        candidate_limit_s=min(options.candidate_limit_s, max(options.budget_s, LEAST_CANDIDATE_LIMIT_S)),
        executor=options.search_executor,
    ) as session:
        left: Call[list[str]] = Call("left_to_openvino")
        types = session.client.call(left, options.candidate_limit_s) if session.is_on_torch else ()
        if types:
            watcher.note(f"torch does not run {', '.join(types)}: OpenVINO evaluates these on the CPU, which is slow")
        start, search = _start(session, options), Search(session, options, watcher, begin_s)
        if len(devices.placed) == 1:
            if resume:
                raise SearchError("on one device there is no search to resume; leave out --resume")
            search.profile = session.profile(on_step=watcher.on_phase) if options.memory_bytes else None
            return _conclude(search, start, output)
        read_s = time.monotonic() - begin_s
        with pool_of(options.workers, watcher.note) as pool:
            search.run(run_folder, resume=resume, pool=pool)
        result = _conclude(search, start, output)
        spent_s = time.monotonic() - begin_s - search.compiling_s
        if spent_s > options.budget_s:
            watcher.note(
                f"more than the budget of {options.budget_s:.0f} s was spent: reading {read_s:.0f} s, profiling and "
                f"searching {search.search_s:.0f} s, comparing {spent_s - read_s - search.search_s:.0f} s"
            )
    return result


def _devices(options: PlaceOptions) -> DeviceSet:
    """The devices that the executor runs on. Raises DeviceError, OptionError for what it has no use for."""
    if options.executor != "cuda":
        found = resolve_devices(options.devices, options.partition_cpu)
        if options.precision:
            hinted, num = with_precision(found.all, options.precision), len(found.placed)
            found = DeviceSet(hinted[:num], hinted[num:])
            make_core(found.all)  # which refuses what a device does not have
        return found
    if options.precision:
        raise OptionError("--infer-precision is a hint for OpenVINO's devices, which --executor cuda does not use")
    if options.partition_cpu is not None:
        raise OptionError("--partition-cpu makes devices of OpenVINO's; with --executor cuda name A=cpu[threads=1],...")
    from hsdag.runtime.torch.devices import resolve_torch_devices  # only here: it loads torch

    return resolve_torch_devices(options.devices)


def _start(session: Session, options: PlaceOptions) -> dict[str, Candidate]:
    """The placement that the search starts with, by its name, as its file says it is run.

    Raises PlacementError where it is for another model, OptionError where it uses a device that is not searched over.
    """
    if options.start is None:
        return {}
    searched = {spec.name: spec for spec in session.devices.placed}
    for device in options.start.devices:
        if device.name in options.start.used_devices and searched.get(device.name) != device:
            raise OptionError(
                f"the placement to start with uses device {device.name!r} as its file describes it, "
                "which is not searched over; name the same devices with --devices"
            )
    check_start(session, options.start)
    return {START: placed_candidate(session, START, options.start, options.start.executor)}


def _conclude(search: Search, start: Mapping[str, Candidate], output: Path | None) -> PlaceResult:
    session, options, watcher, profile = search.session, search.options, search.watcher, search.profile
    watcher.on_phase("comparing the best with every baseline")
    interrupted, plans = watcher.should_stop(), plans_of(search)
    placed = proposed_candidates(search, plans)
    baselines: dict[str, Candidate] = {}
    if options.executor == "work-conserving":  # shows what the executor gains
        baselines = {f"{UNDER_HETERO}{name}": session.placed(search.problem, plan) for name, plan in plans.items()}
    if len(session.devices.placed) > 1:
        own = automatic_candidates(session)
        baselines = {n: each for n, each in own.items() if not is_one_device(session, each.target)} | baselines
    too_large = session.too_large(profile)
    singles = {spec.name: Candidate(spec.openvino_name) for spec in session.devices.all if spec.name not in too_large}
    disallowed = disallowed_devices(session, options, profile)
    if options.start is not None and profile is not None:
        why = disallowed_start(session, options.start, profile)
        disallowed |= {} if why is None else dict.fromkeys(start, why)
    left_s = options.budget_s + search.compiling_s - (time.monotonic() - search.begin_s)
    _, limit_s = search.pace.comparison_s(options.budget_s, options.protocol, left_s)
    others = OtherPrograms()
    final = final_comparison(
        session.runner,
        placed,
        singles,
        baselines,
        replace(options.protocol, limit_s=min(limit_s, INTERRUPTED_LIMIT_S) if interrupted else limit_s),
        check_of(session, options),
        start=start,
        disallowed=disallowed,
        slow=slow_devices(search, 1.0 if interrupted else FAR_SLOWER),
        wholes=[spec.name for spec in session.devices.rivals],
        should_stop=lambda: watcher.should_stop() and not interrupted,
        on_step=watcher.on_step,
        rng=np.random.default_rng(options.seed),
    )
    answer = {**placed, **singles, **start, **baselines}[final.answer]
    outcome = Outcome(search, final, plans, list(placed), others.share())
    result = outcome.result(output, answer, interrupted=interrupted)
    result = result.with_lines(outcome.dividing(result.model_path))
    if output is not None:
        result.placement.save(output)
    if search.folder is not None:
        write_atomically(search.folder.path / RESULT, (result.model_dump_json() + "\n").encode())
    return result


class Outcome:
    """What a search and its final comparison amount to; with one device nothing was searched.

    ``plans`` are those of the search by name, and ``proposed`` are the names of all that the search has proposed.
    ``others`` is the share of the processors that other programs took during the comparison.
    """

    def __init__(
        self,
        search: Search,
        final: FinalComparison,
        plans: Mapping[str, Plan],
        proposed: Sequence[str],
        others: float = 0.0,
    ) -> None:
        self.search, self.final, self.plans, self.proposed, self.others = search, final, plans, proposed, others
        self.session, self.options, self.problem = search.session, search.options, search.problem
        self.too_large = self.session.too_large(search.profile)

    def result(self, placement_file: Path | None, answer: Candidate, *, interrupted: bool) -> PlaceResult:
        """The result; where the search is kept on disk, with a measured run of the answer if there is time for one."""
        search, final, objective = self.search, self.final, self.options.objective
        subject, folder = self.session.subject, search.folder
        sentence, rows = self.sentence(), self.rows()
        if interrupted and not self.proposed:
            sentence = f"The search was interrupted before it measured a split; the placement is all on {final.answer}."
        too_large = {name: f"it was left out: {why}" for name, why in self.too_large.items()}
        hardware = {f"device {spec.name}": str(identity(spec).get("hardware", "")) for spec in self.session.devices.all}
        return PlaceResult(
            sentence=sentence,
            objective=objective.name,
            unit=objective.unit,
            value=next(row.median for row in rows if row.is_answer),
            placement=self.placement(),
            placement_file=None if placement_file is None else str(placement_file),
            rows=rows,
            failures={**too_large, **final.comparison.failures},
            turned_down=turned_down(final, self.proposed) | faster_but_disallowed(final),
            verdict=final.verdicts[final.answer],
            finalists={name: PlanRecord.of(plan, len(self.session.devices.all)) for name, plan in self.plans.items()},
            tally=Tally.of(search.events, search.num_simulated),
            members=tuple(Member.of(each) for each in search.contributions),
            search_s=search.search_s,
            budget_s=self.options.budget_s,
            interrupted=interrupted,
            warnings=self.warnings(),
            bound=self.bound(),
            weight_bytes=self.weight_bytes(),
            run_folder=None if folder is None else folder.path,
            model_path=None if subject.name is None or subject.is_workload else str(subject.path.resolve()),
            environment={**_versions(), "system": platform.platform(), "processors": str(usable_cpus()), **hardware},
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            samples={name: [list(each) for each in own.rounds] for name, own in final.comparison.samples.items()},
            costs=CostsRecord.of(search.calibrated),
            timeline=None if folder is None or interrupted else self.timeline(answer),
        )

    def placement(self) -> Placement:
        """The answer, as a placement file holds it."""
        options, final, graph = self.options, self.final, self.session.graph
        ratio, versus, ops = final.ratios[final.answer], final.best_single, graph.canonical_names
        priority, method, seed = None, options.method, options.seed
        is_own = final.answer in self.proposed and not final.answer.startswith(UNDER_HETERO)
        executor = options.search_executor if is_own or self.session.is_on_torch else "hetero"
        if final.answer in self.plans and (order := self.plans[final.answer].priority) is not None:
            priority = self.problem.expand(order).tolist()
        elif final.answer == START and options.start is not None:
            priority, executor = options.start.priority_of(graph), options.start.executor
            method, seed = options.start.method, options.start.seed
        timed = final.comparison.samples if options.objective.unit == "s" else {}
        records = {name: samples.record() for name, samples in timed.items()}
        fields: dict[str, Any] = {"affinity": dict(zip(ops, self._answer_devices, strict=True))}
        if (sharding := self.search.shardings.get(final.answer)) is not None:
            fields = sharded_fields(sharding.regions, sharding.devices, graph, self.problem.devices)
            method = "shards"
        elif (copies := self.search.copies.get(final.answer)) is not None:
            copied = copies.records(self.problem, final.opened[final.answer].requests)
            fields, method = {"version": SPREAD_VERSION, "affinity": {}, "copies": copied}, "copies"
        return Placement(
            **fields,
            model=self.session.model_record,
            devices=list(self.session.devices.all),
            names=dict(zip(ops, graph.op_names, strict=True)),
            method=method,
            seed=seed,
            objective=options.objective.name,
            executor=executor,
            latency=records.get(final.answer),
            baselines={name: record for name, record in records.items() if name not in self.proposed},
            speedup=SpeedupRecord(versus=versus, ratio=ratio.value, ci95=(ratio.low, ratio.high)) if versus else None,
            priority=priority and {op: rank for op, rank in zip(ops, priority, strict=True) if rank is not None},
            created_with={**_versions(), "preset": options.preset},
            data_shapes=tuple(scenario.text for scenario in self.session.scenarios) or None,
        )

    def _devices_of(self, name: str) -> list[str] | None:
        """[N] the device of every op of a placement; None for what is none."""
        name = name.removeprefix(UNDER_HETERO)
        if name in self.plans:
            return [self.problem.devices[d] for d in self.problem.expand(self.plans[name].placement).tolist()]
        if name == START and self.options.start is not None:
            return self.options.start.devices_of(self.session.graph)
        return None

    @property
    def _answer_devices(self) -> list[str]:
        return self._devices_of(self.final.answer) or [self.final.answer] * self.session.graph.num_ops

    def rows(self) -> tuple[Row, ...]:
        """Every candidate that was measured, fastest first."""
        rows = []
        for name, samples in self.final.comparison.samples.items():
            record, ratio = samples.record(), self.final.ratios[name]
            row = Row(
                name=name,
                median=self.final.comparison.median(name),
                p95=record.p95_s,
                runs=record.runs,
                ratio=ratio.value,
                ci95=(ratio.low, ratio.high) if ratio.is_known else (None, None),
                rounds=ratio.num_rounds,
                submodels=self.final.opened[name].submodels,
                ops=self._ops_of(name),
                is_answer=name == self.final.answer,
            )
            rows.append(row)
        return tuple(sorted(rows, key=lambda row: -row.ratio))

    def _ops_of(self, name: str) -> dict[str, int]:
        """Ops per device of a candidate; empty where OpenVINO does not tell."""
        if name in self.search.shardings:
            return ops_by_device(self.session, self.search.shardings[name])
        if name in self.search.copies:
            copies = self.search.copies[name]
            held = np.bincount(np.concatenate(copies.homes(self.problem)), minlength=len(self.problem.devices))
            found = dict(zip(self.problem.devices, held.tolist(), strict=True))
            shards = ops_by_device(self.session, copies.pipeline) if isinstance(copies.pipeline, Sharding) else {}
            return {device: count + shards.get(device, 0) for device, count in found.items()}
        placed = self._devices_of(name)
        if placed is not None:
            return {device: placed.count(device) for device in self.problem.devices}
        shown = {device.openvino_name: device.name for device in self.session.devices.all}
        if name.startswith("HETERO:"):
            target = automatic_candidates(self.session)[name].target
            chosen = Counter(shown.get(device, device) for device in self.session.automatic_ops(target))
            return {device: count for device, count in chosen.items() if device}
        devices = self.final.opened[name].devices
        return {shown.get(devices[0], devices[0]): self.session.graph.num_ops} if len(devices) == 1 else {}

    def sentence(self) -> str:
        """The answer in one sentence."""
        final, session, comparison = self.final, self.session, self.final.comparison
        if len(session.devices.placed) == 1:
            figure = f"{final.answer} takes {self.options.objective.text(comparison.median(final.answer))}"
            more = ", such as A=cpu[threads=1],B=cpu[threads=1]" if session.is_on_torch else ", or divide the CPU"
            only, hint = session.devices.placed[0].name, f"name a second device with --devices{more}"
            return f"{only} is the only device to place on, so nothing can be gained; {figure}; {hint}."
        twin, words = self._other_executor()
        return speed_sentence(
            final.answer,
            final.best_single,
            final.ratios[final.answer],
            family_ratios(comparison, list(automatic_candidates(session)), final.answer),
            turned_down(final, self.proposed),
            comparison.ratio(final.answer, twin) if twin in comparison.samples else None,
            self._why_uncompared(),
            over_start=comparison.ratio(final.answer, START) if START in comparison.samples else None,
            disallowed=faster_but_disallowed(final),
            nearest=nearest_of(final, self.proposed),
            ignored=ignored(self.options),
            no_single=NO_MEMORY if len(self.too_large) == len(session.devices.all) else NO_SINGLE,
            twin=words,
            takes=self.options.objective.takes,
            budget_s=self.options.budget_s,
        )

    def _other_executor(self) -> tuple[str, tuple[str, str]]:
        """The candidate that another executor runs, which the answer is compared with, and the words for it."""
        answer, compared = self.final.answer, self.final.comparison
        if answer.startswith(UNDER_HETERO) and answer in self.proposed:
            others = [n for n in self.proposed if n in compared.samples and not n.startswith(UNDER_HETERO)]
            return compared.fastest(others) if others else answer, ("hsdag's own executor", "with its best placement")
        if self.search.under_hetero is None or self.plans.get(answer) == self.search.under_hetero:
            return f"{UNDER_HETERO}{answer}", ("HETERO", "with the same placement")
        best = next(n for n in self.proposed if n.startswith(UNDER_HETERO))
        return best if answer in self.proposed else "", ("HETERO", "with the placement that suits it best")

    def warnings(self) -> tuple[str, ...]:
        """What the answer leaves open: sentences without a full stop."""
        peaks = "peaks of memory are simulated, with the sizes of the profile"
        counted = peaks if self.options.objective.counts_memory else None
        objection, name = self.final.verdicts[self.final.answer].reason, self.final.answer
        judged = None if objection is None else f"{name}: {objection}"
        failed = Tally.of(self.search.events).num_failed if self.session.scenarios else 0
        sizes = (
            f"{failed} placements failed with inputs that stay dynamic; where all data have one size, --shape fixes it"
        )
        busy = f"other programs took {self.others:.0%} of the processors during the comparison: repeat it without them"
        said = counted, judged, sizes if failed else None, busy if self.others >= BUSY else None
        return tuple(filter(None, [self.search.unprofiled, *said]))

    def bound(self) -> str:
        """What could be gained at most, where latency counts and the model was profiled."""
        profile, samples = self.search.profile, self.final.comparison.samples
        if profile is None or self.options.objective is not LATENCY:
            return ""
        median_s = {name: self.final.comparison.median(name) for name in samples}
        in_turn = self.options.executor == "hetero"
        return left_to_gain(profile, median_s, median_s[self.final.answer], in_turn=in_turn)

    def dividing(self, model_path: str | None) -> str | None:
        """The command that divides the CPU, where it is the only device."""
        words, names = self.options.arguments, [spec.openvino_name for spec in self.session.devices.placed]
        if names != ["CPU"] or words is None or model_path is None or self.session.is_on_torch:
            return None
        return command_line(["hsdag", "place", model_path, *words, "--partition-cpu", "2"])

    def weight_bytes(self) -> dict[str, float]:
        """Weights and state by device, of the answer; empty where it is on a device that is not placed on."""
        if self.final.answer in self.search.shardings and self.search.proposals is not None:
            divided = self.search.proposals.sharded(self.search.shardings[self.final.answer])
            return dict(weights_by_device(self.session, divided))
        if self.final.answer in self.search.copies:
            copies = self.search.copies[self.final.answer]
            each = [held_bytes(self.session.graph, homes, self.session.widens) for homes in copies.homes(self.problem)]
            if isinstance(copies.pipeline, Sharding) and self.search.proposals is not None:
                shards = self.search.proposals.sharded(copies.pipeline)
                each.append(np.array([*weights_by_device(self.session, shards).values()]))
            return dict(zip(self.problem.devices, np.sum(each, axis=0).tolist(), strict=True))
        index, devices = {name: d for d, name in enumerate(self.problem.devices)}, self._answer_devices
        if not set(devices) <= set(index):
            return {}
        held = held_bytes(self.session.graph, np.array([index[name] for name in devices]), self.session.widens)
        return dict(zip(self.problem.devices, held.tolist(), strict=True))

    def _why_uncompared(self) -> str | None:
        """Why no split placement has a figure in the comparison; None where one has."""
        comparison, search = self.final.comparison, self.search
        if any(name in comparison.samples for name in self.proposed):
            return None
        failed = [comparison.failures[name] for name in self.proposed if name in comparison.failures]
        if failed:
            reasons = "; ".join(dict.fromkeys(failed))
            return f"no split placement was compared ({reasons})"
        split = Tally.of([event for event in search.events if event.plan.is_split])
        if split.tried:
            return split.words
        compile_s = max(opened.compile_s for opened in self.final.opened.values())
        shortage = budget_shortage(self.options.budget_s, compile_s, search.left_s)
        tied = self.problem.num_units < 2
        why = "all ops have to stay together" if tied else f"the method {self.options.method} proposed none"
        reason = f", since {why}" if shortage is None or tied else f": {shortage}"
        return f"no split placement was tried{reason}"

    def timeline(self, answer: Candidate) -> TimelineRecord | None:
        """A measured run of the answer; None where that takes too long, or fails."""
        taken_s = self.final.opened[self.final.answer].compile_s
        run_s = self.final.comparison.median(self.final.answer)
        if not Pace(taken_s, run_s, taken_s).timeline_s(self.options.budget_s):
            return None
        with suppress(SearchError):
            return TimelineRecord.of(measured_timeline(self.session, answer, TIMELINE_RUNS))
        return None


def slow_devices(search: Search, times: float) -> set[str]:
    """Devices on which the search measured the model to take more than ``times`` as long as on another one."""
    alone = [each for each in search.events if each.score.failure is None and not each.plan.is_split]
    most_s = times * min((each.score.value for each in alone), default=np.inf)
    return {search.problem.devices[each.plan.placement[0]] for each in alone if each.score.value > most_s}


def plans_of(search: Search) -> dict[str, Plan]:
    """The finalists of a search by the names that they have in the comparison."""
    others = [] if search.under_hetero is None or search.under_hetero in search.finalists else [search.under_hetero]
    return {f"placement {rank}": plan for rank, plan in enumerate([*search.finalists, *others], start=1)}


def proposed_candidates(search: Search, plans: Mapping[str, Plan]) -> dict[str, Candidate]:
    """What a search proposes by the names in the comparison, the most promising first."""
    session, executor = search.session, search.options.search_executor
    own = {n: session.placed(search.problem, plan, executor) for n, plan in plans.items() if plan in search.finalists}
    under_hetero = {
        f"{UNDER_HETERO}{name}": session.placed(search.problem, plan)
        for name, plan in plans.items()
        if plan == search.under_hetero
    }
    placed = dict([*list(own.items())[:1], *under_hetero.items(), *list(own.items())[1:]])
    divided = {name: sharded_candidate(session, each) for name, each in search.shardings.items()}
    divided |= {name: copies.candidate(session, search.problem) for name, copies in search.copies.items()}
    ran = [each for each in search.events if each.score.failure is None]
    alone, split = ([e.score.value for e in ran if e.plan.is_split is kind] for kind in (False, True))
    of_profile = 1.0  # devices may be slower now than they were when the model was profiled, or faster
    if search.proposals is not None and alone:
        of_profile = min(alone) / search.proposals.whole_s
    predicted_s = [of_profile * each.predicted_s for each in search.shardings.values()]
    predicted_s += [each.period_s for each in search.copies.values()]
    is_first = min(predicted_s, default=np.inf) < min(split, default=np.inf)
    return {**divided, **placed} if is_first else {**placed, **divided}


def _versions() -> dict[str, str]:
    return {"hsdag": __version__, "openvino": ov.get_version(), "python": platform.python_version()}


def ignored(options: PlaceOptions) -> str | None:
    """What OpenVINO's own choices are made without."""
    given = [flag(name) for name in LIMITS if getattr(options, name) not in ((), {}, None)]
    return f"without {' and '.join(given)}" if given else None


def automatic_candidates(session: Session) -> dict[str, Candidate]:
    """OpenVINO's own choices by the names users know; none over devices that it does not have."""
    devices, candidates = session.devices, dict[str, Candidate]()
    if session.is_on_torch:
        return candidates
    shown, is_steady = {spec.openvino_name: spec.name for spec in devices.all}, session.model.objective.is_steady
    for target in automatic_targets(devices.placed, devices.rivals):
        mode, _, names = target.partition(":")
        label = ",".join(shown[name] for name in names.split(","))
        cumulative = {"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"} if is_steady and mode == "AUTO" else {}
        candidates[f"{mode}:{label}"] = Candidate(target, properties=cumulative)
    return candidates


def is_one_device(session: Session, target: str) -> bool:
    """Whether OpenVINO's own choice for a target is a device alone, which is compared anyway."""
    mode, _, names = target.partition(":")
    return len(set(session.automatic_ops(target))) == 1 if mode == "HETERO" else "," not in names
