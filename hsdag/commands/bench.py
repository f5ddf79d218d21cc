"""Benchmarking: latency and throughput of several candidates in common rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hsdag.commands.measured_trace import measured_timeline
from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import OptionError, PlacementError, SearchError
from hsdag.ir.placement import ExecutorName, LatencyRecord, Placement
from hsdag.runtime.measuring.candidate import Candidate, CandidateRunner
from hsdag.runtime.measuring.latency import Comparison, Protocol, Ratio, compare
from hsdag.runtime.measuring.worker_client import CandidateFailed
from hsdag.runtime.platforms.devices import DeviceSet, make_core
from hsdag.runtime.problems.objectives import find_objective
from hsdag.runtime.problems.objectives.throughput import THROUGHPUT
from hsdag.runtime.timeline.timeline import Timeline
from hsdag.search.final import family_ratios
from hsdag.search.session import Session


@dataclass(frozen=True)
class BenchRow:
    """One candidate: latency of single requests, and inferences per second with several in flight."""

    name: str
    latency: LatencyRecord
    ratio: Ratio
    inferences_per_s: float | None
    submodels: int


@dataclass(frozen=True)
class BenchResult:
    """Rows, fastest first, and why the others did not run. Ratios are over the first candidate named.

    ``in_flight_failures`` say why candidates of ``rows`` have no throughput.
    """

    rows: tuple[BenchRow, ...]
    failures: Mapping[str, str]
    versus: str
    timeline: Timeline | None = None
    in_flight_failures: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        """The JSON answer of ``hsdag bench``."""
        rows = [
            {
                "name": row.name,
                **row.latency.model_dump(),
                "ratio": row.ratio.value,
                "ci95": row.ratio.interval,
                "inferences_per_s": row.inferences_per_s,
                "submodels": row.submodels,
            }
            for row in self.rows
        ]
        failures = {"failures": dict(self.failures), "in_flight_failures": dict(self.in_flight_failures)}
        return {"versus": self.versus, "rows": rows, **failures}


def split_targets(
    devices: Sequence[str | DeviceSpec], *, or_cpu: bool
) -> tuple[tuple[DeviceSpec, ...], tuple[str, ...]]:
    """Devices to measure alone, and targets of OpenVINO such as AUTO:CPU; the CPU where none is named, if ``or_cpu``.

    Raises DeviceError for an unknown device, OptionError for a device that is named twice.
    """
    texts = [device for device in devices if isinstance(device, str)]
    targets = tuple(text for text in texts if ":" in text or text in ("AUTO", "HETERO"))
    named = (device for device in devices if device not in targets)
    specs = tuple(DeviceSpec.parse(device) if isinstance(device, str) else device for device in named)
    if len({spec.name for spec in specs}) < len(specs):
        raise OptionError("a device is named twice")
    return (specs if devices or not or_cpu else (DeviceSpec("CPU", "CPU"),)), targets


def run_bench(
    source: Any,
    devices: Sequence[DeviceSpec],
    placements: Mapping[str, Placement],
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    inputs: Path | None = None,
    seed: int = 0,
    protocol: Protocol | None = None,
    targets: Sequence[str] = (),
    with_timeline: bool = False,
    executor: ExecutorName | None = None,
) -> BenchResult:
    """Measure a model on devices alone, under placements (by shown name), and on OpenVINO targets.

    A placement is run by the executor its file names, or by ``executor``. ``with_timeline`` adds that of the first
    candidate.

    Raises PlacementError when a placement is for another model, DeviceError when a device is absent, and ModelError
    where the work-conserving executor cannot run the model.
    """
    protocol = protocol or Protocol()
    specs = _all_devices(devices, placements)
    make_core(specs)
    spare = next((placement.model.input_shapes for placement in placements.values()), {})
    with Session(source, DeviceSet(specs, ()), shapes=shapes, spare=spare, inputs=inputs, seed=seed) as session:
        candidates = {spec.name: Candidate.on_device(spec) for spec in devices}
        candidates |= {target: Candidate(target) for target in targets}
        for name, placement in placements.items():
            candidates[name] = placed_candidate(session, name, placement, executor or placement.executor)
        if not candidates:
            raise OptionError("nothing to measure: name a --device or a --placement")
        half = replace(protocol, limit_s=protocol.limit_s / 2)
        latency, submodels = _measure(session.runner, candidates, half, np.random.default_rng(seed))
        flight = CandidateRunner(session.client, THROUGHPUT, session.runner.limits)
        throughput, _ = _measure(flight, candidates, half, np.random.default_rng(seed))
        timeline = measured_timeline(session, next(iter(candidates.values()))) if with_timeline else None
    return replace(_result(candidates, latency, throughput, submodels), timeline=timeline)


def _all_devices(devices: Sequence[DeviceSpec], placements: Mapping[str, Placement]) -> tuple[DeviceSpec, ...]:
    found = {spec.name: spec for spec in devices}
    for name, placement in placements.items():
        for device in placement.devices:
            spec = device.spec()
            if device.name not in placement.used_devices:
                continue
            known = found.setdefault(spec.name, spec)
            if (known.plugin, dict(known.properties)) != (spec.plugin, dict(spec.properties)):
                raise OptionError(f"{name} has another device named {spec.name!r}; measure the two separately")
    return tuple(found.values())


def placed_candidate(session: Session, name: str, placement: Placement, executor: ExecutorName) -> Candidate:
    """A placement file as something to measure. Raises PlacementError when it is for another model."""
    names = {device.name: device.spec().openvino_name for device in placement.devices}
    try:
        devices = [names[device] for device in placement.devices_of(session.graph)]
    except PlacementError as error:
        raise PlacementError(f"{name}: {error}") from error
    if executor == "hetero":
        return Candidate.placed(devices)
    priority = placement.priority_of(session.graph)
    order = [names[device.name] for device in placement.devices]
    return Candidate.side_by_side(devices, order, priority, find_objective(placement.objective))


def _measure(
    runner: CandidateRunner, candidates: Mapping[str, Candidate], protocol: Protocol, rng: np.random.Generator
) -> tuple[Comparison, dict[str, int]]:
    submodels: dict[str, int] = {}
    failures: dict[str, str] = {}
    for name, candidate in candidates.items():
        try:
            submodels[name] = runner.open(name, candidate).submodels
        except CandidateFailed as failure:
            failures[name] = failure.reason
    comparison = compare(runner.run, list(submodels), list(candidates), protocol, rng)
    for name in submodels:
        runner.close(name)
    return Comparison(comparison.samples, {**failures, **comparison.failures}), submodels


def _result(
    candidates: Mapping[str, Candidate], latency: Comparison, throughput: Comparison, submodels: Mapping[str, int]
) -> BenchResult:
    alive = [name for name in candidates if name in latency.samples]
    if not alive:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in latency.failures.items())
        raise SearchError(f"no candidate ran the model; {reasons}")
    versus = alive[0]
    ratios = {versus: Ratio(1.0, 1.0, 1.0), **family_ratios(latency, alive[1:], versus)}
    rows = [
        BenchRow(
            name=name,
            latency=latency.samples[name].record(),
            ratio=ratios[name],
            inferences_per_s=1.0 / throughput.median_s(name) if name in throughput.samples else None,
            submodels=submodels[name],
        )
        for name in alive
    ]
    in_flight = {name: reason for name, reason in throughput.failures.items() if name in latency.samples}
    by_latency = tuple(sorted(rows, key=lambda row: row.latency.median_s))
    return BenchResult(by_latency, latency.failures, versus, in_flight_failures=in_flight)
