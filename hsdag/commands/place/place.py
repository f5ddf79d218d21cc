"""The command ``hsdag place``: searches for a placement, compares the best with every alternative, and saves it."""

from __future__ import annotations

import itertools
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

from hsdag.base.errors import HsdagError, OptionError, SearchError, option
from hsdag.base.files import check_writable, write_atomically
from hsdag.base.host import command_line
from hsdag.base.kernels import compiling_at_most
from hsdag.base.version import __version__
from hsdag.commands.place.answer import (
    NO_MEMORY,
    NO_SINGLE,
    faster_but_disallowed,
    faster_whole_devices,
    nearest_of,
    rejected,
    speed_sentence,
    times_to_tell,
    too_few_rounds,
)
from hsdag.commands.place.bound import least_s, left_to_gain
from hsdag.commands.place.comparison import NO_TIME, FinalComparison, Pace, check_of, family_ratios, final_comparison
from hsdag.commands.place.devices import devices_of, settled
from hsdag.commands.place.kinds import COPIES, SHARDS, Kinds, timed_kinds
from hsdag.commands.place.limits import check_start, disallowed_devices, disallowed_start
from hsdag.commands.place.result import (
    CostsRecord,
    DeviceSettings,
    PlaceResult,
    PlanRecord,
    Row,
    ScenarioRecord,
    Tally,
)
from hsdag.commands.place.run_folder import RESULT, RUN
from hsdag.commands.place.search import Search
from hsdag.commands.place.session import Session, measured_timeline, placed_candidate
from hsdag.commands.place.shards import ops_by_device, sharded_candidate, weights_by_device
from hsdag.commands.place.tuning import (
    forget_beaten,
    one_device_sentence,
    settings_record,
    settings_sentence,
    tune,
)
from hsdag.commands.place.wanted import Wanted
from hsdag.ir.device import DeviceIndex, DeviceSpec
from hsdag.ir.graph.colocation import resident_weight_bytes
from hsdag.ir.graph.scenario import context_of
from hsdag.ir.placement.divided import sharded_fields
from hsdag.ir.placement.homes import op_devices, op_priority
from hsdag.ir.placement.placement import SPREAD_VERSION, Placement, SpeedupRecord
from hsdag.methods.shards.choice import Sharding
from hsdag.runtime.machine.usable import BUSY, usable_cpus
from hsdag.runtime.measuring.caches import identity
from hsdag.runtime.measuring.latency import MIN_ROUNDS_TO_CLAIM
from hsdag.runtime.measuring.measurer import TorchMeasurer
from hsdag.runtime.measuring.messages import Candidate, ask, automatic_targets, plain_targets
from hsdag.runtime.objectives import LATENCY
from hsdag.runtime.timeline import Timeline
from hsdag.search.driver import Member, Watcher, shortage
from hsdag.search.options import PlaceOptions
from hsdag.workers.option import pool_of

UNDER_HETERO = "HETERO:"
"""Prefix of the name of a placement that HETERO runs for comparison."""

START = "start"
"""Name of the placement that the search started with."""

TIMELINE_RUNS = 5
"""Inferences for a measured timeline of the answer."""

FAR_SLOWER = 2.0
"""Ratio to the best device's value above which a device is compared only if there is time."""

LEAST_CANDIDATE_LIMIT_S = 60.0
"""Least seconds after which a candidate counts as hanging; with a larger budget, that budget."""

KERNELS_SHARE = 0.15
"""Share of the budget for compiling kernels, in this process and in the worker each; the rest is interpreted."""

LATE = 0.6
"""Share of the final comparison's time; with less time left, only what matters most is compared."""

