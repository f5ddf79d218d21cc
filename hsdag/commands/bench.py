"""Benchmark the latency and throughput of several candidates in common rounds."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hsdag.base.errors import OptionError, SearchError, checked, chosen, option
from hsdag.base.processes import CandidateFailed
from hsdag.commands.place.comparison import family_ratios
from hsdag.commands.place.load_placement import load_placement
from hsdag.commands.place.loaded_model import ModelInputs
from hsdag.commands.place.records import ScenarioRecord
from hsdag.commands.place.result import PlaceResult
from hsdag.commands.place.session import Session, measured_timeline, placed_candidate
from hsdag.drawing import Displayable
from hsdag.ir.device import DeviceSpec, split_devices
from hsdag.ir.graph.reader import input_shapes
from hsdag.ir.graph.scenario import parse_scenarios
from hsdag.ir.placement.applied import check_openvino
from hsdag.ir.placement.placement import ExecutorName, LatencyRecord, Placement, Record
from hsdag.methods import HINTS
from hsdag.models.registry import names_workload
from hsdag.runtime.machine.devices import DeviceSet, canonical, default_of, make_core, named_devices
from hsdag.runtime.measuring.latency import LatencyComparison, Protocol, Ratio, measure_in_rounds
from hsdag.runtime.measuring.messages import Candidate, Opened
from hsdag.runtime.measuring.runner import PERIOD_S, CandidateRunner
from hsdag.runtime.objectives import LATENCY, THROUGHPUT
from hsdag.runtime.timeline import Timeline
from hsdag.search.options import executor_of, parse_duration
from hsdag.search.solution import InMemory

TARGET = re.compile("(AUTO|HETERO|MULTI|BATCH)(:|$)")
"""Beginning of an OpenVINO target that stands for several devices."""

DEFAULT_TIME = "20s"
"""Time for measuring all candidates together, unless the caller gives a time or a number of inferences."""

ROUNDS = 10
"""Number of rounds into which the inferences of a candidate are divided, so that candidates take turns."""

LOADING = ("submodels", "compile_s", "first_s", "resident_bytes", "device_bytes")
"""Fields of a row that describe the loading of its candidate."""


@dataclass(frozen=True)
class Tuning:
    """Settings named as options of benchmark_app. Raises OptionError for a value out of range.

    Args:
        hint: Performance hint for compiling: one of ``hsdag.methods.HINTS``, or None for the one that fits what is
            measured.
        requests: Number of requests in flight while throughput is measured.
        iterations: Number of inferences of each candidate, rounded up to whole rounds.
    """

    hint: str | None = None
    requests: int | None = None
    iterations: int | None = None

    def __post_init__(self) -> None:
        if self.hint is not None:
            chosen("hint", self.hint, HINTS)
        for name, count in (("requests", self.requests), ("iterations", self.iterations)):
            if count is not None and count < 1:
                raise OptionError(f"{option(name)} must be at least 1, not {count}")

    def properties(self) -> dict[str, Any]:
        """Return the OpenVINO properties with which every candidate is compiled; "none" leaves the hint to OpenVINO."""
        properties: dict[str, Any] = {} if self.hint is None else {"PERFORMANCE_HINT": HINTS[self.hint]}
        return properties if self.requests is None else {**properties, "PERFORMANCE_HINT_NUM_REQUESTS": self.requests}

    def protocol(self, time_s: float | None) -> Protocol:
        """Return how long one comparison measures: by time, by number of inferences, or until both are reached."""
        timed = Protocol(limit_s=time_s or math.inf, max_rounds=100_000, interval_width=0, hopeless=0)
        if self.iterations is None:
            return timed
        rounds = min(ROUNDS, self.iterations)
        most = rounds if time_s is None else timed.max_rounds
        return replace(timed, min_rounds=rounds, max_rounds=most, turn_runs=math.ceil(self.iterations / rounds))


class BenchRow(LatencyRecord):
    """The figures of a candidate: latency of single requests, throughput with several in flight, cost of loading.

    Args:
        ratio: How many times faster than ``versus`` the candidate is.
        ci95: Interval of the ratio, without ends after too few rounds; all intervals hold together with 95%.
        inferences_per_s: Throughput; None if it could not be measured.
        submodels: Number of parts into which the candidate divides the model.
        first_s: Seconds of the first inference.
        resident_bytes: Growth of the process's memory by compiling and the first inference.
        device_bytes: Growth of the memory of its GPUs likewise; None if no device reports it.
        scenario_medians_s: Median latency in each scenario, if there are several; None if it could not be measured.
    """

    name: str
    min_s: float
    max_s: float
    ratio: float
    ci95: list[float | None]
    inferences_per_s: float | None
    submodels: int
    compile_s: float
    first_s: float
    resident_bytes: int
    device_bytes: int | None
    scenario_medians_s: tuple[float | None, ...] = ()


class BenchResult(Displayable, Record):
    """The measured candidates, fastest first, and why the others did not run.

    Args:
        versus: Candidate that ratios refer to, the first one named that ran.
        scenarios: Scenarios of a dynamic model; latencies are weighted means over them.
        failures: Reason for each candidate that did not run.
        in_flight_failures: Reason for each candidate of the rows that has no throughput.
        timeline: Start and end of each part of the only candidate, if asked for; not in the JSON answer.
    """

    versus: str
    scenarios: list[ScenarioRecord]
    rows: list[BenchRow]
    failures: dict[str, str]
    in_flight_failures: dict[str, str]
    timeline: InMemory[Timeline | None] = None

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the column titles and cells of a table with a row for each candidate."""
        cells = []
        for row in self.rows:
            milliseconds = [f"{1e3 * seconds:.4g}" for seconds in (row.median_s, row.mean_s, row.p95_s)]
            low, high = row.ci95
            interval = f"{low:.3f}..{high:.3f}" if low is not None else "too few rounds"
            rate = "-" if row.inferences_per_s is None else f"{row.inferences_per_s:.4g}"
            cells.append([row.name, *milliseconds, str(row.runs), f"{row.ratio:.3f}", interval, rate])
        titles = ["candidate", "median ms", "mean ms", "p95 ms", "runs", f"x {self.versus}", "95% interval"]
        return [*titles, "inferences/s"], cells

    @property
    def said(self) -> list[str]:
        """Return lines with the medians, fastest first, and the reasons why candidates are missing."""
        medians = ", ".join(f"{row.name} {1e3 * row.median_s:.4g} ms" for row in self.rows)
        failures = [f"{name} did not run: {reason}." for name, reason in self.failures.items()]
        return [f"Measured in common rounds: {medians}.", *failures]


