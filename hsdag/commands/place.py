"""The main job: search for a placement of a model, compare the best with every alternative, and keep it."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from hsdag.commands.outcome import PlaceResult, Row, Tally, speed_sentence
from hsdag.evaluators.recording import Event, RecordingEvaluator
from hsdag.ir.colocation import variable_of
from hsdag.ir.errors import SearchError
from hsdag.ir.placement import Placement, SpeedupRecord
from hsdag.runtime.measuring.candidate import Candidate, automatic_targets
from hsdag.runtime.measuring.latency import Protocol
from hsdag.runtime.platforms.devices import DeviceSet, resolve_devices
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem
from hsdag.search.driver import Watcher, budget_shortage
from hsdag.search.final import FinalResult, family_ratios, final_comparison
from hsdag.search.options import PlaceOptions
from hsdag.search.searching import Found, search_placements
from hsdag.search.session import Session
from hsdag.search.verifying import Check
from hsdag.version import __version__

FINAL_SHARE, FINAL_LEAST_S = 0.2, 8.0
"""Seconds for the final comparison, as a share of the budget, and at least."""

LEAST_CANDIDATE_LIMIT_S = 60.0
"""A candidate may take as long as the whole budget, and at least this, before it counts as hanging."""

UNDER_HETERO = "HETERO:"
"""What goes before the name of a placement that HETERO runs for comparison."""

INTERRUPTED_LIMIT_S = 8.0
"""Seconds for the final comparison after an interrupt."""


def run_place(
    source: Any,
    options: PlaceOptions,
    *,
    run_folder: Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> PlaceResult:
    """Place a model: a path, an ``ov.Model`` or a torch module.

    With ``run_folder`` every evaluation is kept there, and ``resume`` continues it. With one device only
    nothing is searched. The answer is never slower than the best single device beyond the 95% interval.

    Raises a HsdagError for what the user can put right.
    """
    watcher, begin_s = watcher or Watcher(), time.monotonic()
    options.check()
    watcher.on_phase("loading devices")
    devices = resolve_devices(options.devices, options.partition_cpu)
    watcher.on_phase("reading the model")
    with Session(
        source,
        devices,
        shapes=options.shapes,
        seed=options.seed,
        inputs=options.inputs,
        objective=options.objective,
        candidate_limit_s=min(options.candidate_limit_s, max(options.budget_s, LEAST_CANDIDATE_LIMIT_S)),
    ) as session:
        if len(devices.placed) == 1 or variable_of(session.graph) is not None:
            if resume:
                raise SearchError("on one device there is no search to resume; leave out --resume")
            return _conclude(session, session.problem(), options, None, watcher)
        read_s = time.monotonic() - begin_s
        telling = replace(watcher, on_event=telling_what_it_takes(watcher, options.budget_s))
        found = search_placements(session, options, run_folder=run_folder, resume=resume, watcher=telling)
        outcome = _conclude(session, found.problem, options, found, watcher)
        compare_s = time.monotonic() - begin_s - read_s - found.search_s
        if read_s + found.search_s + compare_s > options.budget_s:
            spent = (
                f"reading {read_s:.0f} s, profiling and searching {found.search_s:.0f} s, comparing {compare_s:.0f} s"
            )
            watcher.on_phase(f"more than the budget of {options.budget_s:.0f} s was spent: {spent}")
        return replace(outcome, search_s=found.search_s, tally=Tally.of(found.recorder.events, found.num_simulated))


def telling_what_it_takes(watcher: Watcher, budget_s: float) -> Callable[[Event, RecordingEvaluator], None]:
    """What to do at events: after the first one, which is mostly compilation, say whether the budget is too short."""

    def on_event(event: Event, recorder: RecordingEvaluator) -> None:
        watcher.on_event(event, recorder)
        if recorder.num_evaluations == 1:
            shortage = budget_shortage(budget_s, recorder.elapsed_s, recorder.budget.seconds - recorder.elapsed_s)
            if shortage is not None:
                watcher.on_phase(shortage)

    return on_event


def _conclude(
    session: Session,
    problem: Problem,
    options: PlaceOptions,
    found: Found | None,
    watcher: Watcher,
) -> PlaceResult:
    """Compare finalists with the baselines, and wrap up what came out. Nothing was searched with one device only."""
    watcher.on_phase("comparing the best with every baseline")
    interrupted = watcher.should_stop()
    finalists = found.finalists if found is not None else []
    names = {f"placement {rank}": plan for rank, plan in enumerate(finalists, start=1)}
    baselines = {**_under_hetero(session, problem, options, names), **_automatic(session.devices)}
    result = final_comparison(
        session.runner,
        {name: session.placed(problem, plan, options.executor) for name, plan in names.items()},
        {spec.name: Candidate.on_device(spec) for spec in session.devices.all},
        baselines if found is not None else {},
        _final_protocol(options, interrupted),
        Check.over(session.devices.all, options.reference, options.tolerance),
        should_stop=lambda: watcher.should_stop() and not interrupted,
        on_step=watcher.on_step,
        rng=np.random.default_rng(options.seed),
    )
    placement = _placement(session, problem, options, result, names)
    if found is None:
        sentence = _alone_sentence(session, result)
    else:
        sentence = _sentence(session.devices, result, _why_uncompared(options, found, result))
    if interrupted and not finalists:
        sentence = f"The search was interrupted before it measured a split; the placement is all on {result.answer}."
    return PlaceResult(
        placement=placement,
        rows=_rows(session, problem, result, names),
        failures=result.comparison.failures,
        verdict=result.verdicts[result.answer],
        sentence=sentence,
        run_folder=found.folder.path if found is not None and found.folder else None,
        interrupted=interrupted,
    )


def _under_hetero(
    session: Session, problem: Problem, options: PlaceOptions, names: Mapping[str, Plan]
) -> dict[str, Candidate]:
    """The finalists of another executor under HETERO, which shows what the executor gains."""
    if options.executor == "hetero":
        return {}
    return {f"{UNDER_HETERO}{name}": session.placed(problem, plan) for name, plan in names.items()}


def _final_protocol(options: PlaceOptions, interrupted: bool) -> Protocol:
    """The protocol, bounded by a share of the search's own time: a short search has a short comparison."""
    share_s = max(FINAL_SHARE * options.budget_s, FINAL_LEAST_S)
    protocol = replace(options.protocol, limit_s=min(options.protocol.limit_s, share_s))
    if not interrupted:
        return protocol
    return replace(protocol, limit_s=min(protocol.limit_s, INTERRUPTED_LIMIT_S))


