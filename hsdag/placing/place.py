"""The main job: search for a placement of a model, compare the best with every alternative, and keep it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hsdag.ir.errors import OptionError, SearchError
from hsdag.placing.final import final_comparison
from hsdag.placing.limits import check_start, disallowed_devices, disallowed_start
from hsdag.placing.outcome import BY_LEVEL, START, UNDER_HETERO, Outcome, automatic_candidates
from hsdag.placing.result import PlaceResult, write_result
from hsdag.placing.searching import SearchSummary, search_placements
from hsdag.placing.session import Session, placed_candidate
from hsdag.placing.verifying import check_of
from hsdag.runtime.machine.devices import (
    PRECISION,
    PRECISION_OPTION,
    DeviceSet,
    make_core,
    resolve_devices,
    with_values,
)
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.latency import Protocol
from hsdag.runtime.measuring.messages import Call
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.problem.problem import Problem
from hsdag.scoring.recording import Event, RecordingEvaluator
from hsdag.search.driver import Watcher, budget_shortage
from hsdag.search.options import PlaceOptions
from hsdag.search.run_folder import RESULT
from hsdag.workers.pool import pool_of

FINAL_SHARE, FINAL_LEAST_S = 0.2, 8.0
"""Seconds for the final comparison: as a share of the budget, and at least."""

LEAST_CANDIDATE_LIMIT_S = 60.0
"""A candidate may take as long as the whole budget, and at least this, before it counts as hanging."""

INTERRUPTED_LIMIT_S = 8.0
"""Seconds for the final comparison after an interrupt."""


def comparison_s(budget_s: float, protocol: Protocol | None = None) -> float:
    """Seconds that the final comparison of a search takes at most, unless candidates are slow."""
    return min((protocol or Protocol()).limit_s, max(FINAL_SHARE * budget_s, FINAL_LEAST_S))


def run_place(
    source: Any,
    options: PlaceOptions,
    *,
    run_folder: Path | None = None,
    resume: bool = False,
    output: Path | None = None,
    watcher: Watcher | None = None,
) -> PlaceResult:
    """Place a model, a path or an ``ov.Model``, as ``hsdag.place`` does; with one device only nothing is searched.

    The placement is written to ``output``.
    """
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
        if options.executor == "cuda":
            left: Call[list[str]] = Call("left_to_openvino")
            types = session.client.call(left, options.candidate_limit_s)
            if types:
                watcher.note(
                    f"torch does not run {', '.join(types)}: OpenVINO evaluates these on the CPU, which is slow"
                )
        start = _start(session, options)
        if len(devices.placed) == 1:
            if resume:
                raise SearchError("on one device there is no search to resume; leave out --resume")
            profile = session.profile(on_step=watcher.on_phase) if options.memory_bytes else None
            return _conclude(session, session.problem(), options, None, start, watcher, profile, output)
        read_s = time.monotonic() - begin_s
        telling = replace(watcher, on_event=telling_what_it_takes(watcher, options.budget_s))
        with pool_of(options.workers, watcher.note) as pool:
            found = search_placements(
                session, options, run_folder=run_folder, resume=resume, watcher=telling, pool=pool
            )
        outcome = _conclude(session, found.problem, options, found, start, watcher, found.profile, output)
        spent_s = time.monotonic() - begin_s - found.compiling_s
        if spent_s > options.budget_s:
            watcher.note(
                f"more than the budget of {options.budget_s:.0f} s was spent: reading {read_s:.0f} s, profiling and "
                f"searching {found.search_s:.0f} s, comparing {spent_s - read_s - found.search_s:.0f} s"
            )
    return outcome


def _devices(options: PlaceOptions) -> DeviceSet:
    """The devices that the executor runs on. Raises DeviceError, OptionError for what it has no use for."""
    if options.executor != "cuda":
        found = resolve_devices(options.devices, options.partition_cpu)
        if options.precision:
            hinted, num = with_values(found.all, PRECISION_OPTION, PRECISION, options.precision), len(found.placed)
            found = DeviceSet(hinted[:num], hinted[num:])
            make_core(found.all)  # which refuses what a device does not have
        return found
    if options.precision:
        raise OptionError("--infer-precision is a hint for OpenVINO's devices, which --executor cuda does not use")
    if options.partition_cpu is not None:
        raise OptionError("--partition-cpu makes devices of OpenVINO's; with --executor cuda name A=cpu[threads=1],...")
    from hsdag.runtime.torch.devices import resolve_torch_devices  # only here: it loads torch

    return resolve_torch_devices(options.devices)


def telling_what_it_takes(watcher: Watcher, budget_s: float) -> Callable[[Event, RecordingEvaluator], None]:
    """What to do at events: after the first one, which is mostly compilation, say whether the budget is too short."""

    def on_event(event: Event, recorder: RecordingEvaluator) -> None:
        watcher.on_event(event, recorder)
        if recorder.num_evaluations == 1:
            shortage = budget_shortage(budget_s, recorder.elapsed_s, recorder.budget.seconds - recorder.elapsed_s)
            if shortage is not None:
                watcher.note(shortage)

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
    found: SearchSummary | None,
    start: Mapping[str, Candidate],
    watcher: Watcher,
    profile: ModelProfile | None,
    output: Path | None,
) -> PlaceResult:
    """Compare finalists with the baselines, and keep what came out. Nothing was searched with one device only."""
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
        baselines |= automatic_candidates(session)
    too_large = session.too_large(profile) if found is not None or options.memory_bytes else {}
    singles = {spec.name: Candidate(spec.openvino_name) for spec in session.devices.all if spec.name not in too_large}
    disallowed = disallowed_devices(session, options, profile)
    if options.start is not None and profile is not None:
        why = disallowed_start(session, options.start, profile)
        disallowed |= {} if why is None else dict.fromkeys(start, why)
    limit_s = comparison_s(options.budget_s, options.protocol)
    result = final_comparison(
        session.runner,
        placed,
        singles,
        baselines,
        replace(
            options.protocol,
            is_timed=options.objective.unit == "s",
            limit_s=min(limit_s, INTERRUPTED_LIMIT_S) if interrupted else limit_s,
        ),
        check_of(session, options.reference, options.max_difference),
        start=start,
        disallowed=disallowed,
        should_stop=lambda: watcher.should_stop() and not interrupted,
        on_step=watcher.on_step,
        rng=np.random.default_rng(options.seed),
    )
    outcome = Outcome(session, problem, options, found, plans, result, too_large).place_result(
        output, {**placed, **singles, **start, **baselines}[result.answer], interrupted=interrupted
    )
    if output is not None:
        outcome.placement.save(output)
    if found is not None and found.folder is not None:
        write_result(outcome, found.folder.path / RESULT)
    return outcome