def split_targets(devices: Sequence[str | DeviceSpec]) -> tuple[tuple[DeviceSpec, ...], tuple[str, ...]]:
    """Return the single devices to measure, under OpenVINO's names, and the targets such as AUTO:CPU.

    Raises DeviceError for a malformed name, and OptionError for a repeated one.

    Args:
        devices: Texts in which devices are separated by commas; a target extends to the end of its text.
    """
    named: list[DeviceSpec] = []
    targets: list[str] = []
    for device in devices:
        if isinstance(device, DeviceSpec):
            named.append(device)
            continue
        texts = split_devices(device)
        at = next((i for i, text in enumerate(texts) if TARGET.match(text)), len(texts))
        named += map(DeviceSpec.parse, texts[:at])
        targets += [",".join(texts[at:])] if at < len(texts) else []
    specs = tuple(map(canonical, named))
    if len({spec.name for spec in specs}) < len(specs):
        raise OptionError("a device is named twice")
    return specs, tuple(targets)


@checked
def bench(
    model: Any,
    placements: str
    | Path
    | Placement
    | PlaceResult
    | Sequence[str | Path | Placement | PlaceResult]
    | Mapping[str, Placement] = (),
    devices: str | Sequence[str | DeviceSpec] = (),
    *,
    partition_cpu: int | None = None,
    executor: str | None = None,
    time: str | float | None = None,
    tuning: Tuning | None = None,
    seed: int = 0,
    shape: str | Mapping[str, Sequence[int]] | None = None,
    inputs: str | Path | None = None,
    data_shape: str | Sequence[str] = (),
    tokens: str | None = None,
    with_timeline: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> BenchResult:
    """Measure a model's latency and throughput for all candidates in common rounds, as ``hsdag bench`` does.

    Candidates are the placements and devices named, and some to compare them with: a split placement is measured beside
    the best single device that its file names, unless devices are named, and a placement on one device with settings of
    its own beside that device with OpenVINO's, as CPU_default. Raises a ``hsdag.HsdagError`` for what the caller can
    correct.

    Args:
        model: Path or ``ov.Model``; with the executor "cuda" also a workload.
        placements: Placements, their files or the results of searches, or placements by names of your choice.
        devices: Devices such as ``"CPU,GPU.0"`` or targets such as ``"AUTO:CPU"``; by default the CPU if there are no
            placements. With the executor "cuda", torch's devices, by default all.
        partition_cpu: Number of parts of the CPU that are added as candidates, with the whole CPU.
        executor: Executor of the placements; by default the one that each names.
        time: Time for all candidates together: seconds, or a text such as ``"1m"``. The default is 20 s, or as long as
            the inferences take whose number ``tuning`` gives.
        inputs: An .npz file with one array for each input; by default inputs are random.
        data_shape: Scenarios for dynamic inputs, written as at the command line, like ``tokens``; by default those of
            the first placement.
        with_timeline: Whether to record when each part of the candidate runs; there must be only one.
        on_step: Called with a line for each step.

    Examples:
        >>> import hsdag, openvino as ov
        >>> x = ov.opset13.parameter([2], name="x")
        >>> model = ov.Model([ov.opset13.relu(x)], [x], "small")
        >>> result = hsdag.bench(model, devices="CPU", time=0.1)
        >>> [(row.name, row.ratio) for row in result.rows]
        [('CPU', 1.0)]
    """
    placed = _by_name(placements)
    tuning = tuning or Tuning()
    if time is None and tuning.iterations is None:
        time = DEFAULT_TIME
    half_s = None if time is None else parse_duration(time, "time") / 2
    devices = [devices] if isinstance(devices, str) else devices
    compared = Compared.of(placed, devices, partition_cpu, executor, is_traced=with_timeline)
    if compared.on_torch and tuning != Tuning(iterations=tuning.iterations):
        raise OptionError(f"OpenVINO's properties are for its devices: leave them out with {option('executor')} cuda")
    spare = next((placement.model.input_shapes for placement in placed.values()), {})
    placed_shapes = next((placement.data_shapes or () for placement in placed.values()), ())
    scenarios = parse_scenarios(data_shape, tokens) or parse_scenarios(placed_shapes, None)
    model_inputs = ModelInputs(input_shapes(shape), spare, scenarios, None if inputs is None else Path(inputs), seed)
    source, device_set = compared.model_meant_by(model), DeviceSet(compared.devices, ())
    with Session(source, device_set, model_inputs, executor="cuda" if compared.on_torch else "hetero") as session:
        candidates = compared.candidates(session, tuning.properties())
        on_step("measuring latency")
        latency, opened, scenario_s = _measure(session.runner, candidates, tuning.protocol(half_s), seed)
        on_step("measuring throughput")
        for_s = PERIOD_S if tuning.iterations is None else math.inf
        flight = CandidateRunner(session.client, THROUGHPUT, session.runner.limits, (), tuning.requests, for_s)
        throughput, _, _ = _measure(flight, candidates, tuning.protocol(half_s), seed)
        rows = _rows(candidates, latency, throughput, opened, scenario_s)
        return BenchResult(
            versus=next(name for name in candidates if name in latency.samples),
            scenarios=list(map(ScenarioRecord.of, session.scenarios)),
            rows=sorted(rows, key=lambda row: -row.ratio),
            failures=dict(latency.failures),
            in_flight_failures={n: reason for n, reason in throughput.failures.items() if n in latency.samples},
            timeline=measured_timeline(session, next(iter(candidates.values()))) if with_timeline else None,
        )


@dataclass(frozen=True)
class Compared:
    """The placements, single devices and targets to measure, and all ``devices`` that these need but for targets.

    ``executor`` runs the placements; None for the one that each names.
    """

    placements: Mapping[str, Placement]
    alone: tuple[DeviceSpec, ...]
    targets: tuple[str, ...]
    devices: tuple[DeviceSpec, ...]
    executor: ExecutorName | None
    on_torch: bool

    @staticmethod
    def of(
        placed: Mapping[str, Placement],
        devices: Sequence[str | DeviceSpec],
        partition_cpu: int | None,
        executor: str | None,
        *,
        is_traced: bool,
    ) -> Compared:
        """Return the candidates that are named and, unless a single one ``is_traced``, those to compare them with.

        Raises OptionError for what does not fit together, DeviceError for devices that are malformed or absent, and
        PlacementError for placements of other devices than the executor's.
        """
        ran_by = None if executor is None or executor == "auto" else executor_of(executor)
        if ran_by not in (None, "cuda") and not placed:
            raise OptionError(
                f"{option('executor')} chooses what runs a placement: name one with {option('placements')}"
            )
        on_torch = runs_on_torch(ran_by, placed)
        named, targets = (_on_torch(devices, placed), ()) if on_torch else split_targets(devices)
        if not (placed or devices or on_torch or partition_cpu):
            named = (DeviceSpec("CPU", "CPU"),)
        if partition_cpu is not None:
            named = (*named_devices(None, partition_cpu, ["CPU"]).all, *(spec for spec in named if spec.name != "CPU"))
        if not (named or targets or is_traced):
            named = _beside(placed.values())
        if is_traced and len([*named, *targets, *placed]) > 1:
            one = f"one {option('placement')} or one {option('device')}"
            raise OptionError(f"{option('with_timeline')} shows one run: name {one}, and no target")
        alone, specs = _with_placed(named, placed)
        if not on_torch and not is_traced:
            beside = _defaults(placed.values(), [spec.name for spec in alone])
            alone, specs = (*alone, *beside), (*specs, *beside)
        if not on_torch:
            make_core(specs)
        return Compared(placed, alone, targets, specs, ran_by, on_torch)

    def model_meant_by(self, model: Any) -> Any:
        """Return the model; on torch devices a workload named without options is the one that a placement is for."""
        names = [placement.model.name for placement in self.placements.values()] if self.on_torch else []
        workloads = (name for name in names if names_workload(name) and name.partition("[")[0] == str(model))
        return next(workloads, model)

    def candidates(self, session: Session, properties: Mapping[str, Any]) -> dict[str, Candidate]:
        """Return all candidates by name, each compiled with properties beside its own."""
        candidates = {spec.name: Candidate(spec.openvino_name) for spec in self.alone}
        candidates |= {target: Candidate(target) for target in self.targets}
        for name, placement in self.placements.items():
            candidates[name] = placed_candidate(session, name, placement, self.executor or placement.executor)
        return {
            name: replace(candidate, properties={**candidate.properties, **properties})
            for name, candidate in candidates.items()
        }


_PlacementSource: TypeAlias = str | Path | Placement | PlaceResult


def _by_name(
    placements: _PlacementSource | Sequence[_PlacementSource] | Mapping[str, Placement],
) -> Mapping[str, Placement]:
    """Return placements by their names, their files, or their numbers."""
    if isinstance(placements, Mapping):
        return placements
    if isinstance(placements, str | Path | Placement | PlaceResult):
        placements = [placements]
    return dict(map(_named, placements, itertools.count(1)))


def _named(source: _PlacementSource, number: int) -> tuple[str, Placement]:
    return str(source) if isinstance(source, str | Path) else f"placement {number}", load_placement(source)


def runs_on_torch(executor: ExecutorName | None, placements: Mapping[str, Placement]) -> bool:
    """Return whether the CUDA engine runs the candidates, as ``executor`` says, or otherwise the placements.

    Raises OptionError if only some placements are for the CUDA engine, and PlacementError if ``executor`` is another
    one and a placement is for CUDA devices.
    """
    engines = {executor or placement.executor for placement in placements.values()} or {executor or "hetero"}
    if "cuda" in engines and len(engines) > 1:
        raise OptionError("placements for the CUDA engine and OpenVINO have no devices in common; measure them apart")
    if "cuda" in engines:
        return True
    for placement in placements.values():
        check_openvino(placement)
    return False


def _on_torch(devices: Sequence[str | DeviceSpec], placements: Mapping[str, Placement]) -> tuple[DeviceSpec, ...]:
    """Return the torch devices to measure alone, by torch's names or those in placements; by default all CUDA devices.

    With placements, and no devices named, there are none.
    """
    from hsdag.runtime.torch.devices import parse_torch_devices  # only here: it loads torch

    placed_names = {device.name for placement in placements.values() for device in placement.devices}
    texts = [item for device in devices if isinstance(device, str) for item in split_devices(device)]
    unknown = [text for text in texts if text not in placed_names]
    parsed = parse_torch_devices(",".join(unknown)) if unknown else ()
    specs = [device for device in devices if isinstance(device, DeviceSpec)]
    named = (*specs, *(DeviceSpec(text, text) for text in texts if text in placed_names), *parsed)
    return named or (() if placements else parse_torch_devices(None))


def _beside(placements: Iterable[Placement]) -> tuple[DeviceSpec, ...]:
    """Return the devices to compare split placements with.

    For each split these are the best single device of its search, or, if its file names none, every device that it
    uses, and the whole devices of which it uses parts.
    """
    rivals: dict[str, DeviceSpec] = {}
    for placement in placements:
        used, described = placement.used_devices, {device.name: device for device in placement.devices}
        versus = None if placement.speedup is None else placement.speedup.versus
        names = [versus] if versus in described else list(used)
        names += [name for name, device in described.items() if not device.is_added and name not in used]
        rivals |= {name: canonical(described[name]) for name in names if len(used) > 1}
    return tuple(rivals.values())


def _with_placed(
    named: Sequence[DeviceSpec], placements: Mapping[str, Placement]
) -> tuple[tuple[DeviceSpec, ...], tuple[DeviceSpec, ...]]:
    """Return the named devices, and these together with the devices of placements.

    A plain name stands for the device of that name in a placement, if there is one. Raises OptionError if two
    different devices have the same name.
    """
    described: dict[str, DeviceSpec] = {}
    used: list[tuple[str, DeviceSpec]] = []
    for name, placement in placements.items():
        for device in placement.devices:
            spec = canonical(device)
            described.setdefault(spec.name, spec)
            used += [(name, spec)] if device.name in placement.used_devices else []
    alone = tuple(described.get(s.name, s) if s == DeviceSpec(s.name, s.name) else s for s in named)
    specs = {spec.name: spec for spec in alone}
    for name, spec in used:
        if specs.setdefault(spec.name, spec) != spec:
            raise OptionError(f"{name} has another device named {spec.name!r}; measure the two separately")
    return alone, tuple(specs.values())


def _defaults(placements: Iterable[Placement], named: Collection[str]) -> tuple[DeviceSpec, ...]:
    """Return the devices with OpenVINO's default settings on which placements run alone with other settings.

    Devices whose names are in ``named`` are left out.
    """
    specs = {}
    for placement in placements:
        alone = [device for device in placement.devices if placement.used_devices == (device.name,)]
        for spec in (default_of(canonical(device)) for device in alone if device.properties and not device.is_added):
            specs[spec.name] = spec
    return tuple(spec for name, spec in specs.items() if name not in named)


def _measure(
    runner: CandidateRunner, candidates: Mapping[str, Candidate], protocol: Protocol, seed: int
) -> tuple[LatencyComparison, dict[str, Opened], dict[str, tuple[float | None, ...]]]:
    """Measure candidates in common rounds for the whole time of the protocol.

    With several scenarios and the objective latency, the second half of the time is for single scenarios.

    Returns:
        The comparison; the cost of opening each candidate, by name; and its median seconds in each scenario, by name.
    """
    several = len(runner.scenarios) if runner.objective is LATENCY else 0
    if several > 1:
        protocol = replace(protocol, limit_s=protocol.limit_s / 2)
    opened: dict[str, Opened] = {}
    failures: dict[str, str] = {}
    for name, candidate in candidates.items():
        try:
            opened[name] = runner.open(name, candidate)
        except CandidateFailed as failure:
            failures[name] = failure.reason
    comparison = measure_in_rounds(runner.run, list(opened), list(candidates), protocol, np.random.default_rng(seed))
    scenario_s: dict[str, tuple[float | None, ...]] = {}
    if several > 1:
        keys = {f"{name}\n{k}": (name, k) for name in comparison.samples for k in range(several)}

        def run(key: str, runs: int) -> list[float]:
            name, scenario = keys[key]
            return runner.run_scenario(name, runs, scenario)

        by_scenario = measure_in_rounds(run, list(keys), list(keys), protocol, np.random.default_rng(seed))
        medians_s = {key: by_scenario.median(key) if key in by_scenario.samples else None for key in keys}
        for name in comparison.samples:
            scenario_s[name] = tuple(s for key, s in medians_s.items() if keys[key][0] == name)
    for name in opened:
        runner.close(name)
    return LatencyComparison(comparison.samples, {**failures, **comparison.failures}), opened, scenario_s


def _rows(
    candidates: Mapping[str, Candidate],
    latency: LatencyComparison,
    throughput: LatencyComparison,
    opened: Mapping[str, Opened],
    scenario_s: Mapping[str, tuple[float | None, ...]],
) -> list[BenchRow]:
    """Return the row of every candidate that ran. Raises SearchError if none did."""
    alive = [name for name in candidates if name in latency.samples]
    if not alive:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in latency.failures.items())
        raise SearchError(f"no candidate ran the model; {reasons}")
    ratios = {alive[0]: Ratio(1.0, 1.0, 1.0), **family_ratios(latency, alive[1:], alive[0])}
    return [
        BenchRow(
            name=name,
            **latency.samples[name].record().model_dump(),
            min_s=float(latency.samples[name].all_s.min()),
            max_s=float(latency.samples[name].all_s.max()),
            ratio=ratios[name].value,
            ci95=ratios[name].interval,
            inferences_per_s=1.0 / throughput.median(name) if name in throughput.samples else None,
            **{field: getattr(opened[name], field) for field in LOADING},
            scenario_medians_s=scenario_s.get(name, ()),
        )
        for name in alive
    ]
