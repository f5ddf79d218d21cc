"""The command ``hsdag place``: searches for a placement, compares the best with every alternative, and saves it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hsdag.base.errors import HsdagError, OptionError, SearchError, option
from hsdag.base.files import check_writable, write_atomically
from hsdag.base.host import command_line
from hsdag.base.kernels import compiling_at_most
from hsdag.commands.place.comparison import START, UNDER_HETERO, Candidates, TimeLimits, final_comparison
from hsdag.commands.place.devices import devices_of, settled
from hsdag.commands.place.kinds import COPIES, SHARDS, Kinds, timed_kinds
from hsdag.commands.place.limits import check_start, disallowed_devices, disallowed_start, too_large
from hsdag.commands.place.loaded_model import ModelInputs
from hsdag.commands.place.outcome import Outcome, with_lines
from hsdag.commands.place.result import PlaceResult
from hsdag.commands.place.run_folder import RESULT, RUN
from hsdag.commands.place.search import Search
from hsdag.commands.place.session import Session, placed_candidate
from hsdag.commands.place.shards import sharded_candidate
from hsdag.commands.place.tuning import forget_beaten, tune
from hsdag.commands.place.verifying import check_of
from hsdag.commands.place.wanted import Wanted
from hsdag.ir.device import DeviceIndex
from hsdag.ir.placement.placement import Placement
from hsdag.runtime.machine.devices import DeviceSet
from hsdag.runtime.measuring.measurer import TorchMeasurer
from hsdag.runtime.measuring.messages import Candidate, ask, automatic_targets, plain_targets
from hsdag.search.driver import Watcher
from hsdag.search.options import PlaceOptions
from hsdag.workers.option import pool_of

FAR_SLOWER = 2.0
"""Ratio to the best device's value above which a device is compared only if there is time."""

LEAST_CANDIDATE_LIMIT_S = 60.0
"""Least seconds after which a candidate counts as hanging; with a larger budget, that budget."""

KERNELS_SHARE = 0.15
"""Share of the budget for compiling kernels, in this process and in the worker each; the rest is interpreted."""

LATE = 0.6
"""Share of the final comparison's time; with less time left, only what matters most is compared."""

INTERRUPTED_LIMIT_S = 2.0
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
    """Place a model as ``hsdag.place`` does, and write the placement to ``output``; one device needs no search.

    The budget runs from ``begin_s``, by ``time.monotonic``, and by default from now.
    """
    watcher = watcher or Watcher()
    begin_s = time.monotonic() if begin_s is None else begin_s
    options.check()
    _check_paths(run_folder, output, resume=resume)
    watcher.on_phase("loading devices")
    devices, fixed = settled(devices_of(options), options.start, run_folder if resume else None)
    if resume and len(devices.placed) == 1:
        raise SearchError(f"on one device there is no search to resume; leave out {option('resume')}")
    watcher.on_phase("reading the model")
    with _session(source, devices, options) as session, compiling_at_most(KERNELS_SHARE * options.budget_s):
        left = ask(TorchMeasurer.left_to_openvino)
        types = session.client.call(left, options.candidate_limit_s) if session.is_on_torch else ()
        if types:
            watcher.note(f"torch does not run {', '.join(types)}: OpenVINO evaluates these on the CPU, which is slow")
        start = _start(session, options)
        session.client.should_abandon, session.client.on_wait = watcher.should_stop, watcher.on_phase
        read_s = time.monotonic() - begin_s
        kinds = Kinds() if resume else timed_kinds(session, options, watcher, begin_s)
        wanted = Wanted(options.budget_s)
        tuned = tune(session, options, watcher, fixed, wanted)
        session.client.should_abandon = lambda: False
        search = Search(session, options, watcher, begin_s, tuned=tuned, kinds=kinds, wanted=wanted)
        if len(devices.placed) == 1:
            if options.memory_bytes:
                search.time.profile = session.profile(on_step=watcher.on_phase)
            return _conclude(search, start, output)
        tried_s = time.monotonic() - begin_s - read_s
        with pool_of(options.workers, watcher.note) as pool:
            search.run(run_folder, resume=resume, pool=pool)
        result = _conclude(search, start, output)
        spent_s = time.monotonic() - begin_s
        if spent_s > options.budget_s:
            watcher.note(
                f"more than the budget of {options.budget_s:.0f} s was spent: reading {read_s:.0f} s, timing kinds and "
                f"trying settings {tried_s:.0f} s, profiling and searching {search.course.seconds:.0f} s, comparing "
                f"{spent_s - read_s - tried_s - search.course.seconds:.0f} s"
            )
    return result