WORTH_TELLING = 0.05
"""Share of disturbed time in the comparison from which on a warning is given."""

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
    if output is not None:
        check_writable(output)
    if run_folder is not None:  # missing parent folders are made as well
        check_writable(next(each for each in (run_folder, *run_folder.parents) if each.parent.exists()), is_folder=True)
        if resume and not (run_folder / RUN).is_file():
            raise SearchError(f"nothing to resume: {run_folder} holds no search; start it without {option('resume')}")
    watcher.on_phase("loading devices")
    devices, fixed = settled(devices_of(options), options.start, run_folder if resume else None)
    watcher.on_phase("reading the model")
    with (
        Session(
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
            kernels_s=KERNELS_SHARE * options.budget_s,
        ) as session,
        compiling_at_most(KERNELS_SHARE * options.budget_s),
    ):
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
        search = Search(session, options, watcher, begin_s)
        search.tuned, search.kinds, search.wanted = tuned, kinds, wanted
        if len(devices.placed) == 1:
            if resume:
                raise SearchError(f"on one device there is no search to resume; leave out {option('resume')}")
            search.profile = session.profile(on_step=watcher.on_phase) if options.memory_bytes else None
            return _conclude(search, start, output)
        tried_s = time.monotonic() - begin_s - read_s
        with pool_of(options.workers, watcher.note) as pool:
            search.run(run_folder, resume=resume, pool=pool)
        result = _conclude(search, start, output)
        spent_s = time.monotonic() - begin_s
        if spent_s > options.budget_s:
            watcher.note(
                f"more than the budget of {options.budget_s:.0f} s was spent: reading {read_s:.0f} s, timing kinds and "
                f"trying settings {tried_s:.0f} s, profiling and searching {search.search_s:.0f} s, comparing "
                f"{spent_s - read_s - tried_s - search.search_s:.0f} s"
            )
    return result


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
    session, options, watcher, profile = search.session, search.options, search.watcher, search.profile
    watcher.on_phase("comparing the best with every baseline")
    interrupted = watcher.should_stop()
    placed = proposed_candidates(search)
    if interrupted:  # compare only what was timed before
        placed = {name: each for name, each in placed.items() if was_timed(search, name)}
    baselines: dict[str, Candidate] = {}
    if options.executor == "work-conserving":  # shows what the executor gains
        baselines = {
            f"{UNDER_HETERO}{name}": session.placed(search.problem, plan) for name, plan in search.plans.items()
        }
    if len(session.devices.placed) > 1:
        own = automatic_candidates(session)
        baselines = {n: each for n, each in own.items() if not is_one_device(session, each.target)} | baselines
    too_large = session.too_large(profile)
    singles = {spec.name: Candidate(spec.openvino_name) for spec in session.devices.all if spec.name not in too_large}
    disallowed = disallowed_devices(session, options, profile)
    if options.start is not None and profile is not None:
        why = disallowed_start(session, options.start, profile)
        disallowed |= {} if why is None else dict.fromkeys(start, why)
    left_s = options.budget_s - (time.monotonic() - search.begin_s)
    whole_s, limit_s = search.pace.comparison_s(options.budget_s, options.protocol, left_s)
    is_late = left_s < LATE * search.pace.comparison_s(options.budget_s, options.protocol)[0]
    watcher.on_left(INTERRUPTED_LIMIT_S if interrupted else whole_s)
    final = final_comparison(
        session.runner,
        placed,
        singles,
        baselines,
        replace(options.protocol, limit_s=min(limit_s, INTERRUPTED_LIMIT_S) if interrupted else limit_s),
        check_of(session, options),
        start=start,
        disallowed=disallowed,
        slow=slow_devices(search, 1.0 if interrupted or is_late else FAR_SLOWER),
        opening_s=search.pace.opening_s,
        after_s=search.pace.check_s,
        whole_devices=session.devices.whole_devices,
        defaults=session.devices.defaults,
        end_s=search.begin_s + options.budget_s,
        should_stop=watcher.should_stop,
        on_step=watcher.on_step,
        rng=np.random.default_rng(options.seed),
    )
    forget_beaten(search.tuned, final)
    answer = {**placed, **singles, **start, **baselines}[final.answer]
    result = result_of(search, final, answer, output, interrupted=interrupted)
    result = result.with_lines(_dividing(search, result.model_path))
    if output is not None:
        if (kept := keep_better(output, result.placement)) is not None:
            watcher.note(kept)
        result.placement.save(output)
    if search.folder is not None:
        write_atomically(search.folder.path / RESULT, (result.model_dump_json() + "\n").encode())
    return result


