"""The main job: search for a placement of a model, compare the best with every alternative, and keep it."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from hsdag.commands.bench import placed_candidate
from hsdag.commands.kept_result import keep_result
from hsdag.commands.outcome import NO_SINGLE, PlaceResult, Row, Tally, idle_sentence, speed_sentence, turned_down
from hsdag.evaluators.recording import Event, RecordingEvaluator
from hsdag.ir.errors import OptionError, SearchError
from hsdag.ir.held import held_bytes
from hsdag.ir.placement import Placement, SpeedupRecord
from hsdag.runtime.measuring.candidate import Candidate, automatic_targets
from hsdag.runtime.measuring.latency import Protocol
from hsdag.runtime.platforms.devices import DeviceSet, make_core, resolve_devices
from hsdag.runtime.platforms.precision import with_precision
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.profiling.profile import ModelProfile
from hsdag.search.barred import barred_devices, check_start, faster_but_barred, unheld
from hsdag.search.driver import Watcher, budget_shortage
from hsdag.search.final import FinalResult, family_ratios, final_comparison
from hsdag.search.options import PlaceOptions
from hsdag.search.searching import Found, search_placements
from hsdag.search.session import Session
from hsdag.search.verifying import check_of
from hsdag.version import __version__

FINAL_SHARE, FINAL_LEAST_S, INTERRUPTED_LIMIT_S = 0.2, 8.0, 8.0
"""Seconds for the final comparison: as a share of the budget, at least, and after an interrupt."""

LEAST_CANDIDATE_LIMIT_S = 60.0
"""A candidate may take as long as the whole budget, and at least this, before it counts as hanging."""

UNDER_HETERO, BY_LEVEL = "HETERO:", "BARRIER:"
"""What goes before the name of a placement that HETERO, or a bulk-synchronous loop, runs for comparison."""

START = "start"
"""The name of the placement that the search started with."""


def comparison_s(budget_s: float, protocol: Protocol | None = None) -> float:
    """Seconds that the final comparison of a search takes at most, unless candidates are slow."""
    return min((protocol or Protocol()).limit_s, max(FINAL_SHARE * budget_s, FINAL_LEAST_S))


def run_place(
    source: Any,
    options: PlaceOptions,
    *,
    run_folder: Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> PlaceResult:
    """Place a model, a path or an ``ov.Model``, as ``hsdag.place`` does; with one device only nothing is searched."""
    watcher, begin_s = watcher or Watcher(), time.monotonic()
    options.check()
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
        executor=options.executor,
    ) as session:
        start = _start(session, options)
        if len(devices.placed) == 1:
            if resume:
                raise SearchError("on one device there is no search to resume; leave out --resume")
            profile = session.profile(on_step=watcher.on_phase) if options.memory_bytes else None
            return _conclude(session, session.problem(), options, None, start, watcher, profile)
        read_s = time.monotonic() - begin_s
        telling = replace(watcher, on_event=telling_what_it_takes(watcher, options.budget_s))
        found = search_placements(session, options, run_folder=run_folder, resume=resume, watcher=telling)
        outcome = _conclude(session, found.problem, options, found, start, watcher, found.profile)
        spent_s = time.monotonic() - begin_s - found.compiling_s
        if spent_s > options.budget_s:
            watcher.on_phase(
                f"more than the budget of {options.budget_s:.0f} s was spent: reading {read_s:.0f} s, profiling and "
                f"searching {found.search_s:.0f} s, comparing {spent_s - read_s - found.search_s:.0f} s"
            )
    return outcome


def _devices(options: PlaceOptions) -> DeviceSet:
    """The devices that the executor runs on. Raises DeviceError, OptionError for what it has no use for."""
    if options.executor != "cuda":
        found = resolve_devices(options.devices, options.partition_cpu)
        if options.precision:
            found = with_precision(found, options.precision)
            make_core(found.all)  # which refuses what a device does not have
        return found
    if options.precision:
        raise OptionError("--infer-precision is a hint for OpenVINO's devices, which --executor cuda does not use")
    if options.partition_cpu is not None:
        raise OptionError("--partition-cpu makes devices of OpenVINO's; with --executor cuda name A=cpu[threads=1],...")
    from hsdag.runtime.torch_backend.specs import resolve_torch_devices  # only here: it loads torch

    return resolve_torch_devices(options.devices)


def telling_what_it_takes(watcher: Watcher, budget_s: float) -> Callable[[Event, RecordingEvaluator], None]:
    """What to do at events: after the first one, which is mostly compilation, say whether the budget is too short."""

    def on_event(event: Event, recorder: RecordingEvaluator) -> None:
        watcher.on_event(event, recorder)
        if recorder.num_evaluations == 1:
            shortage = budget_shortage(budget_s, recorder.elapsed_s, recorder.budget.seconds - recorder.elapsed_s)
            if shortage is not None:
                watcher.on_phase(shortage)

    return on_event


def _start(session: Session, options: PlaceOptions) -> dict[str, Candidate]:
    """The placement that the search starts with, by its name, as its file says it is run.

    Raises PlacementError where it is for another model, OptionError where it uses a device that is not searched over.
    """
    if options.start is None:
        return {}
    searched = {spec.name: spec for spec in session.devices.placed}
    for device in options.start.devices:
        if device.name in options.start.used_devices and searched.get(device.name) != device.spec():
            raise OptionError(
                f"the placement to start with uses device {device.name!r} as its file describes it, "
                "which is not searched over; name the same devices with --devices"
            )
    check_start(session, options.start)
    return {START: placed_candidate(session, START, options.start, options.start.executor)}


def _conclude(
    session: Session,
    problem: Problem,
    options: PlaceOptions,
    found: Found | None,
    start: Mapping[str, Candidate],
    watcher: Watcher,
    profile: ModelProfile | None,
) -> PlaceResult:
    """Compare finalists with the baselines, and wrap up what came out. Nothing was searched with one device only."""
    watcher.on_phase("comparing the best with every baseline")
    interrupted = watcher.should_stop()
    plans = {f"placement {rank}": plan for rank, plan in enumerate(found.finalists if found else (), start=1)}
    placed = {name: session.placed(problem, plan, options.executor) for name, plan in plans.items()}
    baselines: dict[str, Candidate] = {}
    if options.executor == "cuda":
        baselines = {f"{BY_LEVEL}{name}": replace(each, properties={"barrier": True}) for name, each in placed.items()}
    elif options.executor != "hetero":  # shows what the executor gains
        baselines = {f"{UNDER_HETERO}{name}": session.placed(problem, plan) for name, plan in plans.items()}
    if found is not None:
        baselines |= _automatic(session)
    too_large = session.too_large(profile) if found is not None or options.memory_bytes else {}
    singles = {spec.name: Candidate.on_device(spec) for spec in session.devices.all if spec.name not in too_large}
    limit_s = comparison_s(options.budget_s, options.protocol)
    result = final_comparison(
        session.runner,
        placed,
        singles,
        baselines,
        replace(options.protocol, limit_s=min(limit_s, INTERRUPTED_LIMIT_S) if interrupted else limit_s),
        check_of(session, options.reference, options.max_difference),
        start=start,
        barred=barred_devices(session, options, profile),
        should_stop=lambda: watcher.should_stop() and not interrupted,
        on_step=watcher.on_step,
        rng=np.random.default_rng(options.seed),
    )
    report = _Report(session, problem, options, found, plans, result, too_large)
    sentence, warnings = report.sentence(), report.warnings()
    if interrupted and not plans:
        sentence = f"The search was interrupted before it measured a split; the placement is all on {result.answer}."
    outcome = PlaceResult(
        placement=report.placement(),
        rows=report.rows(),
        failures={**{name: f"it was left out: {why}" for name, why in too_large.items()}, **result.comparison.failures},
        verdict=result.verdicts[result.answer],
        sentence=" ".join([sentence, *(f"Warning: {warning}." for warning in warnings)]),
        search_s=found.search_s if found is not None else 0.0,
        tally=Tally.of(found.recorder.events, found.num_simulated) if found is not None else Tally(),
        run_folder=found.folder.path if found is not None and found.folder else None,
        interrupted=interrupted,
        warnings=warnings,
        held_bytes=report.held_bytes(),
        contributions=found.contributions if found is not None else (),
        turned_down=turned_down(result, list(plans)) | faster_but_barred(result),
    )
    if found is not None and found.folder is not None:
        answer = {**placed, **singles, **start}[result.answer]
        keep_result(found, session, outcome, result, answer, options)
    return outcome


def _automatic(session: Session) -> dict[str, Candidate]:
    """OpenVINO's own choices by the names users know; none over devices that it does not have."""
    devices, candidates = session.devices, dict[str, Candidate]()
    if session.is_on_torch:
        return candidates
    shown = {spec.openvino_name: spec.name for spec in devices.all}
    for target in automatic_targets(devices.placed, devices.rivals):
        mode, _, names = target.partition(":")
        label = ",".join(shown[name] for name in names.split(","))
        candidates[f"{mode}:{label}"] = Candidate(target)
    return candidates