def _check_paths(run_folder: Path | None, output: Path | None, *, resume: bool) -> None:
    """Raise OutputError if the folder or the placement cannot be written, SearchError if there is nothing to resume."""
    if output is not None:
        check_writable(output)
    if run_folder is not None:  # missing parent folders are made as well
        folders = (run_folder, *run_folder.parents)
        check_writable(next(folder for folder in folders if folder.parent.exists()), is_folder=True)
        if resume and not (run_folder / RUN).is_file():
            raise SearchError(f"nothing to resume: {run_folder} holds no search; start it without {option('resume')}")


def _session(source: Any, devices: DeviceSet, options: PlaceOptions) -> Session:
    """Return the session of a search."""
    return Session(
        source,
        devices,
        ModelInputs(options.shapes, None, options.scenarios, options.inputs, options.seed),
        objective=options.objective,
        executor=options.search_executor,
        memory_bytes=options.memory_bytes,
        pins=options.pins,
        candidate_limit_s=min(options.candidate_limit_s, max(options.budget_s, LEAST_CANDIDATE_LIMIT_S)),
        kernels_s=KERNELS_SHARE * options.budget_s,
    )


def _start(session: Session, options: PlaceOptions) -> dict[str, Candidate]:
    """Return the candidate of the placement to start with, by name, run as its file says.

    Raises PlacementError if it is for another model, OptionError if it uses a device that is not searched over.
    """
    if options.start is None:
        return {}
    searched = {spec.name: spec for spec in session.devices.placed}
    for device in options.start.devices:
        if device.name in options.start.used_devices and searched.get(device.name) != device:
            raise OptionError(
                f"the placement to start with uses device {device.name!r} as its file describes it, "
                f"which is not searched over; name the same devices with {option('devices')}"
            )
    check_start(session, options.start)
    return {START: placed_candidate(session, START, options.start, options.start.executor)}


def _conclude(search: Search, start: Mapping[str, Candidate], output: Path | None) -> PlaceResult:
    """Compare the candidates, save the placement of the answer, and return the result."""
    session, options, watcher = search.session, search.options, search.watcher
    watcher.on_phase("comparing the best with every baseline")
    interrupted = watcher.should_stop()
    candidates = _candidates(search, start, interrupted=interrupted)
    left_s = options.budget_s - (time.monotonic() - search.time.begin_s)
    pace = search.time.pace
    whole_s, limit_s = pace.comparison_s(options.budget_s, options.protocol, left_s)
    is_late = left_s < LATE * pace.comparison_s(options.budget_s, options.protocol)[0]
    watcher.on_left(INTERRUPTED_LIMIT_S if interrupted else whole_s)
    final = final_comparison(
        session.runner,
        replace(candidates, slow=slow_devices(search, 1.0 if interrupted or is_late else FAR_SLOWER)),
        TimeLimits(
            replace(options.protocol, limit_s=min(limit_s, INTERRUPTED_LIMIT_S) if interrupted else limit_s),
            end_s=search.time.begin_s + options.budget_s,
            after_s=pace.check_s,
            opening_s=pace.opening_s,
        ),
        check_of(session, options),
        rng=np.random.default_rng(options.seed),
        watcher=watcher,
    )
    forget_beaten(search.tuned, final)
    result = Outcome(search, final, interrupted).result(output)
    result = with_lines(result, _dividing(search, result.model_path))
    if output is not None:
        if (kept := keep_better(output, result.placement)) is not None:
            watcher.note(kept)
        result.placement.save(output)
    if search.folder is not None:
        write_atomically(search.folder.path / RESULT, (result.model_dump_json() + "\n").encode())
    return result


def _candidates(search: Search, start: Mapping[str, Candidate], *, interrupted: bool) -> Candidates:
    """Return the candidates to compare; after an interrupt, of the proposed ones only those that were timed before."""
    session, options, profile = search.session, search.options, search.profile
    placed = proposed_candidates(search)
    if interrupted:
        placed = {name: candidate for name, candidate in placed.items() if was_timed(search, name)}
    baselines: dict[str, Candidate] = {}
    if options.executor == "work-conserving":  # shows what the executor gains
        baselines = {
            f"{UNDER_HETERO}{name}": session.placed(search.problem, plan) for name, plan in search.plans.items()
        }
    if len(session.devices.placed) > 1:
        automatic = automatic_candidates(session).items()
        baselines = {name: c for name, c in automatic if not is_one_device(session, c.target)} | baselines
    ruled_out = too_large(session, profile)
    disallowed = disallowed_devices(session, options, profile)
    if options.start is not None and profile is not None:
        why = disallowed_start(session, options.start, profile)
        disallowed |= {} if why is None else dict.fromkeys(start, why)
    return Candidates(
        finalists=placed,
        singles={s.name: Candidate(s.openvino_name) for s in session.devices.all if s.name not in ruled_out},
        automatic=baselines,
        start=start,
        disallowed=disallowed,
        whole_devices=session.devices.whole_devices,
        defaults=session.devices.defaults,
    )