def _automatic(devices: DeviceSet) -> dict[str, Candidate]:
    """OpenVINO's own choices by the names users know."""
    shown = {spec.openvino_name: spec.name for spec in devices.all}
    candidates = {}
    for target in automatic_targets(devices.placed, devices.rivals):
        mode, _, names = target.partition(":")
        label = ",".join(shown[name] for name in names.split(","))
        candidates[f"{mode}:{label}"] = Candidate(target)
    return candidates


def _placement(
    session: Session,
    problem: Problem,
    options: PlaceOptions,
    result: FinalResult,
    names: Mapping[str, Plan],
) -> Placement:
    ratio, versus = result.ratios[result.answer], result.best_single
    plan, ops = names.get(result.answer), session.graph.canonical_names
    ranks = None if plan is None or plan.order is None else problem.expand(plan.order).tolist()
    if plan is not None:
        devices = [problem.devices[d] for d in problem.expand(plan.placement).tolist()]
    else:
        devices = [result.answer] * session.graph.num_ops
    samples = result.comparison.samples
    return Placement(
        model=session.model_record,
        devices=session.device_records,
        affinity=dict(zip(ops, devices, strict=True)),
        names=dict(zip(ops, session.graph.op_names, strict=True)),
        method=options.method,
        seed=options.seed,
        objective=options.objective.name,
        executor=options.executor if result.answer in names else "hetero",
        latency=samples[result.answer].record(),
        baselines={name: samples[name].record() for name in samples if name not in names},
        speedup=SpeedupRecord(versus=versus, ratio=ratio.value, ci95=(ratio.low, ratio.high)) if versus else None,
        priority=None if ranks is None else dict(zip(ops, ranks, strict=True)),
        created_with={
            "hsdag": __version__,
            "openvino": ov.get_version(),
            "python": platform.python_version(),
            "preset": options.preset,
        },
    )