@dataclass(frozen=True, eq=False)
class _Report:
    """What a finished comparison says; ``plans`` are the finalists by name, ``too_large`` devices that are too small.

    Those are named with the reason.
    """

    session: Session
    problem: Problem
    options: PlaceOptions
    found: Found | None
    plans: Mapping[str, Plan]
    result: FinalResult
    too_large: Mapping[str, str]

    def placement(self) -> Placement:
        """The answer, as a placement file holds it."""
        options, result, graph = self.options, self.result, self.session.graph
        ratio, versus, ops = result.ratios[result.answer], result.best_single, graph.canonical_names
        devices = self._devices_of(result.answer) or [result.answer] * graph.num_ops
        ranks, method, seed = None, options.method, options.seed
        executor = options.executor if result.answer in self.plans or self.session.is_on_torch else "hetero"
        if result.answer in self.plans and (order := self.plans[result.answer].order) is not None:
            ranks = self.problem.expand(order).tolist()
        elif result.answer == START and options.start is not None:
            ranks, executor = options.start.priority_of(graph), options.start.executor
            method, seed = options.start.method, options.start.seed
        timed = result.comparison.samples if options.objective.unit == "s" else {}
        records = {name: samples.record() for name, samples in timed.items()}
        versions = {"hsdag": __version__, "openvino": ov.get_version(), "python": platform.python_version()}
        return Placement(
            model=self.session.model_record,
            devices=self.session.device_records,
            affinity=dict(zip(ops, devices, strict=True)),
            names=dict(zip(ops, graph.op_names, strict=True)),
            method=method,
            seed=seed,
            objective=options.objective.name,
            executor=executor,
            latency=records.get(result.answer),
            baselines={name: record for name, record in records.items() if name not in self.plans},
            speedup=SpeedupRecord(versus=versus, ratio=ratio.value, ci95=(ratio.low, ratio.high)) if versus else None,
            priority=ranks and {op: rank for op, rank in zip(ops, ranks, strict=True) if rank is not None},
            created_with={**versions, "preset": options.preset},
            data_shapes=tuple(scenario.text for scenario in self.session.scenarios) or None,
        )

    def _devices_of(self, name: str) -> list[str] | None:
        """[N] the device of every op of a placement; None for what is none."""
        if name in self.plans:
            return [self.problem.devices[d] for d in self.problem.expand(self.plans[name].placement).tolist()]
        if name == START and self.options.start is not None:
            return self.options.start.devices_of(self.session.graph)
        return None

    def rows(self) -> tuple[Row, ...]:
        """Every candidate that was measured, fastest first."""
        rows = []
        for name, samples in self.result.comparison.samples.items():
            record = samples.record()
            row = Row(
                name=name,
                median=self.result.comparison.median_s(name),
                p95=record.p95_s,
                runs=record.runs,
                ratio=self.result.ratios[name],
                submodels=self.result.opened[name].submodels,
                ops=self._ops_of(name),
                is_answer=name == self.result.answer,
            )
            rows.append(row)
        return tuple(sorted(rows, key=lambda row: row.median))

    def _ops_of(self, name: str) -> dict[str, int]:
        """Ops per device of a candidate; empty where OpenVINO does not tell."""
        placed = self._devices_of(name.removeprefix(UNDER_HETERO).removeprefix(BY_LEVEL))
        if placed is not None:
            return {device: placed.count(device) for device in self.problem.devices}
        shown = {device.openvino_name: device.name for device in self.session.devices.all}
        if name.startswith("HETERO:"):
            target = _automatic(self.session)[name].target
            chosen = Counter(shown.get(device, device) for device in self.session.automatic_ops(target))
            return {device: count for device, count in chosen.items() if device}
        devices = self.result.opened[name].devices
        return {shown.get(devices[0], devices[0]): self.session.graph.num_ops} if len(devices) == 1 else {}

    def sentence(self) -> str:
        """The answer in one sentence."""
        result, comparison = self.result, self.result.comparison
        if self.found is None:
            return self._alone()
        over = family_ratios(comparison, list(_automatic(self.session)), result.answer)
        twin = f"{BY_LEVEL if self.session.is_on_torch else UNDER_HETERO}{result.answer}"
        gain = comparison.ratio(result.answer, twin) if twin in comparison.samples else None
        uncompared = self._why_uncompared(self.found)
        ratio = result.ratios[result.answer]
        gained = comparison.ratio(result.answer, START) if START in comparison.samples else None
        return speed_sentence(
            *(result.answer, result.best_single, ratio, over, turned_down(result, list(self.plans)), gain, uncompared),
            over_start=gained,
            barred=faster_but_barred(result),
            unheld=unheld(self.options),
            no_single="No device has the memory for the whole model" if self.too_large else NO_SINGLE,
            twin="a bulk-synchronous run" if self.session.is_on_torch else "HETERO",
        )

    def warnings(self) -> tuple[str, ...]:
        """Why nothing was simulated, and which devices have nothing to do and why; sentences without a full stop."""
        unprofiled = self.found.unprofiled if self.found is not None else None
        return (*filter(None, [unprofiled]), *self._idle())

    def _idle(self) -> tuple[str, ...]:
        """Which devices of the list have nothing to do, and why; at most one sentence."""
        result, answer = self.result, self.result.answer
        used = set(self._devices_of(answer) or [answer])
        idle = [spec.name for spec in self.session.devices.placed if spec.name not in used]
        if not idle or len(self.session.devices.placed) == 1:
            return ()
        if answer in self.plans and self.too_large:
            reason = f"the model's weights and state fit into {' and '.join(sorted(used))}"
        elif answer in self.plans:
            reason = "no placement that was compared and uses every device is faster"
        elif set(idle) <= set(result.barred) and result.verdicts.keys() & set(idle):
            reason = result.barred[idle[0]]
        elif any(v.reason is not None for n, v in result.verdicts.items() if n not in (answer, *result.barred)):
            reason = "the faster placements were rejected"
        elif any(name in result.comparison.samples for name in self.plans):
            reason = f"no split placement was measured to be faster than {answer}"
        else:
            reason = "no split placement was compared"
        return (idle_sentence(idle, reason),)

    def held_bytes(self) -> dict[str, float]:
        """Weights and state by device, of the answer; empty where it is on a device that is not placed on."""
        index = {name: d for d, name in enumerate(self.problem.devices)}
        devices = self._devices_of(self.result.answer) or [self.result.answer] * self.session.graph.num_ops
        if not set(devices) <= set(index):
            return {}
        held = held_bytes(self.session.graph, np.array([index[name] for name in devices]), self.session.widens)
        return dict(zip(self.problem.devices, held.tolist(), strict=True))

    def _why_uncompared(self, found: Found) -> str | None:
        """Why no split placement has a figure in the comparison; None where one has."""
        comparison = self.result.comparison
        if any(name in comparison.samples for name in self.plans):
            return None
        if self.plans:
            reasons = "; ".join(dict.fromkeys(comparison.failures[name] for name in self.plans))
            return f"no split placement was compared ({reasons})"
        if found.ruled_out is not None:
            return found.ruled_out
        split = Tally.of([event for event in found.recorder.events if event.plan.is_split])
        if split.tried:
            return split.words
        if found.search_s < self.options.budget_s:
            return "no split placement was tried"
        compile_s = max(opened.compile_s for opened in self.result.opened.values())
        return f"no split placement was tried: {budget_shortage(self.options.budget_s, compile_s, 0.0)}"

    def _alone(self) -> str:
        """The sentence where nothing was searched."""
        only, name = self.session.devices.placed[0].name, self.result.answer
        figure = f"{name} takes {self.options.objective.text(self.result.comparison.median_s(name))}"
        advice = "name a second device with --devices, or share the CPU out with --partition-cpu 2"
        if self.session.is_on_torch:
            advice = "name a second device with --devices, such as A=cpu[threads=1],B=cpu[threads=1]"
        return f"{only} is the only device to place on, so nothing can be gained; {figure}; {advice}."