def keep_better(output: Path, placement: Placement) -> str | None:
    """Rename the placement in ``output`` if an earlier search of the same model measured it to be faster.

    Returns a note about that; None if nothing was renamed.
    """
    try:
        before = Placement.load(output)
    except HsdagError:
        return None
    is_alike = (before.model.fingerprint, before.objective) == (placement.model.fingerprint, placement.objective)
    if not is_alike or before.latency is None or placement.latency is None:
        return None
    if before.latency.median_s >= placement.latency.median_s:
        return None
    names = (output.with_suffix(f".{number}{output.suffix}") for number in itertools.count(1))
    kept = next(name for name in names if not name.exists())
    output.rename(kept)
    return (
        f"{output} held a placement that took {1e3 * before.latency.median_s:.4g} ms in its search, and this one takes "
        f"{1e3 * placement.latency.median_s:.4g} ms: it is kept as {kept}; {option('start')} {kept} compares the two"
    )


def _dividing(search: Search, model_path: str | None) -> str | None:
    """Return the command that partitions the CPU if it is the only device, else None."""
    names = search.session.devices.index.openvino_names
    if names != ("CPU",) or search.options.arguments is None or model_path is None or search.session.is_on_torch:
        return None
    return command_line(["hsdag", "place", model_path, *search.options.arguments, "--partition-cpu", "2"])


def slow_devices(search: Search, times: float) -> set[str]:
    """Return the devices on which the model measured more than ``times`` the value of the best device.

    If the search measured no device, the times from before the search count.
    """
    alone = [event for event in search.course.events if event.score.failure is None and not event.plan.is_split]
    if not alone:
        return {spec.name for spec in search.session.devices.all if search.kinds.times.get(spec.name, 0.0) > times}
    most = times * min(event.score.value for event in alone)
    return {search.problem.devices[event.plan.placement[0]] for event in alone if event.score.value > most}


def proposed_candidates(search: Search) -> dict[str, Candidate]:
    """Return the candidates that a search proposes, by name, the most promising first."""
    session, executor, plans = search.session, search.options.search_executor, search.plans
    finalists = [
        (name, session.placed(search.problem, plan, executor))
        for name, plan in plans.items()
        if plan in search.finalists
    ]
    under_hetero = {
        f"{UNDER_HETERO}{name}": session.placed(search.problem, plan)
        for name, plan in plans.items()
        if plan == search.under_hetero
    }
    placed = dict([*finalists[:1], *under_hetero.items(), *finalists[1:]])
    divided = {name: sharded_candidate(session, sharding) for name, sharding in search.shardings.items()}
    divided |= {name: copies.candidate(session, search.problem) for name, copies in search.copies.items()}
    ran = [event for event in search.course.events if event.score.failure is None]
    alone, split = ([e.score.value for e in ran if e.plan.is_split is kind] for kind in (False, True))
    # devices may be slower or faster now than when the model was profiled
    of_profile = min(alone) / search.proposals.whole_s if search.proposals is not None and alone else 1.0
    predicted_s = [of_profile * sharding.predicted_s for sharding in search.shardings.values()]
    predicted_s += [copies.period_s for copies in search.copies.values()]
    is_first = min(predicted_s, default=np.inf) < min(split, default=np.inf)
    return {**divided, **placed} if is_first else {**placed, **divided}


def was_timed(search: Search, name: str) -> bool:
    """Return whether the proposed candidate of this name was timed before the comparison."""
    if name in search.shardings:
        return SHARDS in search.kinds.times or (
            search.proposals is not None and search.proposals.best_times is not None
        )
    if name in search.copies:
        return COPIES in search.kinds.times
    plan = search.plans[name.removeprefix(UNDER_HETERO)]
    return any(event.plan == plan and event.score.failure is None for event in search.course.events)


def automatic_candidates(session: Session) -> dict[str, Candidate]:
    """Return OpenVINO's own choices by the names that users know; of torch's devices each alone, without the engine."""
    candidates, devices = dict[str, Candidate](), session.devices
    shown = DeviceIndex(devices.all)
    is_steady = session.model.objective.is_steady
    targets = plain_targets(devices.all) if session.is_on_torch else automatic_targets(devices.placed, devices.rivals)
    for target in targets:
        mode, _, names = target.partition(":")
        label = ",".join(shown.named(shown.openvino_positions(names.split(","))))
        cumulative = {"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"} if is_steady and mode == "AUTO" else {}
        candidates[f"{mode}:{label}"] = Candidate(target, properties=cumulative)
    return candidates


def is_one_device(session: Session, target: str) -> bool:
    """Return whether OpenVINO's own choice for a target is a single device, which is compared anyway."""
    mode, _, names = target.partition(":")
    return len(set(session.automatic_ops(target))) == 1 if mode == "HETERO" else mode == "AUTO" and "," not in names