def keep_better(output: Path, found: Placement) -> str | None:
    """Rename the placement in ``output`` if an earlier search of the same model measured it to be faster.

    Returns a note about that; None if nothing was renamed.
    """
    try:
        before = Placement.load(output)
    except HsdagError:
        return None
    same = before.model.fingerprint == found.model.fingerprint and before.objective == found.objective
    if not same or before.latency is None or found.latency is None:
        return None
    if before.latency.median_s >= found.latency.median_s:
        return None
    names = (output.with_suffix(f".{number}{output.suffix}") for number in itertools.count(1))
    kept = next(name for name in names if not name.exists())
    output.rename(kept)
    return (
        f"{output} held a placement that took {1e3 * before.latency.median_s:.4g} ms in its search, and this one takes "
        f"{1e3 * found.latency.median_s:.4g} ms: it is kept as {kept}; {option('start')} {kept} compares the two"
    )


def result_of(
    search: Search, final: FinalComparison, answer: Candidate, placement_file: Path | None, *, interrupted: bool
) -> PlaceResult:
    """Return the result of a search and its final comparison.

    If the search is kept on disk and there is time, it includes a measured timeline of the answer.
    """
    session, options, folder = search.session, search.options, search.folder
    loaded, devices = session.loaded, session.devices.all
    rows = rows_of(search, final)
    wanted = wanted_of(search, final)
    settings = tuple(settings_record(each, final) for each in search.tuned.values())
    too_large = {name: f"it was left out: {why}" for name, why in session.too_large(search.profile).items()}
    hardware = {f"device {spec.name}": str(identity(spec).get("hardware", "")) for spec in devices}
    return PlaceResult(
        sentence=_sentence(search, final, settings, interrupted=interrupted),
        objective=options.objective.name,
        unit=options.objective.unit,
        value=next(row.median for row in rows if row.is_answer),
        placement=answer_placement(search, final),
        placement_file=None if placement_file is None else str(placement_file),
        rows=rows,
        no_single=_no_single(search, final),
        failures={**too_large, **final.comparison.failures},
        turned_down=rejected(final) | faster_but_disallowed(final) | faster_whole_devices(final),
        verdict=final.verdicts[final.answer],
        finalists={name: PlanRecord.of(plan, len(devices)) for name, plan in search.plans.items()},
        tally=Tally.of(search.events, search.num_simulated),
        members=tuple(Member.of(each) for each in search.contributions),
        settings=settings,
        search_s=search.search_s,
        budget_s=options.budget_s,
        interrupted=interrupted,
        warnings=tuple(warnings_of(search, final)),
        bound=_bound(search, final),
        kinds=dict(search.kinds.times),
        wanted="" if interrupted else wanted.words,
        wanted_budget_s=None if interrupted else wanted.seconds,
        others=final.others,
        scenarios=tuple(map(ScenarioRecord.of, session.scenarios)),
        state_bytes_per_token=state_bytes_per_token(search, final),
        weight_bytes=weight_bytes_of(search, final),
        run_folder=None if folder is None else folder.path,
        model_path=None if loaded.name is None or loaded.is_workload else str(loaded.path.resolve()),
        environment={**_versions(), "system": platform.platform(), "processors": str(usable_cpus()), **hardware},
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        samples={name: [list(each) for each in own.rounds] for name, own in final.comparison.samples.items()},
        costs=CostsRecord.of(search.calibrated),
        timeline=None if folder is None or interrupted else _timeline(search, final, answer),
    )


