"""The measuring process, which compiles, runs and compares candidates and answers about devices, request by request.

It has no state that is worth keeping, so that it can be killed at any time. Legend: N ops of the model.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import compress, cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov
import psutil

from hsdag.base.errors import ExecutionError
from hsdag.base.processes import Compiling, main
from hsdag.ir.device import DeviceIndex, DeviceSpec, hetero_properties
from hsdag.ir.elements import array_of
from hsdag.ir.placement.copies import CopiedModel
from hsdag.ir.placement.prepared import COPY_MARK
from hsdag.runtime.machine.devices import PRECISION, device_calls, infer_checked, make_core, property_text
from hsdag.runtime.machine.settings import Offer
from hsdag.runtime.measuring.candidates import Compiler, OpenCandidates
from hsdag.runtime.measuring.differences import CPU_IN_SINGLE, halved, op_alone, output_difference, outputs_on, up_to
from hsdag.runtime.measuring.inferences import (
    REQUESTS_IN_FLIGHT,
    CourseRunner,
    make_courses,
    repeats,
    requests_in_flight,
    steady_period_s,
)
from hsdag.runtime.measuring.measured_model import MeasuredModel
from hsdag.runtime.measuring.measurer import OpenVinoMeasurer
from hsdag.runtime.measuring.messages import (
    Beside,
    CallHandler,
    Candidate,
    CountedTimes,
    DeviceFacts,
    Distance,
    Opened,
    OpTimes,
    Precision,
    Primitive,
    Probe,
    Probed,
    WorkerSetup,
)
from hsdag.runtime.measuring.probes import COUNTERS, probe, probe_model, probe_request, stretch, sync_s, times_beside
from hsdag.runtime.timeline import Timeline

DRIVER = re.compile(rb"\bdriver=([^;\]]+)")
"""Driver version in the first bytes of a model that the GPU plugin has compiled."""

HEADER_BYTES = 4096

_PLAIN, _COUNTED, _TRACED, _BY_DEFAULT = "plain profile", "counted profile", "timeline", "in the default precision"

RANDOM_ALIKE = 0.1
"""Relative difference of outputs above which they were computed from different random numbers."""


class Worker(CallHandler):
    """The measuring process of OpenVINO: one model on one set of devices."""

    def __init__(self, setup: WorkerSetup, tell: Callable[[Compiling], None] = lambda _: None) -> None:
        self.measured = MeasuredModel(setup)
        self.compiler = Compiler(self.measured, tell)
        self.candidates = OpenCandidates(self.compiler)
        self._probes: dict[object, Any] = {}  # requests of small models, and of the model on devices side by side
        if setup.devices:  # now, so that they do not count against the limit of the first request
            _ = self.measured.courses

    def open(self, key: str, candidate: Candidate, inference_limit_s: float | None = None) -> Opened:
        """Compile a candidate under a key, and check that an inference of it succeeds; see ``OpenCandidates``."""
        return self.candidates.open(key, candidate, inference_limit_s)

    def close(self, key: str) -> None:
        """Close a candidate, if there is one."""
        self.candidates.close(key)

    def run(self, key: str, runs: int, stop_after_s: float, scenario: int | None = None) -> list[float]:
        """Return the seconds of each of ``runs`` inferences, ending early after ``stop_after_s`` in all.

        They are those of the scenario with an index, or weighted means over all scenarios.
        """
        runner = self.candidates.requests[key]
        with device_calls():
            return [
                runner.weighted_s() if scenario is None else runner.seconds(runner.courses[scenario])
                for _ in repeats(runs, stop_after_s)
            ]

    def throughput(self, key: str, requests: int | None, runs: int, most_s: float = math.inf) -> float:
        """Return the seconds per inference with ``requests`` in flight over ``runs``, fewer after ``most_s`` seconds.

        Without ``requests`` there are as many as the device asks for.
        """
        compiled = self.candidates.compiled[key]
        count = requests or REQUESTS_IN_FLIGHT
        if isinstance(compiled, CopiedModel):
            count = max(count, compiled.num_in_flight)
        elif hasattr(compiled, "get_property") and requests is None:  # one of OpenVINO's own
            asked_for = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
            count = requests_in_flight(asked_for, len(compiled.get_property("EXECUTION_DEVICES")))
        with device_calls():
            runners = [self.measured.runner(compiled) for _ in range(count)]
            period_s = 0.0
            for course in self.measured.courses:
                period_s += course.share * steady_period_s([runner.stream(course) for runner in runners], runs, most_s)
            return period_s

    def offer(self, key: str, name: str) -> Offer:
        """Return what a device, by OpenVINO's name, lets one set, and what it has set for the candidate of a key."""
        with device_calls():
            return Offer.of(self.compiler.core, name, self.candidates.compiled[key])

    def timeline(self, candidate: Candidate, runs: int, inference_limit_s: float | None = None) -> Timeline:
        """Return when each part of a work-conserving candidate ran, in the median of ``runs`` inferences.

        Two more come first, to warm up.
        """
        timed: list[tuple[float, Timeline]] = []
        self.open(_TRACED, candidate, inference_limit_s)
        try:
            runner = self.candidates.requests[_TRACED]
            for _ in range(runs + 2):
                runner.seconds(self.measured.courses[0])
                timed.append((runner.request.latency, runner.request.timeline))
        finally:
            self.close(_TRACED)
        return sorted(timed[2:], key=lambda run: run[0])[(runs - 1) // 2][1]

    def difference(self, key: str, reference: str) -> Distance:
        """Return the distance of the outputs of one candidate from those of another on the same inputs.

        If the model draws random numbers, outputs that depend on these are compared in the first inferences after
        compiling, where every draw has a seed; with another precision, devices draw other numbers. Raises
        ExecutionError if there is nothing to compare.
        """
        drawn, outputs = self.measured.drawn, self.candidates.outputs
        if not any(drawn):
            return output_difference(outputs(key), outputs(reference))
        by_chance = self._by_chance(key, reference)
        if not all(drawn):
            others = [not is_drawn for is_drawn in drawn]
            sure = output_difference(*(list(compress(outputs(k), cycle(others))) for k in (key, reference)))
            return sure if by_chance is None else max(sure, by_chance, key=_apart)
        if by_chance is None:
            name, _ = next(self.measured.all_draws())
            raise ExecutionError(
                f"all outputs depend on random numbers, which {name!r} draws without a seed, or not as the CPU does in "
                "the same precision"
            )
        return by_chance

    def _by_chance(self, key: str, reference: str) -> Distance | None:
        """Return the distance of outputs that depend on random numbers; None if these are not repeatable."""
        if not all(draw["global_seed"] or draw["op_seed"] for _, draw in self.measured.all_draws()):
            return None
        firsts, drawn = self.candidates.firsts, self.measured.drawn
        with suppress(ExecutionError):
            self.open(_BY_DEFAULT, Candidate("CPU"))
        opinions = [firsts[k] for k in (reference, _BY_DEFAULT) if k in firsts]
        self.close(_BY_DEFAULT)
        outputs = list(compress(firsts[key], cycle(drawn)))
        distances = [output_difference(outputs, list(compress(other, cycle(drawn)))) for other in opinions]
        best = min(distances, key=_apart)
        return best if _apart(best) <= RANDOM_ALIKE else None

    def choices(
        self, target: str, devices: Sequence[DeviceSpec] = (), properties: Mapping[str, str] | None = None
    ) -> list[str]:
        """Return [N] the device that ``target`` would choose for each op, by OpenVINO's name; "" for ops it lacks.

        ``devices`` are loaded for the question if the process has not loaded them yet; HETERO keeps their
        properties, gets its own ``properties``, and runs the same code when it compiles a model.
        """
        core = self.compiler.core_of(devices)
        options = hetero_properties(devices, properties) if target.startswith("HETERO:") else dict(properties or {})
        with self.compiler.compiling(target), device_calls():  # a plugin may have to compile to know
            chosen = core.query_model(self.measured.model, target, options)
        return [str(chosen.get(name, "")) for name in self.measured.graph.op_names]

    def op_times(self, candidate: Candidate, of: str, runs: int, for_s: float, again_s: float = math.inf) -> OpTimes:
        """Return the times of the model's ops in a candidate, as the function ``op_times`` does.

        The answer also has the memory of device ``of``, the growth of the process by compiling, and the seconds it
        took. If compiling takes longer than ``again_s``, it is done once, and the latency is that with performance
        counters.
        """
        try:
            opened = self.open(_COUNTED, replace(candidate, properties=COUNTERS))
            if opened.compile_s <= again_s:
                self.open(_PLAIN, candidate)
            counted = self.candidates.requests[_COUNTED]
            plain = self.candidates.requests.get(_PLAIN, counted)
            compiled = self.candidates.compiled[_COUNTED]
            answer = op_times(counted, plain, compiled, self.measured.graph.op_names, runs, for_s)
        finally:
            for key in (_COUNTED, _PLAIN):
                self.close(key)
        return {
            **answer,
            "compile_s": opened.compile_s,
            "first_s": opened.first_s,
            "resident_bytes": opened.resident_bytes,
            "device_bytes": opened.device_bytes,
            "memory_bytes": device_memory_bytes(self.compiler.core, of),
        }

    def probe(self, what: Probe) -> Probed:
        """Return the figures of a probe; its model is kept until ``forget_probes``."""
        key = what.devices, what.kind, what.tensors, what.size_bytes
        if key not in self._probes:
            with device_calls():
                self._probes[key] = probe_request(self.compiler.core, self.compiler.specs, what)
        return probe(self._probes[key], what)

    def pulse(self) -> list[float]:
        """Return the seconds of the same small model on each physical device, at all of them at once.

        They show how much of the machine is available now.
        """
        with device_calls():
            if "pulse" not in self._probes:
                model, core = probe_model("compute"), self.compiler.core
                names = dict.fromkeys(spec.plugin for spec in self.compiler.specs)
                requests = [core.compile_model(model, name).create_infer_request() for name in names]
                for request in requests:
                    infer_checked(request)
                self._probes["pulse"] = requests
            return stretch(self._probes["pulse"])

    def forget_probes(self) -> None:
        """Release the compiled models of probes and of devices side by side."""
        self._probes.clear()

    def sync(self, devices: Sequence[DeviceSpec], what: Probe) -> float:
        """Return the seconds of a sync of two devices, by a probe."""
        with self.compiler.compiling(",".join(what.devices)), device_calls():
            return sync_s(self.compiler.core_of(devices), devices, what)

    def contention(
        self, devices: Sequence[DeviceSpec], kind: str, whole_devices: Sequence[DeviceSpec] = ()
    ) -> Beside | None:
        """Measure one window of devices alone and side by side, and of ``whole_devices`` alone.

        ``kind`` is "compute" or "memory", small models bound by either, or "model"; None for a model that keeps state,
        which may take longer every time. Compiled models are kept until ``forget_probes``.
        """
        if kind == "model" and self.measured.has_state:
            return None
        key = kind, DeviceIndex.of((*devices, *whole_devices)).openvino_names
        if key not in self._probes:
            self._probes[key] = _requests_beside(self.compiler, (*devices, *whole_devices), kind)
        return times_beside(self._probes[key], len(whole_devices))

    @device_calls()
    def compare_outputs(
        self, devices: tuple[DeviceSpec, DeviceSpec], op: str | None = None, *, alone: bool = False
    ) -> Distance:
        """Return the distance of the first device's results from the second's, of the model or its part up to ``op``.

        If ``alone``, only the op runs on both devices, on the inputs that the second one computes for it.
        """
        model, courses = self.measured.model, self.measured.courses
        if op is not None and alone:
            model, courses = op_alone(model, op, devices[1], courses)
        elif op is not None:
            model = up_to(model, (op,))
        return output_difference(*(outputs_on(spec, model, courses) for spec in devices))

    @device_calls()
    def compare_shrunk(self, device: DeviceSpec) -> Distance | None:
        """Return the distance of outputs on half of typical data after an inference on all of it, from a new request's.

        None if half of the data is no valid input of the model.
        """
        model, larger = self.measured.model, self.measured.courses[0].inferences[-1]
        smaller = [halved(port, tensor) for port, tensor in zip(model.inputs, larger, strict=True)]
        compiled = make_core((device,)).compile_model(model, device.openvino_name)
        used, new = compiled.create_infer_request(), compiled.create_infer_request()
        used.infer(list(larger))
        try:
            new.infer(smaller)
            used.infer(smaller)
        except RuntimeError:  # halves of these inputs may contradict each other
            return None
        outputs = (
            [array_of(request.get_output_tensor(k)) for k in range(len(model.outputs))] for request in (used, new)
        )
        return output_difference(*outputs)

    @device_calls()
    def list_devices(self, plugin: str | None = None) -> tuple[str, ...]:
        """Return the names of the devices that OpenVINO, or one plugin, finds; empty if the plugin is missing."""
        core = ov.Core()
        if plugin is None:
            return tuple(str(name) for name in core.available_devices)
        try:
            ids = [str(number) for number in core.get_property(plugin, "AVAILABLE_DEVICES")]
        except RuntimeError:
            return ()
        return tuple(f"{plugin}.{number}" if len(ids) > 1 else plugin for number in ids)

    @device_calls()
    def device_facts(self, spec: DeviceSpec) -> DeviceFacts:
        """Return the properties of a device."""
        name = spec.openvino_name
        core = make_core((spec,))

        def said(key: str) -> Any:
            try:
                return core.get_property(name, key)
            except RuntimeError:
                return None

        kind, hint = said("DEVICE_TYPE"), said(PRECISION)
        return DeviceFacts(
            full_name=str(said("FULL_DEVICE_NAME")),
            kind=None if kind is None else property_text(kind).lower(),
            plugin_version=", ".join(str(version.build_number) for version in core.get_versions(name).values()),
            memory_bytes=device_memory_bytes(core, name),
            capabilities=tuple(map(str, said("OPTIMIZATION_CAPABILITIES") or ())),
            precision=None if hint is None else property_text(hint),
        )

    @device_calls()
    def precision(self, spec: DeviceSpec) -> Precision:
        """Return the distances of a small network's outputs on a device in both precisions."""
        model = probe_model("compute")
        single = replace(spec, properties={**spec.properties, **CPU_IN_SINGLE.properties})
        courses = make_courses(model, (), 0, None)
        expected, default, in_single = (outputs_on(device, model, courses) for device in (CPU_IN_SINGLE, spec, single))
        distances = output_difference(default, expected), output_difference(in_single, expected)
        return Precision(*distances, _driver(spec, model))


def _requests_beside(compiler: Compiler, devices: Sequence[DeviceSpec], kind: str) -> list[Any]:
    """Return requests of the model, or of a small one, on each device, which have run once."""
    measured = compiler.measured
    model = measured.model if kind == "model" else probe_model(kind)
    core, names = compiler.core_of(devices), DeviceIndex.of(devices).openvino_names
    with compiler.compiling(",".join(names)), device_calls():
        compiled = [core.compile_model(model, name) for name in names]
        if kind == "model":
            requests = [measured.runner(on_device).stream(measured.courses[0]) for on_device in compiled]
        else:
            requests = [on_device.create_infer_request() for on_device in compiled]
        for request in requests:
            infer_checked(request)
    return requests


def _driver(spec: DeviceSpec, model: ov.Model) -> str | None:
    """Return the version of the driver, if the device reports it, itself or in a model that it has compiled."""
    core = make_core((spec,))
    if "NPU_DRIVER_VERSION" in core.get_property(spec.openvino_name, "SUPPORTED_PROPERTIES"):
        return str(core.get_property(spec.openvino_name, "NPU_DRIVER_VERSION"))
    if "GPU" not in spec.plugin:
        return None
    match = DRIVER.search(core.compile_model(model, spec.openvino_name).export_model().read(HEADER_BYTES))
    return None if match is None else match[1].decode(errors="replace")


def device_memory_bytes(core: Any, name: str) -> float | None:
    """Return the memory of a device; the machine's for those that compute in it, None if unknown."""
    try:
        return float(core.get_property(name, "GPU_DEVICE_TOTAL_MEM_SIZE"))
    except RuntimeError:
        return float(psutil.virtual_memory().total) if "CPU" in name else None


_SUBMODEL = re.compile(r"subgraph(\d+): ")


def op_times(
    counted: CourseRunner, plain: CourseRunner, compiled: Any, names: Sequence[str], runs: int, for_s: float
) -> CountedTimes:
    """Return the times of a compiled model's primitives, weighted means over the courses that its requests run.

    ``counted`` has performance counters, ``plain`` has none; ``names`` [N] are the model's ops. Both run each course in
    turn up to ``runs`` times, ending early after ``for_s`` seconds in all. The latency and its spread are those of the
    plain runs.
    """
    index = {name: v for v, name in enumerate(names)}
    seconds: dict[str, float] = defaultdict(float)
    types: dict[str, str] = {}
    quartiles_s = np.zeros(3)
    num_runs = runs
    for course in counted.courses:
        taken: dict[str, list[float]] = defaultdict(list)
        plain_s: list[float] = []
        for _ in repeats(runs, for_s / len(counted.courses), least=3):
            with device_calls():
                plain_s.append(plain.seconds(course))
                counted.seconds(course)
                counters = counted.request.profiling_info
            for info in counters:
                taken[info.node_name].append(info.real_time.total_seconds())
                types[info.node_name] = info.node_type
        for name, times_s in taken.items():
            several = len(times_s) > len(plain_s)
            seconds[name] += course.share * (sum(times_s) / len(plain_s) if several else float(np.median(times_s)))
        quartiles_s += course.share * np.quantile(plain_s, [0.25, 0.5, 0.75])
        num_runs = min(num_runs, len(plain_s))
    originals = _originals(compiled)
    primitives: list[Primitive] = []
    for name, mean_s in seconds.items():
        match = _SUBMODEL.match(name)
        local_name = name[match.end() :] if match else name
        ops = [index[o] for o in originals.get(local_name, (local_name,)) if o in index]
        if mean_s > 0 or len(ops) > 1:
            primitives.append((ops, mean_s, int(match[1]) if match else 0, types[name]))
    low, median, high = quartiles_s.tolist()
    return {"primitives": primitives, "latency_s": median, "spread": (high - low) / median, "runs": num_runs}


def _originals(compiled: Any) -> dict[str, list[str]]:
    """Return the names of the model's ops that each primitive computes; empty if the plugin does not report them."""
    try:
        primitives = compiled.get_runtime_model().get_ordered_ops()
    except RuntimeError:
        return {}
    names_of: dict[str, list[str]] = {}
    for primitive in primitives:
        info = primitive.get_rt_info()
        written = info["originalLayersNames"].astype(str) if "originalLayersNames" in info else ""
        names_of[primitive.get_friendly_name()] = [
            name.strip().partition(COPY_MARK)[0] for name in written.split(",") if name.strip()
        ]
    return names_of


def _apart(distance: Distance) -> float:
    """Return the largest relative difference; infinite where values are not finite on one side alone."""
    relative = distance["max_relative"]
    return math.inf if relative is None else relative


if TYPE_CHECKING:
    _is_measurer: type[OpenVinoMeasurer] = Worker


if __name__ == "__main__":
    main(lambda setup, channel: Worker(setup, channel.tell))
