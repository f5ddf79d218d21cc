"""PlacedAnswer: what a finished comparison says: the placement, the rows of the table, and the sentence.

Legend: N ops.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import openvino as ov

from hsdag.commands.outcome import NO_SINGLE, Row, Tally, better_word, idle_sentence, speed_sentence, turned_down
from hsdag.ir.held import held_bytes
from hsdag.ir.placement import Placement, SpeedupRecord
from hsdag.runtime.measuring.candidate import Candidate, automatic_targets
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem
from hsdag.search.barred import faster_but_barred, unheld
from hsdag.search.driver import budget_shortage
from hsdag.search.final import FinalResult, family_ratios
from hsdag.search.options import PlaceOptions
from hsdag.search.searching import Found
from hsdag.search.session import Session
from hsdag.version import __version__

UNDER_HETERO, BY_LEVEL = "HETERO:", "BARRIER:"
"""What goes before the name of a placement that HETERO, or a bulk-synchronous loop, runs for comparison."""

START = "start"
"""The name of the placement that the search started with."""


@dataclass(frozen=True, eq=False)
class PlacedAnswer:
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
            barred=faster_but_barred(result),
            unheld=unheld(self.options),
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
        elif set(idle) <= set(result.barred) and result.verdicts.keys() & set(idle):
            reason = result.barred[idle[0]]
        elif any(v.reason is not None for n, v in result.verdicts.items() if n not in (answer, *result.barred)):
            reason = f"the {better} placements were rejected"
        elif any(name in result.comparison.samples for name in self.plans):
            reason = f"no split placement was measured to be {better} than {answer}"
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
