"""The outcome of a search and its final comparison: the answer in words and figures, its placement, and the result."""

from __future__ import annotations

import platform
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from hsdag.base.errors import SearchError, option
from hsdag.base.version import __version__
from hsdag.commands.place.answer import (
    NO_MEMORY,
    NO_SINGLE,
    Alternatives,
    Lead,
    NotChosen,
    ignored,
    speed_sentence,
    times_to_tell,
    too_few_rounds,
)
from hsdag.commands.place.bound import least_s, left_to_gain
from hsdag.commands.place.comparison import NO_TIME, START, UNDER_HETERO, FinalComparison, family_ratios
from hsdag.commands.place.limits import too_large
from hsdag.commands.place.lines import memory_sentence, next_command
from hsdag.commands.place.pace import Pace
from hsdag.commands.place.records import CostsRecord, DeviceSettings, PlanRecord, Row, ScenarioRecord, Tally
from hsdag.commands.place.result import PlaceResult
from hsdag.commands.place.search import Search
from hsdag.commands.place.session import measured_timeline
from hsdag.commands.place.shards import ops_by_device, weights_by_device
from hsdag.commands.place.tuning import one_device_sentence, settings_record, settings_sentence
from hsdag.commands.place.wanted import Wanted
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.colocation import resident_weight_bytes
from hsdag.ir.graph.scenario import context_of
from hsdag.ir.placement.divided import sharded_fields
from hsdag.ir.placement.homes import op_devices, placed_priority
from hsdag.ir.placement.placement import SPREAD_VERSION, Placement, SpeedupRecord
from hsdag.methods.shards.choice import Sharding
from hsdag.runtime.machine.usable import BUSY, usable_cpus
from hsdag.runtime.measuring.caches import identity
from hsdag.runtime.measuring.latency import MIN_ROUNDS_TO_CLAIM
from hsdag.runtime.objectives import LATENCY
from hsdag.runtime.timeline import Timeline
from hsdag.search.driver import Member, shortage

TIMELINE_RUNS = 5
"""Inferences for a measured timeline of the answer."""