def answer_placement(search: Search, final: FinalComparison) -> Placement:
    """Return the placement of the answer."""
    session, options, graph, problem = search.session, search.options, search.session.graph, search.problem
    ratio, versus = final.ratios[final.answer], final.best_single
    ops = graph.canonical_names
    priority = None
    method, seed = options.method, options.seed
    is_own = final.answer in final.finalists and not final.answer.startswith(UNDER_HETERO)
    executor = options.search_executor if is_own or session.is_on_torch else "hetero"
    if final.answer in search.plans and (order := search.plans[final.answer].priority) is not None:
        priority = problem.expand(order).tolist()
    elif final.answer == START and options.start is not None:
        priority, executor = op_priority(options.start, graph), options.start.executor
        method, seed = options.start.method, options.start.seed
    timed = final.comparison.samples if options.objective.unit == "s" else {}
    records = {name: samples.record() for name, samples in timed.items()}
    fields: dict[str, Any] = {"affinity": dict(zip(ops, _answer_devices(search, final), strict=True))}
    if (sharding := search.shardings.get(final.answer)) is not None:
        fields = sharded_fields(sharding.regions, sharding.devices, graph, problem.devices)
        method = "shards"
    elif (copies := search.copies.get(final.answer)) is not None:
        copied = copies.records(problem, final.opened[final.answer].requests)
        fields = {"version": SPREAD_VERSION, "affinity": {}, "copies": copied}
        method = "copies"
    return Placement(
        **fields,
        model=session.model_record,
        devices=_answer_specs(search, final),
        names=dict(zip(ops, graph.op_names, strict=True)),
        method=method,
        seed=seed,
        objective=options.objective.name,
        executor=executor,
        latency=records.get(final.answer),
        baselines={name: record for name, record in records.items() if name not in final.finalists},
        speedup=SpeedupRecord(versus=versus, ratio=ratio.value, ci95=ratio.ends) if versus else None,
        priority=priority and {op: rank for op, rank in zip(ops, priority, strict=True) if rank is not None},
        created_with={**_versions(), "preset": options.preset},
        data_shapes=tuple(scenario.text for scenario in session.scenarios) or None,
    )


def _devices_of(search: Search, name: str) -> list[str] | None:
    """Return the device of every op of a placement [N]; None for any other candidate."""
    name = name.removeprefix(UNDER_HETERO)
    if name in search.plans:
        return [search.problem.devices[d] for d in search.problem.expand(search.plans[name].placement).tolist()]
    if name == START and search.options.start is not None:
        return op_devices(search.options.start, search.session.graph)
    return None


def _answer_devices(search: Search, final: FinalComparison) -> list[str]:
    device = search.session.devices.defaults.get(final.answer, final.answer)
    return _devices_of(search, final.answer) or [device] * search.session.graph.num_ops


def _answer_specs(search: Search, final: FinalComparison) -> list[DeviceSpec]:
    """Return the devices of the answer; a single device for throughput has the hint it was measured with."""
    session = search.session
    devices = session.devices.answering(final.answer)
    only = session.devices.defaults.get(final.answer, final.answer)
    if not session.model.objective.is_steady or session.is_on_torch:
        return devices
    hint = {"PERFORMANCE_HINT": "THROUGHPUT"}
    return [replace(d, properties={**hint, **d.properties}) if d.name == only else d for d in devices]


def rows_of(search: Search, final: FinalComparison) -> tuple[Row, ...]:
    """Return a row for every measured candidate, the fastest first."""
    rows = []
    for name, samples in final.comparison.samples.items():
        record = samples.record()
        ratio = final.ratios[name]
        row = Row(
            name=name,
            median=final.comparison.median(name),
            p95=record.p95_s,
            runs=record.runs,
            ratio=ratio.value,
            ci95=(ratio.low, ratio.high) if ratio.is_known else (None, None),
            rounds=ratio.num_rounds,
            submodels=final.opened[name].submodels,
            ops=_ops_of(search, final, name),
            is_answer=name == final.answer,
            scenario_medians_s=_scenario_medians_s(search, final, name, record.runs),
        )
        rows.append(row)
    return tuple(sorted(rows, key=lambda row: -row.ratio))


def _scenario_medians_s(search: Search, final: FinalComparison, name: str, runs: int) -> tuple[float, ...]:
    """Return the median seconds of each scenario; empty for objectives other than latency."""
    if search.options.objective is not LATENCY or not search.session.scenarios:
        return ()
    return search.session.runner.taken.scenario_medians_s(name, runs) or (final.comparison.median(name),)


