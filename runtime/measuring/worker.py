"""The measuring process, which compiles, runs and compares candidates and answers about devices, request by request.

It has no state that is worth keeping, so that it can be killed at any time. Legend: N ops of the model, R results.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import compress, cycle
from typing import Any

import numpy as np
import openvino as ov
import psutil
from numpy.typing import NDArray

from hsdag.base.errors import DeviceError, ExecutionError, ModelError, PlacementError
from hsdag.base.processes import Compiling, main
from hsdag.ir.device import DeviceIndex, DeviceSpec, hetero_properties
from hsdag.ir.elements import array_of
from hsdag.ir.graph.build import draws, graph_of, name_uniquely
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.reader import load_model
from hsdag.ir.graph.state import reached_from
from hsdag.ir.placement.copies import CopiedModel, compile_copies
from hsdag.ir.placement.prepared import COPY_MARK, PreparedModel, prepare
from hsdag.runtime.machine.devices import device_calls, execution_devices, infer_checked, make_core, type_name
from hsdag.runtime.machine.settings import Offer
from hsdag.runtime.measuring.caches import CompiledModels
from hsdag.runtime.measuring.differences import (
    CPU_IN_SINGLE,
    halved,
    op_alone,
    op_by_op,
    output_difference,
    outputs_on,
    up_to,
)
from hsdag.runtime.measuring.inferences import (
    REQUESTS_IN_FLIGHT,
    Course,
    CourseRunner,
    make_courses,
    requests_in_flight,
    steady_period_s,
)
from hsdag.runtime.measuring.messages import (
    Beside,
    CallHandler,
    Candidate,
    DeviceFacts,
    Distance,
    Opened,
    Precision,
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
    """Compiled candidates by key, for one model and one set of devices."""

    def __init__(self, setup: WorkerSetup, tell: Callable[[Compiling], None] = lambda _: None) -> None:
        self.setup = setup
        self.specs = setup.devices
        self._tell = tell
        self.compiled: dict[str, Any] = {}
        self.references: dict[str, list[NDArray[Any]]] = {}
        self.firsts: dict[str, list[NDArray[Any]]] = {}  # outputs right after compiling, if random numbers are drawn
        self.requests: dict[str, CourseRunner] = {}
        self._probes: dict[object, Any] = {}  # requests that further windows of a profile need
        self._kernels_s = setup.kernels_s
        self.compile_s = 0.0  # seconds of the last compilation
        self.core = make_core(self.specs)
        self.compiled_models = CompiledModels(self.core, self.specs)
        if self.specs:  # now, so that they do not count against the limit of the first request
            _ = self.courses

    @cached_property
    def model(self) -> ov.Model:
        """Return the model with unique names, since devices are asked about ops by name. Raises ModelError."""
        assert self.setup.model is not None
        model = load_model(self.setup.model, self.setup.shapes, dynamic=True, guarded=False)
        name_uniquely(model)
        return model

    @cached_property
    def graph(self) -> ComputationGraph:
        """Return the graph of the model."""
        return graph_of(self.model)

    @cached_property
    def courses(self) -> tuple[Course, ...]:
        """Return the inferences to run. Raises ModelError for open shapes without scenarios, HsdagError for inputs."""
        if not self.setup.scenarios and any(port.get_partial_shape().is_dynamic for port in self.model.inputs):
            raise ModelError("the model has inputs of dynamic shapes: give --data-shape, or fix them with --shape")
        return make_courses(self.model, self.setup.scenarios, self.setup.seed, self.setup.inputs)

    @cached_property
    def prepared(self) -> PreparedModel:
        """Return the model prepared for HETERO; made for the first placement."""
        return prepare(self.model, self.graph)

    def _core_of(self, specs: Sequence[DeviceSpec]) -> Any:
        """Return the core of this process if it has loaded these devices, else a new one."""
        return self.core if all(spec in self.specs for spec in specs) else make_core(tuple(specs))

    def open(self, key: str, candidate: Candidate, inference_limit_s: float | None = None) -> Opened:
        """Compile a candidate under a key, and check that an inference of it succeeds.

        The work-conserving executor gives up an inference after a limit. Raises ExecutionError when one fails.
        """
        self.close(key)
        before = memory_use(self.core, self.specs)
        begin_s = time.perf_counter()
        if candidate.target == "op-by-op":
            limit_s = inference_limit_s or math.inf
            with device_calls():
                references = (op_by_op(self.core, self.model, course.inferences, limit_s) for course in self.courses)
                self.references[key] = self.firsts[key] = [array for outputs in references for array in outputs]
            return Opened(time.perf_counter() - begin_s, 0, ())
        try:
            self.compiled[key], num_parts, devices = self._compiled(candidate, inference_limit_s)
            with device_calls():
                self.requests[key] = self._infer_request(self.compiled[key])
            first = self.outputs(key)
            if any(self._drawn):
                self.firsts[key] = first
        except (DeviceError, PlacementError, ExecutionError) as error:
            self.close(key)
            raise ExecutionError(str(error)) from error
        pairs = zip(memory_use(self.core, self.specs), before, strict=True)
        resident_bytes, device_bytes = (None if now is None or old is None else max(now - old, 0) for now, old in pairs)
        first_s = self.requests[key].first_s
        requests = tuple(copy.num_requests for copy in getattr(self.compiled[key], "copies", ()))
        return Opened(self.compile_s, num_parts, devices, first_s, resident_bytes or 0, device_bytes, requests)

    def _compiled(self, candidate: Candidate, limit_s: float | None) -> tuple[Any, int, tuple[str, ...]]:
        """Return the compiled model, its number of parts, and the devices that it runs on.

        Raises PlacementError for what an executor would get wrong, DeviceError or ExecutionError for a device that
        does not compile it.
        """
        names, properties = candidate.target.rpartition(":")[2].split(","), candidate.properties
        used = DeviceIndex.of(spec for name in names for spec in self.specs if spec.openvino_name == name)
        if candidate.copies:
            by_name = dict(zip(used.openvino_names, used.specs, strict=True))
            copies = list[Any]()
            for each, requests in candidate.copies:
                over = by_name[each] if isinstance(each, str) else self._compiled(each, limit_s)[0]
                copies.append((over, requests))
            with self._compiling(candidate.target):
                return compile_copies(self.core, self.model, copies, properties), len(copies), tuple(names)
        if candidate.executor == "work-conserving":
            return self._compiled_in_parts(candidate, used, limit_s)
        model = self.model
        if candidate.devices is not None:
            model = self.prepared.place(list(candidate.devices), self.specs)
        if candidate.target.startswith("HETERO:"):
            properties = hetero_properties(self.specs, properties)
        properties = {**self.compiled_models.properties(candidate.target), **properties}
        with self._compiling(candidate.target), device_calls():
            compiled = self.core.compile_model(model, candidate.target, properties)
        has_number = "HETERO_NUMBER_OF_SUBMODELS" in compiled.get_property("SUPPORTED_PROPERTIES")
        num_parts = int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")) if has_number else 1
        return compiled, num_parts, execution_devices(compiled, used.specs)

    def _compiled_in_parts(
        self, candidate: Candidate, used: DeviceIndex, limit_s: float | None
    ) -> tuple[Any, int, tuple[str, ...]]:
        """Compile for the work-conserving executor. Raises ModelError, too, for models that no placement suits."""
        from hsdag.base.kernels import compiling_at_most  # imported late: they load numba
        from hsdag.ir.shards.rewrite import shard
        from hsdag.runtime.executor.compiling import compile_on

        model, graph = self.model, self.graph
        devices: Sequence[int] = used.openvino_positions(candidate.devices or ())
        if candidate.regions:
            sharded = shard(model, graph, candidate.regions, devices, used.openvino_names)
            model, graph, devices = sharded.model, sharded.graph, sharded.devices
        given = used.specs, devices, candidate.priority, candidate.properties
        with self._compiling(candidate.target), compiling_at_most(self._kernels_s):
            compiled = compile_on(self.core, model, graph, *given, by_load=candidate.by_load, limit_s=limit_s)
        names = used.openvino_named(np.unique(compiled.cut.device).tolist())
        return compiled, len(compiled.cut.subgraphs), tuple(names)

    def run(self, key: str, runs: int, stop_after_s: float, scenario: int | None = None) -> list[float]:
        """Return the seconds of each of ``runs`` inferences, ending early after ``stop_after_s`` in all.

        They are those of the scenario with an index, or weighted means over all scenarios.
        """
        runner = self.requests[key]
        times_s: list[float] = []
        end = time.perf_counter() + stop_after_s
        with device_calls():
            while len(times_s) < runs and (not times_s or time.perf_counter() < end):
                times_s.append(runner.weighted_s() if scenario is None else runner.seconds(runner.courses[scenario]))
        return times_s

    def throughput(self, key: str, requests: int | None, runs: int, most_s: float = math.inf) -> float:
        """Return the seconds per inference with ``requests`` in flight over ``runs``, fewer after ``most_s`` seconds.

        Without ``requests`` there are as many as the device asks for.
        """
        compiled = self.compiled[key]
        count = requests or REQUESTS_IN_FLIGHT
        if isinstance(compiled, CopiedModel):
            count = max(count, compiled.num_in_flight)
        elif hasattr(compiled, "get_property") and requests is None:  # one of OpenVINO's own
            asked_for = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
            count = requests_in_flight(asked_for, len(compiled.get_property("EXECUTION_DEVICES")))
        with device_calls():
            runners = [self._infer_request(compiled) for _ in range(count)]
            period_s = 0.0
            for course in self.courses:
                period_s += course.share * steady_period_s([runner.stream(course) for runner in runners], runs, most_s)
            return period_s

    def close(self, key: str) -> None:
        """Close a candidate, if there is one."""
        self.references.pop(key, None)
        self.firsts.pop(key, None)
        self.requests.pop(key, None)
        getattr(self.compiled.pop(key, None), "close", bool)()  # executors have threads of their own

    def offer(self, key: str, name: str) -> Offer:
        """Return what a device, by OpenVINO's name, lets one set, and what it has set for the candidate of a key."""
        with device_calls():
            return Offer.of(self.core, name, self.compiled[key])

    def timeline(self, candidate: Candidate, runs: int, inference_limit_s: float | None = None) -> Timeline:
        """Return when each part of a work-conserving candidate ran, in the median of ``runs`` inferences.

        Two more come first, to warm up.
        """
        timed: list[tuple[float, Timeline]] = []
        self.open(_TRACED, candidate, inference_limit_s)
        try:
            runner = self.requests[_TRACED]
            for _ in range(runs + 2):
                runner.seconds(self.courses[0])
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
        if not any(self._drawn):
            return output_difference(self.outputs(key), self.outputs(reference))
        by_chance = self._by_chance(key, reference)
        if not all(self._drawn):
            others = [not drawn for drawn in self._drawn]
            sure = output_difference(*(list(compress(self.outputs(k), cycle(others))) for k in (key, reference)))
            return sure if by_chance is None else max(sure, by_chance, key=_apart)
        if by_chance is None:
            name = next(node.get_friendly_name() for node in self.model.get_ordered_ops() if draws(node))
            raise ExecutionError(
                f"all outputs depend on random numbers, which {name!r} draws without a seed, or not as the CPU does in "
                "the same precision"
            )
        return by_chance

    @cached_property
    def _drawn(self) -> list[bool]:
        """Return [R] whether a result depends on random numbers."""
        sources = [v for v, node in enumerate(self.model.get_ordered_ops()) if draws(node)]
        reached = reached_from(self.graph, sources)
        return [bool(reached[self.graph.index_of[each.get_friendly_name()]]) for each in self.model.get_results()]

    def _by_chance(self, key: str, reference: str) -> Distance | None:
        """Return the distance of outputs that depend on random numbers; None if these are not repeatable."""
        seeds = [draw.get_attributes() for node in self.model.get_ordered_ops() for draw in draws(node)]
        if not all(each["global_seed"] or each["op_seed"] for each in seeds):
            return None
        with suppress(ExecutionError):
            self.open(_BY_DEFAULT, Candidate("CPU"))
        opinions = [self.firsts[each] for each in (reference, _BY_DEFAULT) if each in self.firsts]
        self.close(_BY_DEFAULT)
        own = list(compress(self.firsts[key], cycle(self._drawn)))
        distances = [output_difference(own, list(compress(each, cycle(self._drawn)))) for each in opinions]
        best = min(distances, key=_apart)
        return best if _apart(best) <= RANDOM_ALIKE else None

    def choices(
        self, target: str, devices: Sequence[DeviceSpec] = (), properties: Mapping[str, str] | None = None
    ) -> list[str]:
        """Return [N] the device that ``target`` would choose for each op, by OpenVINO's name; "" for ops it lacks.

        ``devices`` are loaded for the question if the process has not loaded them yet; HETERO keeps their
        properties, gets its own ``properties``, and runs the same code when it compiles a model.
        """
        core = self._core_of(devices)
        options = hetero_properties(devices, properties) if target.startswith("HETERO:") else dict(properties or {})
        with self._compiling(target), device_calls():  # a plugin may have to compile to know
            chosen = core.query_model(self.model, target, options)
        return [str(chosen.get(name, "")) for name in self.graph.op_names]

    def op_times(
        self, candidate: Candidate, of: str, runs: int, for_s: float, again_s: float = math.inf
    ) -> dict[str, Any]:
        """Return the times of the model's ops in a candidate, as the function ``op_times`` does.

        The answer also has the memory of device ``of``, the growth of the process by compiling, and the seconds it
        took. If compiling takes longer than ``again_s``, it is done once, and the latency is that with performance
        counters.
        """
        try:
            opened = self.open(_COUNTED, replace(candidate, properties=COUNTERS))
            if opened.compile_s <= again_s:
                self.open(_PLAIN, candidate)
            requests = self.requests[_COUNTED], self.requests.get(_PLAIN, self.requests[_COUNTED])
            answer = op_times(*requests, self.compiled[_COUNTED], self.graph.op_names, runs, for_s)
        finally:
            for key in (_COUNTED, _PLAIN):
                self.close(key)
        whole = {name: getattr(opened, name) for name in ("compile_s", "first_s", "resident_bytes", "device_bytes")}
        return {**answer, **whole, "memory_bytes": device_memory_bytes(self.core, of)}

    def probe(self, what: Probe) -> Probed:
        """Return the figures of a probe; its model is kept until ``forget_probes``."""
        key = what.devices, what.kind, what.tensors, what.size_bytes
        if key not in self._probes:
            with device_calls():
                self._probes[key] = probe_request(self.core, self.specs, what)
        return probe(self._probes[key], what)

    def pulse(self) -> list[float]:
        """Return the seconds of the same small model on each physical device, at all of them at once.

        They show how much of the machine is available now.
        """
        names = dict.fromkeys(spec.plugin for spec in self.specs)
        if "pulse" not in self._probes:
            with device_calls():
                model = probe_model("compute")
                requests = [self.core.compile_model(model, name).create_infer_request() for name in names]
                for request in requests:
                    infer_checked(request)
                self._probes["pulse"] = requests
        with device_calls():
            return stretch(self._probes["pulse"])

    def forget_probes(self) -> None:
        """Release the compiled models of probes and of devices side by side."""
        self._probes.clear()

    def sync(self, devices: Sequence[DeviceSpec], what: Probe) -> float:
        """Return the seconds of a sync of two devices, by a probe."""
        with self._compiling(",".join(what.devices)), device_calls():
            return sync_s(self._core_of(devices), devices, what)

    def contention(
        self, devices: Sequence[DeviceSpec], kind: str, whole_devices: Sequence[DeviceSpec] = ()
    ) -> Beside | None:
        """Measure one window of devices alone and side by side, and of ``whole_devices`` alone.

        ``kind`` is "compute" or "memory", small models bound by either, or "model"; None for a model that keeps state,
        which may take longer every time. Compiled models are kept until ``forget_probes``.
        """
        if kind == "model" and self.model.get_variables():
            return None
        key = kind, DeviceIndex.of((*devices, *whole_devices)).openvino_names
        if key not in self._probes:
            self._probes[key] = self._requests_beside((*devices, *whole_devices), kind)
        return times_beside(self._probes[key], len(whole_devices))

    def _requests_beside(self, devices: Sequence[DeviceSpec], kind: str) -> list[Any]:
        """Return requests of the model, or of a small one, on each device, which have run once."""
        model = self.model if kind == "model" else probe_model(kind)
        core, names = self._core_of(devices), DeviceIndex.of(devices).openvino_names
        with self._compiling(",".join(names)), device_calls():
            compiled = [core.compile_model(model, name) for name in names]
            if kind == "model":
                requests = [self._infer_request(each).stream(self.courses[0]) for each in compiled]
            else:
                requests = [each.create_infer_request() for each in compiled]
            for request in requests:
                infer_checked(request)
        return requests

    @device_calls()
    def compare_outputs(
        self, devices: tuple[DeviceSpec, DeviceSpec], op: str | None = None, *, alone: bool = False
    ) -> Distance:
        """Return the distance of the first device's results from the second's, of the model or its part up to ``op``.

        If ``alone``, only the op runs on both devices, on the inputs that the second one computes for it.
        """
        model, courses = self.model, self.courses
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
        larger = self.courses[0].inferences[-1]
        smaller = [halved(port, tensor) for port, tensor in zip(self.model.inputs, larger, strict=True)]
        compiled = make_core((device,)).compile_model(self.model, device.openvino_name)
        used, new = compiled.create_infer_request(), compiled.create_infer_request()
        used.infer(list(larger))
        try:
            new.infer(smaller)
            used.infer(smaller)
        except RuntimeError:  # halves of these inputs may contradict each other
            return None
        found, expected = (
            [array_of(request.get_output_tensor(k)) for k in range(len(self.model.outputs))] for request in (used, new)
        )
        return output_difference(found, expected)

    @device_calls()
    def list_devices(self, plugin: str | None = None) -> tuple[str, ...]:
        """Return the names of the devices that OpenVINO, or one plugin, finds; empty if the plugin is missing."""
        core = ov.Core()
        if plugin is None:
            return tuple(str(name) for name in core.available_devices)
        try:
            ids = [str(each) for each in core.get_property(plugin, "AVAILABLE_DEVICES")]
        except RuntimeError:
            return ()
        return tuple(f"{plugin}.{each}" if len(ids) > 1 else plugin for each in ids)

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

        kind, hint = said("DEVICE_TYPE"), said("INFERENCE_PRECISION_HINT")
        return DeviceFacts(
            full_name=str(said("FULL_DEVICE_NAME")),
            kind=None if kind is None else str(kind).rpartition(".")[2].lower(),
            plugin_version=", ".join(str(version.build_number) for version in core.get_versions(name).values()),
            memory_bytes=device_memory_bytes(core, name),
            capabilities=tuple(str(each) for each in said("OPTIMIZATION_CAPABILITIES") or ()),
            precision=None if hint is None else type_name(hint),
        )

    @device_calls()
    def precision(self, spec: DeviceSpec) -> Precision:
        """Return the distances of a small network's outputs on a device in both precisions."""
        model = probe_model("compute")
        single = replace(spec, properties={**spec.properties, **CPU_IN_SINGLE.properties})
        courses = make_courses(model, (), 0, None)
        expected, default, in_single = (outputs_on(each, model, courses) for each in (CPU_IN_SINGLE, spec, single))
        distances = output_difference(default, expected), output_difference(in_single, expected)
        return Precision(*distances, _driver(spec, model))

    @contextlib.contextmanager
    def _compiling(self, target: str) -> Iterator[None]:
        """Tell the client that compilation begins and ends, and note its seconds."""
        self._tell(Compiling(target))
        begin_s = time.perf_counter()
        yield
        self.compile_s = time.perf_counter() - begin_s
        self._tell(Compiling(None))

    def _infer_request(self, compiled: Any) -> CourseRunner:
        stateful = bool(self.model.get_variables())
        return CourseRunner(compiled.create_infer_request(), self.courses, stateful=stateful)

    def outputs(self, key: str) -> list[NDArray[Any]]:
        """Return the outputs of a candidate in all inferences, in the order of the model's outputs.

        Raises ExecutionError when an inference fails.
        """
        if key in self.references:
            return self.references[key]
        try:
            with device_calls():
                return self.requests[key].outputs(len(self.model.outputs))
        except ExecutionError as error:
            given = self.setup.inputs is not None
            hint = "" if given else "; the inputs are random: --input FILE.npz gives the model real ones"
            raise ExecutionError(f"the inference failed: {error}{hint}") from error


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
) -> dict[str, Any]:
    """Return the times of a compiled model's primitives, weighted means over the courses that its requests run.

    ``counted`` has performance counters, ``plain`` has none; ``names`` [N] are the model's ops. Both run each course in
    turn up to ``runs`` times, ending early after ``for_s`` seconds in all.
    ``primitives`` are ``[ops, seconds, submodel, type]`` in order of execution: the indices of all ops that
    the primitive computes, none for what the plugin added by itself, and the submodel of HETERO's that it is in.
    ``latency_s`` is that of the plain runs, ``spread`` their interquartile range over it.
    """
    index = {name: v for v, name in enumerate(names)}
    seconds: dict[str, float] = defaultdict(float)
    types: dict[str, str] = {}
    quartiles_s = np.zeros(3)
    num_runs = runs
    for course in counted.courses:
        taken: dict[str, list[float]] = defaultdict(list)
        plain_s: list[float] = []
        end = time.perf_counter() + for_s / len(counted.courses)
        while len(plain_s) < runs and (len(plain_s) < 3 or time.perf_counter() < end):
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
    primitives: list[list[Any]] = []
    for name, mean_s in seconds.items():
        match = _SUBMODEL.match(name)
        local_name = name[match.end() :] if match else name
        ops = [index[o] for o in originals.get(local_name, (local_name,)) if o in index]
        if mean_s > 0 or len(ops) > 1:
            primitives.append([ops, mean_s, int(match[1]) if match else 0, types[name]])
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


def memory_use(core: Any, specs: Sequence[DeviceSpec]) -> tuple[int, int | None]:
    """Return the bytes that this process has in the machine's memory, and in that of GPUs: None if none reports it.

    A GPU among ``specs`` counts once under all its names.
    """
    by_device: dict[str, int] = {}
    for spec in specs:
        with suppress(RuntimeError):  # other plugins have no such property
            kinds = core.get_property(spec.openvino_name, "GPU_MEMORY_STATISTICS")
            by_device[spec.plugin] = sum(size for kind, size in kinds.items() if kind != "usm_host")
    return int(psutil.Process().memory_info().rss), sum(by_device.values()) if by_device else None


if __name__ == "__main__":
    main(lambda setup, channel: Worker(setup, channel.tell))
