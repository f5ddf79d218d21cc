"""What a finished search says: its result, with the sentence on the answer. Legend: N ops."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import openvino as ov

from hsdag.ir.errors import SearchError
from hsdag.ir.graph.colocation import held_bytes
from hsdag.ir.placement.placement import Placement, SpeedupRecord
from hsdag.placing.final import FinalResult, family_ratios
from hsdag.placing.limits import faster_but_disallowed, ignored
from hsdag.placing.measured_trace import measured_timeline
from hsdag.placing.result import CostsRecord, Member, PlaceResult, Row, Tally, TimelineRecord
from hsdag.placing.searching import SearchSummary
from hsdag.placing.session import Session
from hsdag.runtime.machine.usable import usable_cpus
from hsdag.runtime.measuring.caches import identity
from hsdag.runtime.measuring.candidate import Candidate, automatic_targets
from hsdag.runtime.measuring.latency import MIN_ROUNDS_TO_CLAIM, Ratio
from hsdag.runtime.objectives import LATENCY
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.search.driver import budget_shortage
from hsdag.search.options import PlaceOptions
from hsdag.search.run_folder import PlanRecord
from hsdag.version import __version__

NO_SINGLE = "No single device runs the whole model"

UNDER_HETERO, BY_LEVEL = "HETERO:", "BARRIER:"
"""What goes before the name of a placement that HETERO, or a bulk-synchronous loop, runs for comparison."""

START = "start"
"""The name of the placement that the search started with."""

TIMELINE_SHARE, TIMELINE_RUNS = 0.2, 5
"""A timeline of the answer is measured where compiling it takes at most this share of the budget; and its runs."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """A finished comparison, from which the result is computed.

    ``plans`` are the finalists by name, ``too_large`` says of devices that lack the memory for the model why they do.
    ``found`` is None where there was one device only, so that nothing was searched.
    """

    session: Session
    problem: Problem
    options: PlaceOptions
    found: SearchSummary | None
    plans: Mapping[str, Plan]
    result: FinalResult
    too_large: Mapping[str, str]

    def place_result(self, placement_file: Path | None, answer: Candidate, *, interrupted: bool) -> PlaceResult:
        """The result; where the search is kept on disk, with a measured run of the answer if there is time for one."""
        found, result, objective = self.found, self.result, self.options.objective
        subject, folder = self.session.subject, None if found is None else found.folder
        sentence, warnings, rows = self.sentence(), self.warnings(), self.rows()
        if interrupted and not self.plans:
            sentence = (
                f"The search was interrupted before it measured a split; the placement is all on {result.answer}."
            )
        too_large = {name: f"it was left out: {why}" for name, why in self.too_large.items()}
        return PlaceResult(
            sentence=" ".join([sentence, *(f"Warning: {warning}." for warning in warnings)]),
            objective=objective.name,
            unit=objective.unit,
            value=next(row.median for row in rows if row.is_answer),
            placement=self.placement(),
            placement_file=None if placement_file is None else str(placement_file),
            rows=rows,
            failures={**too_large, **result.comparison.failures},
            turned_down=turned_down(result, list(self.plans)) | faster_but_disallowed(result),
            verdict=result.verdicts[result.answer],
            finalists={name: PlanRecord.of(plan, len(self.session.devices.all)) for name, plan in self.plans.items()},
            tally=Tally() if found is None else Tally.of(found.recorder.events, found.num_simulated),
            members=() if found is None else tuple(Member.of(each) for each in found.contributions),
            search_s=0.0 if found is None else found.search_s,
            budget_s=self.options.budget_s,
            interrupted=interrupted,
            warnings=warnings,
            weight_bytes=self.weight_bytes(),
            run_folder=None if folder is None else folder.path,
            model_path=None if subject.name is None or subject.is_workload else str(subject.path.resolve()),
            environment=self.environment(),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            samples={name: [list(each) for each in own.rounds] for name, own in result.comparison.samples.items()},
            costs=None if found is None else CostsRecord.of(found.costs),
            timeline=None if folder is None or interrupted else self.timeline(answer),
        )

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
            record, ratio = samples.record(), self.result.ratios[name]
            row = Row(
                name=name,
                median=self.result.comparison.median_s(name),
                p95=record.p95_s,
                runs=record.runs,
                ratio=ratio.value,
                ci95=(ratio.low, ratio.high) if ratio.is_known else (None, None),
                rounds=ratio.num_rounds,
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
            target = automatic_candidates(self.session)[name].target
            chosen = Counter(shown.get(device, device) for device in self.session.automatic_ops(target))
            return {device: count for device, count in chosen.items() if device}
        devices = self.result.opened[name].devices
        return {shown.get(devices[0], devices[0]): self.session.graph.num_ops} if len(devices) == 1 else {}

    def sentence(self) -> str:
        """The answer in one sentence."""
        result, comparison = self.result, self.result.comparison
        if self.found is None:
            return self._alone()
        over = family_ratios(comparison, list(automatic_candidates(self.session)), result.answer)
        twin = f"{BY_LEVEL if self.session.is_on_torch else UNDER_HETERO}{result.answer}"
        gain = comparison.ratio(result.answer, twin) if twin in comparison.samples else None
        uncompared = self._why_uncompared(self.found)
        ratio = result.ratios[result.answer]
        gained = comparison.ratio(result.answer, START) if START in comparison.samples else None
        return speed_sentence(
            *(result.answer, result.best_single, ratio, over, turned_down(result, list(self.plans)), gain, uncompared),
            over_start=gained,
            disallowed=faster_but_disallowed(result),
            ignored=ignored(self.options),
            no_single="No device has the memory for the whole model" if self.too_large else NO_SINGLE,
            twin="a bulk-synchronous run" if self.session.is_on_torch else "HETERO",
            takes=self.options.objective.takes,
        )

    def warnings(self) -> tuple[str, ...]:
        """Why nothing was simulated, what was not measured, and idle devices; sentences without a full stop."""
        unprofiled = self.found.unprofiled if self.found is not None else None
        peaks = "peaks of memory are simulated, with the sizes of the profile"
        counted = peaks if self.options.objective.counts_memory else None
        return (*filter(None, [unprofiled, counted]), *self._idle())

    def _idle(self) -> tuple[str, ...]:
        """Which devices of the list have nothing to do, and why; at most one sentence."""
        result, answer = self.result, self.result.answer
        better = better_word(self.options.objective.takes)
        used = set(self._devices_of(answer) or [answer])
        idle = [spec.name for spec in self.session.devices.placed if spec.name not in used]
        if not idle or len(self.session.devices.placed) == 1:
            return ()
        if answer in self.plans and self.too_large:
            reason = f"the model's weights and state fit into {' and '.join(sorted(used))}"
        elif answer in self.plans:
            reason = f"no placement that was compared and uses every device is {better}"
        elif set(idle) <= set(result.disallowed) and result.verdicts.keys() & set(idle):
            reason = result.disallowed[idle[0]]
        elif any(v.reason is not None for n, v in result.verdicts.items() if n not in (answer, *result.disallowed)):
            reason = f"the {better} placements were rejected"
        elif any(name in result.comparison.samples for name in self.plans):
            reason = f"no split placement was measured to be {better} than {answer}"
        else:
            reason = "no split placement was compared"
        return (idle_sentence(idle, reason),)

    def weight_bytes(self) -> dict[str, float]:
        """Weights and state by device, of the answer; empty where it is on a device that is not placed on."""
        index = {name: d for d, name in enumerate(self.problem.devices)}
        devices = self._devices_of(self.result.answer) or [self.result.answer] * self.session.graph.num_ops
        if not set(devices) <= set(index):
            return {}
        held = held_bytes(self.session.graph, np.array([index[name] for name in devices]), self.session.widens)
        return dict(zip(self.problem.devices, held.tolist(), strict=True))

    def _why_uncompared(self, found: SearchSummary) -> str | None:
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
        compile_s = max(opened.compile_s for opened in self.result.opened.values())
        shortage = budget_shortage(self.options.budget_s, compile_s, found.left_s)
        reason = f", since the method {self.options.method} proposed none" if shortage is None else f": {shortage}"
        return f"no split placement was tried{reason}"

    def timeline(self, answer: Candidate) -> TimelineRecord | None:
        """A measured run of the answer; None where that takes too long, or fails."""
        if self.result.opened[self.result.answer].compile_s > TIMELINE_SHARE * self.options.budget_s:
            return None
        with suppress(SearchError):
            return TimelineRecord.of(measured_timeline(self.session, answer, TIMELINE_RUNS))
        return None

    def environment(self) -> dict[str, str]:
        """Versions, and the hardware of every device by its full name."""
        devices = self.session.devices.all
        return {
            "hsdag": __version__,
            "openvino": ov.get_version(),
            "python": platform.python_version(),
            "system": platform.platform(),
            "processors": str(usable_cpus()),
            **{f"device {spec.name}": str(identity(spec).get("hardware", "")) for spec in devices},
        }

    def _alone(self) -> str:
        """The sentence where nothing was searched."""
        only, name = self.session.devices.placed[0].name, self.result.answer
        figure = f"{name} takes {self.options.objective.text(self.result.comparison.median_s(name))}"
        advice = "name a second device with --devices, or share the CPU out with --partition-cpu 2"
        if self.session.is_on_torch:
            advice = "name a second device with --devices, such as A=cpu[threads=1],B=cpu[threads=1]"
        return f"{only} is the only device to place on, so nothing can be gained; {figure}; {advice}."


def automatic_candidates(session: Session) -> dict[str, Candidate]:
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


def idle_sentence(idle: Sequence[str], reason: str) -> str:
    """Which devices have nothing to do, and why."""
    return f"{' and '.join(idle)} {'get' if len(idle) > 1 else 'gets'} nothing: {reason}"


def speed_sentence(
    answer: str,
    best_single: str | None,
    ratio: Ratio,
    rivals: Mapping[str, Ratio],
    turned_down: Mapping[str, str] | None = None,
    over_hetero: Ratio | None = None,
    uncompared: str | None = None,
    *,
    over_start: Ratio | None = None,
    disallowed: Mapping[str, str] | None = None,
    ignored: str | None = None,
    no_single: str = NO_SINGLE,
    twin: str = "HETERO",
    takes: str = LATENCY.takes,
) -> str:
    """One sentence on the answer.

    ``rivals`` are OpenVINO's own choices, as ratios over the answer; ``turned_down`` are faster placements with
    the reason why they are not the answer, and the answer itself where there is an objection; ``over_hetero`` is
    what another executor gains over HETERO, or what ``twin`` names, with the same placement; ``uncompared`` is why no
    split was compared; ``over_start`` is what the answer gains over the placement that the search started with;
    ``disallowed`` says why candidates that are faster can be no answer, and why the best single device can be none;
    ``ignored`` is what OpenVINO's own choices are made without; ``no_single``
    says why there is no single device to compare with, where there is none; a plan ``takes`` so many times as long, or
    as much of what the objective counts.
    """
    faster_word = better_word(takes)
    turned_down, others = dict(turned_down or {}), dict(disallowed or {})
    no_answer = None if best_single is None else others.pop(best_single, None)
    objection = turned_down.pop(answer, None)
    reasons = "; ".join(f"{name} was {faster_word}, but {reason}" for name, reason in turned_down.items())
    if best_single is None:
        sentence = f"{no_single}; the placement does"
    elif no_answer is not None:
        sentence = (
            f"The best single device, {best_single}, can be no answer: {no_answer}; "
            f"it takes {ratio.value:.2f} {takes} {'as' if takes == LATENCY.takes else 'of'} the placement "
            f"{_interval(ratio)}"
        )
    elif answer == best_single and (reasons or uncompared):
        reasons = reasons or f"{uncompared}"
        sentence = f"{reasons[:1].upper()}{reasons[1:]}; the placement is all on {best_single}"
    elif answer == best_single:
        sentence = f"No placement beat {best_single}; the placement is all on {best_single}"
    elif takes != LATENCY.takes:
        sentence = f"The best single device, {best_single}, takes {ratio.value:.2f} {takes} of the placement"
        sentence += f" {_interval(ratio)}"
    else:
        gain = f"{100 * (ratio.value - 1):.1f}% faster (95% interval {100 * (ratio.low - 1):.1f}% to"
        sentence = f"The placement is {gain} {100 * (ratio.high - 1):.1f}%) than the best single device, {best_single}"
    if over_hetero is not None:
        sentence += f"; {twin} takes {over_hetero.value:.2f} {takes} with the same placement {_interval(over_hetero)}"
    if over_start is not None and over_start.value != 1.0:
        sentence += f"; the one to start with takes {over_start.value:.2f} {takes} {_interval(over_start)}"
    elif over_start is not None:
        sentence += "; it is the one to start with"
    faster = [name for name, over in rivals.items() if over.is_faster]
    if faster:
        names = " and ".join(faster)
        sentence += f"; OpenVINO's own {names} measured {faster_word} than the placement"
        sentence += f" {ignored}" if ignored is not None else ""
    for name, reason in others.items():
        sentence += f"; {name} was {faster_word}, but can be no answer: {reason}"
    if objection is not None:
        sentence += f"; note that {objection}"
    return sentence + "."


def better_word(takes: str) -> str:
    """What a plan is called that takes less."""
    return "faster" if takes == LATENCY.takes else "better"


def too_few_rounds(ratios: Mapping[str, Ratio]) -> dict[str, str]:
    """Why placements that seem faster than the best single device are not the answer, where rounds were too few."""
    why = f"too few to say so where {MIN_ROUNDS_TO_CLAIM} are needed: raise --budget"
    return {
        name: f"in {ratio.num_rounds} rounds only, {why}"
        for name, ratio in ratios.items()
        if ratio.value > 1.0 and not ratio.is_known
    }


def turned_down(result: FinalResult, finalists: Sequence[str]) -> dict[str, str]:
    """Why candidates that seem faster are not the answer, and what there is to object to the answer itself."""
    others = [name for name in finalists if name in result.ratios and name != result.answer]
    reasons = {name: verdict.reason for name, verdict in result.verdicts.items() if verdict.reason is not None}
    found = too_few_rounds({name: result.ratios[name] for name in others}) | reasons
    return {name: why for name, why in found.items() if name not in result.disallowed}


def _interval(ratio: Ratio) -> str:
    if not ratio.is_known:
        return f"(from {ratio.num_rounds} rounds, too few for an interval)"
    return f"(95% interval {ratio.low:.2f} to {ratio.high:.2f})"