def _ops_of(search: Search, final: FinalComparison, name: str) -> dict[str, int]:
    """Return the number of ops on each device of a candidate; empty if OpenVINO does not tell."""
    session, problem = search.session, search.problem
    if name in search.shardings:
        return ops_by_device(session, search.shardings[name])
    if name in search.copies:
        copies = search.copies[name]
        held = np.bincount(np.concatenate(copies.homes(problem)), minlength=len(problem.devices))
        found = dict(zip(problem.devices, held.tolist(), strict=True))
        shards = ops_by_device(session, copies.pipeline) if isinstance(copies.pipeline, Sharding) else {}
        return {device: count + shards.get(device, 0) for device, count in found.items()}
    placed = _devices_of(search, name)
    if placed is not None:
        return {device: placed.count(device) for device in problem.devices}
    own = session.devices.defaults
    shown = {device.openvino_name: own.get(device.name, device.name) for device in session.devices.all}
    if name.startswith("HETERO:"):
        target = automatic_candidates(session)[name].target
        chosen = Counter(shown.get(device, device) for device in session.automatic_ops(target))
        return {device: count for device, count in chosen.items() if device}
    devices = final.opened[name].devices
    return {shown.get(devices[0], devices[0]): session.graph.num_ops} if len(devices) == 1 else {}


def _sentence(search: Search, final: FinalComparison, settings: Sequence[DeviceSettings], *, interrupted: bool) -> str:
    """Return the answer in a sentence or two."""
    session, options, comparison = search.session, search.options, final.comparison
    if interrupted and not final.finalists:
        return "The search was interrupted before it measured a split."
    if len(session.devices.placed) == 1:
        more = ", such as A=cpu[threads=1],B=cpu[threads=1]" if session.is_on_torch else ", or divide the CPU"
        only = session.devices.placed[0].name
        known = [each for each in settings if each.device == only]
        return one_device_sentence(known[0] if known else None, only, more)
    twin, words = _other_executor(search, final)
    sentence = speed_sentence(
        final.answer,
        final.best_single,
        final.ratios[final.answer],
        family_ratios(comparison, list(automatic_candidates(session)), final.answer),
        rejected(final),
        comparison.ratio(final.answer, twin) if twin in comparison.samples else None,
        why_uncompared(search, final),
        over_start=comparison.ratio(final.answer, START) if START in comparison.samples else None,
        disallowed=faster_but_disallowed(final),
        whole_devices=faster_whole_devices(final),
        nearest=nearest_of(final),
        ignored=ignored(options),
        no_single=_no_single(search, final),
        twin=words,
        takes=options.objective.takes,
        busy=final.others,
    )
    used = set(_answer_devices(search, final))
    return " ".join(filter(None, [sentence, settings_sentence(settings, used)]))


def _no_single(search: Search, final: FinalComparison) -> str:
    """Return why there is no best single device; empty if there is one."""
    if final.best_single is not None:
        return ""
    return NO_MEMORY if len(search.session.too_large(search.profile)) == len(search.session.devices.all) else NO_SINGLE


def wanted_of(search: Search, final: FinalComparison) -> Wanted:
    """Return what there was no time for, with candidates that were not compiled or not told apart added."""
    budget_s, wanted, versus = search.options.budget_s, search.wanted, final.best_single
    for name in final.finalists:
        if final.comparison.failures.get(name) == NO_TIME:
            wanted.add(f"compile {name}")
    if versus != final.answer or versus is None or len(search.session.devices.placed) == 1:
        return wanted
    few = {name: over for name, over in final.ratios.items() if name in too_few_rounds(final.ratios)}
    for name in [each for each in final.finalists if each in few]:
        wanted.add(f"tell {name} from {versus}", budget_s * MIN_ROUNDS_TO_CLAIM / few[name].num_rounds)
    nearest = nearest_of(final)
    if nearest is not None and nearest[1].is_known and not nearest[1].is_slower:
        times = times_to_tell(nearest[1])
        if times is not None:
            wanted.add(f"tell {nearest[0]} from {versus}", times * budget_s)
    return wanted


def _other_executor(search: Search, final: FinalComparison) -> tuple[str, tuple[str, str]]:
    """Return the candidate under another executor to compare the answer with, and the words for it."""
    answer, compared, proposed = final.answer, final.comparison, final.finalists
    if answer.startswith(UNDER_HETERO) and answer in proposed:
        others = [n for n in proposed if n in compared.samples and not n.startswith(UNDER_HETERO)]
        return compared.fastest(others) if others else answer, ("hsdag's own executor", "with its best placement")
    if search.under_hetero is None or search.plans.get(answer) == search.under_hetero:
        return f"{UNDER_HETERO}{answer}", ("HETERO", "with the same placement")
    best = next((n for n in proposed if n.startswith(UNDER_HETERO)), "")  # an interrupt may have left it out
    return best if answer in proposed else "", ("HETERO", "with the placement that suits it best")