WORTH_TELLING = 0.05
"""Share of disturbed time in the comparison from which on a warning is given."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Outcome of a search, which the user may have ``interrupted``, and of its final comparison."""

    search: Search
    final: FinalComparison
    interrupted: bool = False

    def result(self, placement_file: Path | None = None) -> PlaceResult:
        """Return the result, with the name of the file that the placement is written to.

        If the search is kept on disk and there is time, it includes a measured timeline of the answer.
        """
        search, final = self.search, self.final
        session, options, folder = search.session, search.options, search.folder
        loaded, devices = session.loaded, session.devices.all
        rows, wanted = self.rows, self.wanted()
        left_out = {name: f"it was left out: {why}" for name, why in self.too_large.items()}
        hardware = {f"device {spec.name}": str(identity(spec).get("hardware", "")) for spec in devices}
        return PlaceResult(
            sentence=self.sentence,
            objective=options.objective.name,
            unit=options.objective.unit,
            value=next(row.median for row in rows if row.is_answer),
            placement=self.placement,
            placement_file=None if placement_file is None else str(placement_file),
            rows=rows,
            no_single=self.no_single,
            failures={**left_out, **final.comparison.failures},
            turned_down=self.not_chosen.reasons,
            verdict=final.verdicts[final.answer],
            finalists={name: PlanRecord.of(plan, len(devices)) for name, plan in search.plans.items()},
            tally=Tally.of(search.course.events, search.course.num_simulated),
            members=tuple(map(Member.of, search.course.contributions)),
            settings=self.settings,
            search_s=search.course.seconds,
            budget_s=options.budget_s,
            interrupted=self.interrupted,
            warnings=self.warnings,
            bound=self.bound,
            kinds=dict(search.kinds.times),
            wanted="" if self.interrupted else wanted.words,
            wanted_budget_s=None if self.interrupted else wanted.seconds,
            others=final.others,
            scenarios=tuple(map(ScenarioRecord.of, session.scenarios)),
            state_bytes_per_token=self.state_bytes_per_token,
            weight_bytes=self.weight_bytes,
            run_folder=None if folder is None else folder.path,
            model_path=None if loaded.name is None or loaded.is_workload else str(loaded.path.resolve()),
            environment={**_versions(), "system": platform.platform(), "processors": str(usable_cpus()), **hardware},
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            samples={name: list(map(list, of_one.rounds)) for name, of_one in final.comparison.samples.items()},
            costs=CostsRecord.of(search.course.calibrated),
            timeline=None if folder is None or self.interrupted else self._timeline(),
        )

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Return a row for every measured candidate, the fastest first."""
        final, session = self.final, self.search.session
        has_scenarios = self.search.options.objective is LATENCY and bool(session.scenarios)
        rows = []
        for name, samples in final.comparison.samples.items():
            record, ratio, median = samples.record(), final.ratios[name], final.comparison.median(name)
            of_scenarios = session.runner.taken.scenario_medians_s(name, record.runs) if has_scenarios else ()
            row = Row(
                name=name,
                median=median,
                p95=record.p95_s,
                runs=record.runs,
                ratio=ratio.value,
                ci95=(ratio.low, ratio.high) if ratio.is_known else (None, None),
                rounds=ratio.num_rounds,
                submodels=final.opened[name].submodels,
                ops=self._ops_of(name),
                is_answer=name == final.answer,
                scenario_medians_s=of_scenarios or ((median,) if has_scenarios else ()),
            )
            rows.append(row)
        return tuple(sorted(rows, key=lambda row: -row.ratio))

    @cached_property
    def placement(self) -> Placement:
        """Return the placement of the answer."""
        search, final, options = self.search, self.final, self.search.options
        session, graph, problem = search.session, search.session.graph, search.problem
        ratio, versus = final.ratios[final.answer], final.best_single
        ops, finalists = graph.canonical_names, final.candidates.finalists
        priority = None
        method, seed = options.method, options.seed
        is_own = final.answer in finalists and not final.answer.startswith(UNDER_HETERO)
        executor = options.search_executor if is_own or session.is_on_torch else "hetero"
        if final.answer in search.plans and (order := search.plans[final.answer].priority) is not None:
            priority = problem.expand(order).tolist()
        elif final.answer == START and options.start is not None:
            priority, executor = placed_priority(options.start, graph), options.start.executor
            method, seed = options.start.method, options.start.seed
        timed = final.comparison.samples if options.objective.unit == "s" else {}
        records = {name: samples.record() for name, samples in timed.items()}
        fields: dict[str, Any] = {"affinity": dict(zip(ops, self.devices, strict=True))}
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
            devices=self._specs(),
            names=dict(zip(ops, graph.op_names, strict=True)),
            method=method,
            seed=seed,
            objective=options.objective.name,
            executor=executor,
            latency=records.get(final.answer),
            baselines={name: record for name, record in records.items() if name not in finalists},
            speedup=SpeedupRecord(versus=versus, ratio=ratio.value, ci95=ratio.ends) if versus else None,
            priority=priority and {op: rank for op, rank in zip(ops, priority, strict=True) if rank is not None},
            created_with={**_versions(), "preset": options.preset},
            data_shapes=tuple(scenario.text for scenario in session.scenarios) or None,
        )

    @cached_property
    def devices(self) -> list[str]:
        """Return the device of every op of the answer [N]; for shards and copies the name of the answer."""
        device = self.search.session.devices.defaults.get(self.final.answer, self.final.answer)
        return self._devices_of(self.final.answer) or [device] * self.search.session.graph.num_ops

    @cached_property
    def too_large(self) -> dict[str, str]:
        """Return why devices cannot hold the whole model, by name."""
        return too_large(self.search.session, self.search.profile)

    @cached_property
    def settings(self) -> tuple[DeviceSettings, ...]:
        """Return the settings of devices that were raced before the search."""
        return tuple(settings_record(each, self.final) for each in self.search.tuned.values())

    @cached_property
    def not_chosen(self) -> NotChosen:
        """Return the candidates that are not the answer, without why no split was compared."""
        return NotChosen.of(self.final)

    @property
    def sentence(self) -> str:
        """Return the answer in a sentence or two."""
        search, final = self.search, self.final
        session, options = search.session, search.options
        if self.interrupted and not final.candidates.finalists:
            return "The search was interrupted before it measured a split."
        if len(session.devices.placed) == 1:
            more = ", such as A=cpu[threads=1],B=cpu[threads=1]" if session.is_on_torch else ", or divide the CPU"
            only = session.devices.placed[0].name
            settings = next((raced for raced in self.settings if raced.device == only), None)
            return one_device_sentence(settings, only, more)
        lead = Lead(
            final.answer,
            final.best_single,
            final.ratios[final.answer],
            options.objective.takes,
            final.others,
            self.no_single,
        )
        others = replace(self.not_chosen, uncompared=self.uncompared)
        sentence = speed_sentence(lead, others, self._alternatives())
        return " ".join(filter(None, [sentence, settings_sentence(self.settings, set(self.devices))]))

    def _alternatives(self) -> Alternatives:
        """Return other ways to run the model, as far as they were compared."""
        search, final, comparison = self.search, self.final, self.final.comparison
        openvinos = [n for n in final.candidates.automatic if n.removeprefix(UNDER_HETERO) not in search.plans]
        twin, words = self._other_executor()
        return Alternatives(
            automatic=family_ratios(comparison, openvinos, final.answer),
            ignored=ignored(search.options),
            over_twin=comparison.ratio(final.answer, twin) if twin in comparison.samples else None,
            twin=words,
            over_start=comparison.ratio(final.answer, START) if START in comparison.samples else None,
        )

    def _other_executor(self) -> tuple[str, tuple[str, str]]:
        """Return the candidate under another executor to compare the answer with, and the words for it."""
        answer, compared, search = self.final.answer, self.final.comparison, self.search
        proposed = self.final.candidates.finalists
        if answer.startswith(UNDER_HETERO) and answer in proposed:
            others = [n for n in proposed if n in compared.samples and not n.startswith(UNDER_HETERO)]
            twin = compared.fastest(others) if others else answer
            return twin, ("hsdag's own executor", "with its best placement")
        if search.under_hetero is None or search.plans.get(answer) == search.under_hetero:
            return f"{UNDER_HETERO}{answer}", ("HETERO", "with the same placement")
        best = next((n for n in proposed if n.startswith(UNDER_HETERO)), "")  # an interrupt may have left it out
        return best if answer in proposed else "", ("HETERO", "with the placement that suits it best")

    @property
    def no_single(self) -> str:
        """Return why there is no best single device; empty if there is one."""
        if self.final.best_single is not None:
            return ""
        return NO_MEMORY if len(self.too_large) == len(self.search.session.devices.all) else NO_SINGLE

    @property
    def uncompared(self) -> str | None:
        """Return why no split placement was compared; None if one was."""
        search, final, failures = self.search, self.final, self.final.comparison.failures
        finalists = final.candidates.finalists
        if any(name in final.comparison.samples for name in finalists):
            return None
        failed = [failures[name] for name in finalists if name in failures]
        if failed:
            reasons = "; ".join(dict.fromkeys(failed))
            return f"no split placement was compared ({reasons})"
        split = Tally.of([event for event in search.course.events if event.plan.is_split])
        if split.tried:
            return split.words
        compile_s = max(opened.compile_s for opened in final.opened.values())
        lack = shortage(compile_s, search.time.left_s)
        tied = search.problem.num_units < 2
        why = "all ops have to stay together" if tied else f"the method {search.options.method} proposed none"
        reason = f", since {why}" if lack is None or tied else f": {lack[0]}"
        return f"no split placement was tried{reason}"

    def wanted(self) -> Wanted:
        """Return what there was no time for, with candidates that were not compiled or not told apart added."""
        search, final, versus = self.search, self.final, self.final.best_single
        budget_s, wanted, finalists = search.options.budget_s, search.wanted, final.candidates.finalists
        for name in finalists:
            if final.comparison.failures.get(name) == NO_TIME:
                wanted.add(f"compile {name}")
        if versus != final.answer or versus is None or len(search.session.devices.placed) == 1:
            return wanted
        for name in [finalist for finalist in finalists if finalist in too_few_rounds(final.ratios)]:
            wanted.add(f"tell {name} from {versus}", budget_s * MIN_ROUNDS_TO_CLAIM / final.ratios[name].num_rounds)
        if self.not_chosen.nearest is not None:
            name, over = self.not_chosen.nearest
            times = times_to_tell(over) if over.is_known and not over.is_slower else None
            if times is not None:
                wanted.add(f"tell {name} from {versus}", times * budget_s)
        return wanted

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings about the answer, as sentences without a full stop."""
        search, final, less = self.search, self.final, self.final.comparison.disturbed
        peaks = "peaks of memory are simulated, with the sizes of the profile"
        counted = peaks if search.options.objective.counts_memory else None
        objection = final.verdicts[final.answer].reason
        objected = None if objection is None else f"{final.answer}: {objection}"
        failed = Tally.of(search.course.events).num_failed if search.session.scenarios else 0
        fixes = f"where all data have one size, {option('shape')} fixes it"
        sizes = f"{failed} placements failed with inputs that stay dynamic; {fixes}"
        busy = f"other programs took {final.others:.0%} of the processors during the comparison: repeat it without them"
        gave_less = (
            f"for {less:.0%} of the comparison the machine gave much less than otherwise; such rounds were repeated"
        )
        busy_or_less = busy if final.others >= BUSY else None, gave_less if less >= WORTH_TELLING else None
        said = counted, objected, sizes if failed else None, *busy_or_less
        return tuple(filter(None, [search.unprofiled, *said]))

    @property
    def bound(self) -> str:
        """Return a sentence on the possible gain; empty without a profile, on a busy machine, or if not for latency."""
        search, final = self.search, self.final
        if search.profile is None or search.costs is None or search.options.objective is not LATENCY:
            return ""
        if final.others >= BUSY:
            return ""
        median_s = {name: final.comparison.median(name) for name in final.comparison.samples}
        alone_s = {times.device.name: times.latency_s or 0.0 for times in search.profile.times}
        least = least_s(search.problem, search.costs)
        if search.proposals is not None:
            least = min([least, search.proposals.least_s(), *(way.predicted_s for way in search.shardings.values())])
        return left_to_gain(least, alone_s, median_s, median_s[final.answer], list(alone_s))

    @property
    def weight_bytes(self) -> dict[str, float]:
        """Return the bytes of the answer's weights and state by device; empty if it uses a device not placed on."""
        search, session, answer = self.search, self.search.session, self.final.answer
        names, proposals = search.problem.devices, search.proposals
        if answer in search.shardings and proposals is not None:
            return weights_by_device(session, proposals.sharded(search.shardings[answer]))
        if answer in search.copies:
            copies, graph = search.copies[answer], session.graph
            of_copies = [resident_weight_bytes(graph, homes, session.widens) for homes in copies.homes(search.problem)]
            if isinstance(copies.pipeline, Sharding) and proposals is not None:
                of_copies.append(np.array([*weights_by_device(session, proposals.sharded(copies.pipeline)).values()]))
            return dict(zip(names, np.sum(of_copies, axis=0).tolist(), strict=True))
        if not set(self.devices) <= set(names):
            return {}
        placed = np.array(session.devices.index.positions(self.devices))
        size_bytes = resident_weight_bytes(session.graph, placed, session.widens)
        return dict(zip(names, size_bytes.tolist(), strict=True))

    @property
    def state_bytes_per_token(self) -> dict[str, float]:
        """Return the bytes of state per token of context on each device; empty for shards, copies and stateless models.

        The state is that of the scenario with the longest context.
        """
        search, session, answer = self.search, self.search.session, self.final.answer
        contexts = [context_of(scenario.tokens) for scenario in session.scenarios if scenario.tokens]
        if not contexts or answer in search.shardings or answer in search.copies:
            return {}
        graph, per_token = session.graph, dict.fromkeys(search.problem.devices, 0.0)
        for v in np.flatnonzero(np.array(graph.op_types) == "ReadValue").tolist():
            device = self.devices[v]
            per_token[device] = per_token.get(device, 0.0) + float(graph.weight_bytes[v]) / max(contexts)
        return {name: size for name, size in per_token.items() if size}

    def _devices_of(self, name: str) -> list[str] | None:
        """Return the device of every op of a placement [N]; None for any other candidate."""
        search, name = self.search, name.removeprefix(UNDER_HETERO)
        if name in search.plans:
            return [search.problem.devices[d] for d in search.problem.expand(search.plans[name].placement).tolist()]
        if name == START and search.options.start is not None:
            return op_devices(search.options.start, search.session.graph)
        return None

    def _ops_of(self, name: str) -> dict[str, int]:
        """Return the number of ops on each device of a candidate; empty if OpenVINO does not tell."""
        search, session, problem = self.search, self.search.session, self.search.problem
        if name in search.shardings:
            return ops_by_device(session, search.shardings[name])
        if name in search.copies:
            copies = search.copies[name]
            counts = np.bincount(np.concatenate(copies.homes(problem)), minlength=len(problem.devices)).tolist()
            shards = ops_by_device(session, copies.pipeline) if isinstance(copies.pipeline, Sharding) else {}
            return {name: n + shards.get(name, 0) for name, n in zip(problem.devices, counts, strict=True)}
        placed = self._devices_of(name)
        if placed is not None:
            return {device: placed.count(device) for device in problem.devices}
        chosen = session.devices.defaults
        shown = {device.openvino_name: chosen.get(device.name, device.name) for device in session.devices.all}
        if name.startswith("HETERO:"):
            target = self.final.candidates.automatic[name].target
            ops = Counter(shown.get(device, device) for device in session.automatic_ops(target))
            return {device: count for device, count in ops.items() if device}
        devices = self.final.opened[name].devices
        return {shown.get(devices[0], devices[0]): session.graph.num_ops} if len(devices) == 1 else {}

    def _specs(self) -> list[DeviceSpec]:
        """Return the devices of the answer; a single device for throughput has the hint it was measured with."""
        session, answer = self.search.session, self.final.answer
        devices = session.devices.answering(answer)
        only = session.devices.defaults.get(answer, answer)
        if not session.model.objective.is_steady or session.is_on_torch:
            return devices
        hint = {"PERFORMANCE_HINT": "THROUGHPUT"}
        return [replace(d, properties={**hint, **d.properties}) if d.name == only else d for d in devices]

    def _timeline(self) -> Timeline | None:
        """Measure a timeline of the answer; None if that would take too long, or fails."""
        search, final, budget_s = self.search, self.final, self.search.options.budget_s
        taken_s = final.opened[final.answer].compile_s
        is_over = search.time.spent_s > budget_s
        if is_over or not Pace(taken_s, final.comparison.median(final.answer), taken_s).timeline_s(budget_s):
            return None
        with suppress(SearchError):
            return measured_timeline(search.session, final.candidates.by_name[final.answer], TIMELINE_RUNS)
        return None


def with_lines(result: PlaceResult, following: str | None = None) -> PlaceResult:
    """Return a result with ``lines``: the summary, the files, and the command to run next (``following``)."""
    written = f"The placement is in {result.placement_file}" if result.placement_file else ""
    if result.run_folder is not None:
        written += f"{'; the search' if written else 'The search is'} in {result.run_folder}"
    following = following or next_command(result.placement, result.model_path, result.placement_file, result.run_folder)
    memory = memory_sentence(result.weight_bytes, result.state_bytes_per_token, result.scenarios)
    last = [memory, result.setting, written and f"{written}.", following and f"Next: {following}"]
    return result.model_copy(update={"lines": tuple(filter(None, [*result.summary, *last]))})


def _versions() -> dict[str, str]:
    return {"hsdag": __version__, "openvino": ov.get_version(), "python": platform.python_version()}