def _rows(session: Session, problem: Problem, result: FinalResult, names: Mapping[str, Plan]) -> tuple[Row, ...]:
    rows = []
    for name, samples in result.comparison.samples.items():
        record = samples.record()
        placed = names.get(name.removeprefix(UNDER_HETERO))
        if placed is not None:
            counts = np.bincount(problem.expand(placed.placement), minlength=problem.num_devices).tolist()
            ops = dict(zip(problem.devices, counts, strict=True))
        else:
            ops = _ops_of(session, name, result)
        row = Row(
            name=name,
            median_s=result.comparison.median_s(name),
            p95_s=record.p95_s,
            runs=record.runs,
            ratio=result.ratios[name],
            submodels=result.opened[name].submodels,
            ops=ops,
            is_answer=name == result.answer,
        )
        rows.append(row)
    return tuple(sorted(rows, key=lambda row: row.median_s))


def _ops_of(session: Session, name: str, result: FinalResult) -> dict[str, int]:
    """Ops per device of a baseline; empty where OpenVINO does not tell."""
    shown = {device.openvino_name: device.name for device in session.devices.all}
    mode, _, _ = name.partition(":")
    if mode == "HETERO":
        target = _automatic(session.devices)[name].target
        chosen = Counter(shown.get(device, device) for device in session.automatic_ops(target))
        return {device: count for device, count in chosen.items() if device}
    devices = result.opened[name].devices
    return {shown.get(devices[0], devices[0]): session.graph.num_ops} if len(devices) == 1 else {}


def _why_uncompared(options: PlaceOptions, found: Found, result: FinalResult) -> str | None:
    """Why no split placement has a figure in the comparison; None where one has."""
    names = [f"placement {rank}" for rank in range(1, len(found.finalists) + 1)]
    if any(name in result.comparison.samples for name in names):
        return None
    if names:
        reasons = "; ".join(dict.fromkeys(result.comparison.failures[name] for name in names))
        return f"no split placement was compared ({reasons})"
    split = Tally.of([event for event in found.recorder.events if event.plan.is_split])
    if split.tried:
        return split.words
    if found.search_s < options.budget_s:
        return "no split placement was tried"
    compile_s = max(opened.compile_s for opened in result.opened.values())
    return f"no split placement was tried: {budget_shortage(options.budget_s, compile_s, 0.0)}"


def _sentence(devices: DeviceSet, result: FinalResult, uncompared: str | None) -> str:
    samples = result.comparison.samples
    over = family_ratios(result.comparison, list(_automatic(devices)), result.answer)
    turned_down = {name: verdict.reason for name, verdict in result.verdicts.items() if verdict.reason is not None}
    twin = f"{UNDER_HETERO}{result.answer}"
    gain = result.comparison.ratio(result.answer, twin) if twin in samples else None
    ratio = result.ratios[result.answer]
    return speed_sentence(result.answer, result.best_single, ratio, over, turned_down, gain, uncompared)


def _alone_sentence(session: Session, result: FinalResult) -> str:
    only, name = session.devices.placed[0].name, result.answer
    figure = f"{name} takes {1e3 * result.comparison.median_s(name):.3g} ms"
    variable = variable_of(session.graph)
    if variable is not None:
        return f"The model keeps state between inferences (variable {variable!r}), which cannot be split; {figure}."
    advice = "name a second device with --devices, or share the CPU out with --partition-cpu 2"
    return f"{only} is the only device to place on, so nothing can be gained; {figure}; {advice}."