def warnings_of(search: Search, final: FinalComparison) -> tuple[str, ...]:
    """Return warnings about the answer, as sentences without a full stop."""
    peaks = "peaks of memory are simulated, with the sizes of the profile"
    counted = peaks if search.options.objective.counts_memory else None
    objection = final.verdicts[final.answer].reason
    objected = None if objection is None else f"{final.answer}: {objection}"
    failed = Tally.of(search.events).num_failed if search.session.scenarios else 0
    fixes = f"where all data have one size, {option('shape')} fixes it"
    sizes = f"{failed} placements failed with inputs that stay dynamic; {fixes}"
    busy = f"other programs took {final.others:.0%} of the processors during the comparison: repeat it without them"
    less = final.comparison.disturbed
    gave_less = f"for {less:.0%} of the comparison the machine gave much less than otherwise; such rounds were repeated"
    busy_or_less = busy if final.others >= BUSY else None, gave_less if less >= WORTH_TELLING else None
    said = counted, objected, sizes if failed else None, *busy_or_less
    return tuple(filter(None, [search.unprofiled, *said]))


def _bound(search: Search, final: FinalComparison) -> str:
    """Return a sentence on the possible gain; empty without a profile, on a busy machine, or if not for latency."""
    if search.profile is None or search.costs is None or search.options.objective is not LATENCY:
        return ""
    if final.others >= BUSY:
        return ""
    median_s = {name: final.comparison.median(name) for name in final.comparison.samples}
    alone_s = {each.device.name: each.latency_s or 0.0 for each in search.profile.times}
    least = least_s(search.problem, search.costs)
    if search.proposals is not None:
        least = min([least, search.proposals.least_s(), *(each.predicted_s for each in search.shardings.values())])
    return left_to_gain(least, alone_s, median_s, median_s[final.answer], list(alone_s))


def _dividing(search: Search, model_path: str | None) -> str | None:
    """Return the command that partitions the CPU if it is the only device, else None."""
    names = search.session.devices.index.openvino_names
    if names != ("CPU",) or search.options.arguments is None or model_path is None or search.session.is_on_torch:
        return None
    return command_line(["hsdag", "place", model_path, *search.options.arguments, "--partition-cpu", "2"])


def weight_bytes_of(search: Search, final: FinalComparison) -> dict[str, float]:
    """Return the bytes of the answer's weights and state by device; empty if it uses a device not placed on."""
    session, names = search.session, search.problem.devices
    if final.answer in search.shardings and search.proposals is not None:
        return dict(weights_by_device(session, search.proposals.sharded(search.shardings[final.answer])))
    if final.answer in search.copies:
        copies = search.copies[final.answer]
        each = [resident_weight_bytes(session.graph, homes, session.widens) for homes in copies.homes(search.problem)]
        if isinstance(copies.pipeline, Sharding) and search.proposals is not None:
            each.append(np.array([*weights_by_device(session, search.proposals.sharded(copies.pipeline)).values()]))
        return dict(zip(names, np.sum(each, axis=0).tolist(), strict=True))
    devices = _answer_devices(search, final)
    if not set(devices) <= set(names):
        return {}
    homes = np.array(session.devices.index.positions(devices))
    held = resident_weight_bytes(session.graph, homes, session.widens)
    return dict(zip(names, held.tolist(), strict=True))


def state_bytes_per_token(search: Search, final: FinalComparison) -> dict[str, float]:
    """Return the bytes of state per token of context on each device; empty for shards, copies and stateless models.

    The state is that of the scenario with the longest context.
    """
    session, names = search.session, search.problem.devices
    tokens = [context_of(each.tokens) for each in session.scenarios if each.tokens]
    devices = _answer_devices(search, final)
    if not tokens or final.answer in search.shardings or final.answer in search.copies:
        return {}
    graph, found = session.graph, dict.fromkeys(names, 0.0)
    for v in np.flatnonzero([each == "ReadValue" for each in graph.op_types]).tolist():
        found[devices[v]] = found.get(devices[v], 0.0) + float(graph.weight_bytes[v]) / max(tokens)
    return {name: size for name, size in found.items() if size}


def why_uncompared(search: Search, final: FinalComparison) -> str | None:
    """Return why no split placement was compared; None if one was."""
    if any(name in final.comparison.samples for name in final.finalists):
        return None
    failed = [final.comparison.failures[name] for name in final.finalists if name in final.comparison.failures]
    if failed:
        reasons = "; ".join(dict.fromkeys(failed))
        return f"no split placement was compared ({reasons})"
    split = Tally.of([event for event in search.events if event.plan.is_split])
    if split.tried:
        return split.words
    compile_s = max(opened.compile_s for opened in final.opened.values())
    lack = shortage(compile_s, search.left_s)
    tied = search.problem.num_units < 2
    why = "all ops have to stay together" if tied else f"the method {search.options.method} proposed none"
    reason = f", since {why}" if lack is None or tied else f": {lack[0]}"
    return f"no split placement was tried{reason}"


def _timeline(search: Search, final: FinalComparison, answer: Candidate) -> Timeline | None:
    """Measure a timeline of the answer; None if that would take too long, or fails."""
    taken_s = final.opened[final.answer].compile_s
    is_over = time.monotonic() - search.begin_s > search.options.budget_s
    if is_over or not Pace(taken_s, final.comparison.median(final.answer), taken_s).timeline_s(search.options.budget_s):
        return None
    with suppress(SearchError):
        return measured_timeline(search.session, answer, TIMELINE_RUNS)
    return None


def slow_devices(search: Search, times: float) -> set[str]:
    """Return the devices on which the model measured more than ``times`` the value of the best device.

    If the search measured no device, the times from before the search count.
    """
    alone = [each for each in search.events if each.score.failure is None and not each.plan.is_split]
    if not alone:
        return {spec.name for spec in search.session.devices.all if search.kinds.times.get(spec.name, 0.0) > times}
    most_s = times * min(each.score.value for each in alone)
    return {search.problem.devices[each.plan.placement[0]] for each in alone if each.score.value > most_s}


def proposed_candidates(search: Search) -> dict[str, Candidate]:
    """Return the candidates that a search proposes, by name, the most promising first."""
    session, executor, plans = search.session, search.options.search_executor, search.plans
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
    # devices may be slower or faster now than when the model was profiled
    of_profile = min(alone) / search.proposals.whole_s if search.proposals is not None and alone else 1.0
    predicted_s = [of_profile * each.predicted_s for each in search.shardings.values()]
    predicted_s += [each.period_s for each in search.copies.values()]
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
    return any(event.plan == plan and event.score.failure is None for event in search.events)


def _versions() -> dict[str, str]:
    return {"hsdag": __version__, "openvino": ov.get_version(), "python": platform.python_version()}


def ignored(options: PlaceOptions) -> str | None:
    """Return words for the limits that OpenVINO's own choices do not keep; None if there are none."""
    limits = {"pins": options.pins, "memory": options.memory_bytes, "max_difference": options.max_difference}
    given = [option(name) for name, limit in limits.items() if limit not in ((), {}, None)]
    return f"without {' and '.join(given)}" if given else None


def automatic_candidates(session: Session) -> dict[str, Candidate]:
    """Return OpenVINO's own choices by the names that users know; of torch's devices each alone, without the engine."""
    candidates, devices = dict[str, Candidate](), session.devices
    shown = DeviceIndex(devices.all)
    is_steady = session.model.objective.is_steady
    own = plain_targets(devices.all) if session.is_on_torch else automatic_targets(devices.placed, devices.rivals)
    for target in own:
        mode, _, names = target.partition(":")
        label = ",".join(shown.named(shown.openvino_positions(names.split(","))))
        cumulative = {"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"} if is_steady and mode == "AUTO" else {}
        candidates[f"{mode}:{label}"] = Candidate(target, properties=cumulative)
    return candidates


def is_one_device(session: Session, target: str) -> bool:
    """Return whether OpenVINO's own choice for a target is a single device, which is compared anyway."""
    mode, _, names = target.partition(":")
    return len(set(session.automatic_ops(target))) == 1 if mode == "HETERO" else mode == "AUTO" and "," not in names
