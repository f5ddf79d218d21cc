"""The measuring process: compiles candidates, runs and compares them, and answers about devices, one after another.

It holds nothing that is worth keeping, so that it can be killed at any time. Legend: N ops of the model.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import openvino as ov
import psutil
from numpy.typing import NDArray

from hsdag.ir.device import DeviceSpec, hetero_properties
from hsdag.ir.errors import DeviceError, ExecutionError, ModelError, PlacementError
from hsdag.ir.graph.build import graph_of, name_uniquely
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.reader import load_model
from hsdag.ir.placement.prepared import COPY_MARK, PreparedModel, prepare
from hsdag.ir.processes import Compiling, Request, main
from hsdag.runtime.machine.devices import execution_devices, make_core
from hsdag.runtime.machine.inference import device_calls
from hsdag.runtime.measuring.caches import CompiledModels
from hsdag.runtime.measuring.candidate import Candidate, Open, TimelineOf
from hsdag.runtime.measuring.device_facts import device_facts, device_memory_bytes, list_names, precision
from hsdag.runtime.measuring.differences import compare, compare_shrunk, largest, output_difference
from hsdag.runtime.measuring.inferences import Course, CourseRunner, make_courses, steady_period_s
from hsdag.runtime.measuring.messages import (
    AskDevice,
    Choices,
    Close,
    CompareOutputs,
    CompareShrunk,
    Difference,
    LargestValues,
    ListDevices,
    Opened,
    OpTimes,
    Probe,
    ProbePrecision,
    ProbeTransfer,
    Run,
    SideBySide,
    Throughput,
    WorkerSetup,
)
from hsdag.runtime.measuring.probes import COUNTERS, probe, probe_model, probe_transfer, times_beside
from hsdag.runtime.measuring.references import REFERENCES, onnxruntime_outputs, op_by_op
from hsdag.runtime.timeline.timeline import Timeline

_PLAIN, _COUNTED = "plain profile", "counted profile"


class Worker:
    """Compiled candidates by key, over one model and one set of devices."""

    def __init__(self, setup: WorkerSetup, tell: Callable[[Compiling], None] = lambda _: None) -> None:
        self.setup, self.specs, self._tell = setup, setup.devices, tell
        self.compiled: dict[str, Any] = {}
        self.references: dict[str, list[NDArray[Any]]] = {}
        self.requests: dict[str, CourseRunner] = {}
        self.side_by_side: set[str] = set()  # candidates of the work-conserving executor
        self.core = make_core(self.specs)
        self.compiled_models = CompiledModels(self.core, self.specs)
        if self.specs:  # the limit of the first request does not count for reading the model and making inputs
            _ = self.courses

    @cached_property
    def model(self) -> ov.Model:
        """The model under unique names, since devices are asked about ops by name. Raises ModelError."""
        assert self.setup.model is not None
        model = load_model(self.setup.model, self.setup.shapes, dynamic=True, guarded=False)
        name_uniquely(model)
        return model

    @cached_property
    def graph(self) -> ComputationGraph:
        """That of the model."""
        return graph_of(self.model)

    @cached_property
    def courses(self) -> tuple[Course, ...]:
        """What the model is run on. Raises ModelError for open shapes without scenarios, HsdagError for inputs."""
        setup = self.setup
        if not setup.scenarios and any(port.get_partial_shape().is_dynamic for port in self.model.inputs):
            raise ModelError("the model has inputs of dynamic shapes: give --data-shape, or fix them with --shape")
        return make_courses(self.model, setup.scenarios, setup.seed, setup.inputs)

    @cached_property
    def prepared(self) -> PreparedModel:
        """The model for HETERO; made for the first placement."""
        return prepare(self.model, self.graph)

    @property
    def stateful(self) -> bool:
        """Whether the model keeps state between inferences."""
        return bool(self.model.get_variables())

    def handle(self, request: Request[Any]) -> Any:
        """The answer to a request, by its type."""
        actions: dict[type[Request[Any]], Callable[[Any], Any]] = {
            Open: self.open,
            Run: self.run,
            Throughput: self.throughput,
            Close: self.close,
            Difference: self.difference,
            Choices: self.choices,
            OpTimes: self.op_times,
            Probe: lambda given: probe(self.core, self.specs, given),
            SideBySide: self.contention,
            TimelineOf: self.timeline,
            ListDevices: list_names,
            AskDevice: device_facts,
            ProbePrecision: precision,
            ProbeTransfer: probe_transfer,
            CompareOutputs: lambda given: compare(given, self.model, self.courses),
            CompareShrunk: lambda given: compare_shrunk(given, self.model, self.courses),
            LargestValues: lambda given: largest(given, self.model, self.courses),
        }
        return actions[type(request)](request)

    def _core_of(self, specs: Sequence[DeviceSpec]) -> Any:
        """The core of this process where it has loaded these devices, else a new one."""
        return self.core if all(spec in self.specs for spec in specs) else make_core(tuple(specs))

    def open(self, request: Open) -> Opened:
        """Compile a candidate, and see that an inference of it goes through. Raises ExecutionError when it does not."""
        candidate, before = request.candidate, MemoryUse.now(self.core, self.specs)
        if candidate.target in REFERENCES:
            return self._open_reference(request)
        is_side_by_side = candidate.executor == "work-conserving"
        opened = self._open_side_by_side(request) if is_side_by_side else self._open_compiled(request)
        added = MemoryUse.now(self.core, self.specs).since(before)
        return replace(opened, first_s=self.requests[request.key].first_s, **added)

    def _open_compiled(self, request: Open) -> Opened:
        """Compile for a device, or a target of several. Raises ExecutionError for what HETERO would get wrong, too."""
        candidate = request.candidate
        try:
            model = self.model if candidate.devices is None else self.prepared.place(list(candidate.devices))
        except PlacementError as error:
            raise ExecutionError(str(error)) from error
        properties = candidate.properties
        if candidate.target.startswith("HETERO:"):
            properties = hetero_properties(self.specs, properties)
        properties = {**self.compiled_models.properties(candidate.target), **properties}
        begin = time.perf_counter()
        with self._compiling(candidate.target), device_calls():
            compiled = self.core.compile_model(model, candidate.target, properties)
        compile_s = time.perf_counter() - begin
        self._keep(request.key, compiled)
        submodels = 1
        if "HETERO_NUMBER_OF_SUBMODELS" in compiled.get_property("SUPPORTED_PROPERTIES"):
            submodels = int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
        named = candidate.target.rpartition(":")[2].split(",")
        used = [spec for spec in self.specs if spec.openvino_name in named]
        return Opened(compile_s, submodels, execution_devices(compiled, used))

    def run(self, request: Run) -> list[float]:
        """Times of inferences like the one that was checked when the candidate was opened."""
        runner = self.requests[request.key]
        times_s: list[float] = []
        end = time.perf_counter() + request.stop_after_s
        with device_calls():
            while len(times_s) < request.runs and (not times_s or time.perf_counter() < end):
                if request.scenario is None:
                    times_s.append(runner.weighted_s())
                else:
                    times_s.append(runner.seconds(runner.courses[request.scenario]))
        return times_s

    def throughput(self, request: Throughput) -> float:
        """At least as many requests in flight as the device asks for."""
        compiled = self.compiled[request.key]
        count = request.requests
        if request.key not in self.side_by_side and not request.is_exact:
            count = max(count, int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")))
        with device_calls():
            runners = [self._infer_request(compiled) for _ in range(count)]
            period_s = 0.0
            for course in self.courses:
                streams = [runner.stream(course) for runner in runners]
                period_s += course.share * steady_period_s(streams, max(request.runs, count))
            return period_s

    def close(self, request: Close) -> None:
        """Forget a candidate; nothing where there is none."""
        self.references.pop(request.key, None)
        self.requests.pop(request.key, None)
        compiled = self.compiled.pop(request.key, None)
        if request.key in self.side_by_side:
            self.side_by_side.discard(request.key)
            compiled.close()

    def timeline(self, request: TimelineOf) -> Timeline:
        """Open a candidate for the work-conserving executor, run it, after two inferences to warm up, and forget it."""
        key, found = request.opening.key, []
        self._open_side_by_side(request.opening)
        try:
            runner = self.requests[key]
            for _ in range(request.runs + 2):
                runner.seconds(self.courses[0])
                found.append((runner.request.latency, runner.request.timeline))
        finally:
            self.close(Close(key))
        timeline: Timeline = sorted(found[2:], key=lambda run: run[0])[(request.runs - 1) // 2][1]
        return timeline

    def difference(self, request: Difference) -> dict[str, float | None]:
        """Outputs of two candidates, each computed again and checked."""
        return output_difference(self.outputs(request.key), self.outputs(request.reference))

    def choices(self, request: Choices) -> list[str]:
        """What the target's plugin says; HETERO runs the same code when it compiles a model."""
        core, properties = self._core_of(request.devices), dict(request.properties)
        if request.target.startswith("HETERO:"):
            properties = hetero_properties(request.devices, properties)
        with self._compiling(request.target), device_calls():  # a plugin may have to compile to know
            chosen = core.query_model(self.model, request.target, properties)
        return [str(chosen.get(name, "")) for name in self.graph.op_names]

    def op_times(self, request: OpTimes) -> dict[str, Any]:
        """Compiled with performance counters, and without where that takes no longer than ``again_s``."""
        plain = Candidate(request.target, request.devices)
        try:
            opened = self.open(Open(_COUNTED, replace(plain, properties=COUNTERS)))
            if opened.compile_s <= request.again_s:
                self.open(Open(_PLAIN, plain))
            requests = self.requests[_COUNTED], self.requests.get(_PLAIN, self.requests[_COUNTED])
            names, compiled = self.graph.op_names, self.compiled[_COUNTED]
            answer = op_times(*requests, compiled, names, request.runs, request.for_s)
        finally:
            for key in (_COUNTED, _PLAIN):
                self.close(Close(key))
        whole = {name: getattr(opened, name) for name in ("compile_s", "first_s", "resident_bytes", "device_bytes")}
        return {**answer, **whole, "memory_bytes": device_memory_bytes(self.core, request.of)}

    def contention(self, request: SideBySide) -> list[list[list[tuple[float, float]]]]:
        """Times of devices alone and side by side, each with a request of its own for the model or a small one.

        Nothing for a model that keeps state, which may take longer every time.
        """
        if request.kind == "model" and self.stateful:
            return []
        model = self.model if request.kind == "model" else probe_model(request.kind)
        names, core = [spec.openvino_name for spec in request.devices], self._core_of(request.devices)
        with self._compiling(",".join(names)), device_calls():
            compiled = [core.compile_model(model, name) for name in names]
        with device_calls():
            if request.kind == "model":
                runners = [self._infer_request(each) for each in compiled]
                return times_beside([each.stream(self.courses[0]) for each in runners], request.for_s)
            return times_beside([each.create_infer_request() for each in compiled], request.for_s)

    @contextlib.contextmanager
    def _compiling(self, target: str) -> Iterator[None]:
        """Tell the client that time now goes into compiling."""
        self._tell(Compiling(target))
        with self.compiled_models.compiling():
            yield
        self._tell(Compiling(None))

    def _open_reference(self, request: Open) -> Opened:
        """Keep outputs that were computed without compiling the model."""
        begin = time.perf_counter()
        with device_calls():
            if request.candidate.target == "op-by-op":
                limit_s = request.inference_limit_s or math.inf
                found = [a for each in self.courses for a in op_by_op(self.core, self.model, each.inferences, limit_s)]
            else:
                inputs = [tensors for course in self.courses for tensors in course.inferences]
                found = [a for each in inputs for a in onnxruntime_outputs(self.setup.model, self.model, each)]
        self.references[request.key] = found
        return Opened(time.perf_counter() - begin, 0, ())

    def _open_side_by_side(self, request: Open) -> Opened:
        """Raises ModelError for models that no placement suits, as well."""
        from hsdag.runtime.executor.compiling import compile_on
        from hsdag.runtime.executor.merging import CutOptions

        candidate, begin = request.candidate, time.perf_counter()
        names = candidate.target.split(",")
        used = [next(spec for spec in self.specs if spec.openvino_name == name) for name in names]
        options = CutOptions(limit_s=request.inference_limit_s, by_load=candidate.by_load)
        given = (candidate.devices or (), candidate.priority, options, candidate.properties)
        try:
            with self._compiling(candidate.target):
                compiled = compile_on(self.core, self.model, self.graph, used, *given)
        except (DeviceError, PlacementError) as error:
            raise ExecutionError(str(error)) from error
        compile_s = time.perf_counter() - begin
        self._keep(request.key, compiled, is_side_by_side=True)
        ran_on = tuple(names[d] for d in np.unique(compiled.cut.device))
        return Opened(compile_s, len(compiled.cut.subgraphs), ran_on)

    def _keep(self, key: str, compiled: Any, *, is_side_by_side: bool = False) -> None:
        """Have a compiled candidate under a key, in place of what was there, if an inference of it goes through."""
        self.close(Close(key))
        if is_side_by_side:
            self.side_by_side.add(key)
        self.compiled[key] = compiled
        try:
            with device_calls():
                self.requests[key] = self._infer_request(compiled)
            self._checked(self.requests[key])
        except ExecutionError:
            self.close(Close(key))
            raise

    def _checked(self, runner: CourseRunner) -> list[NDArray[Any]]:
        """The outputs of all inferences. Raises ExecutionError when one fails."""
        try:
            with device_calls():
                return runner.outputs(self.model.outputs)
        except ExecutionError as error:
            given = self.setup.inputs is not None
            hint = "" if given else "; the inputs are random: --input FILE.npz gives the model real ones"
            raise ExecutionError(f"the inference failed: {error}{hint}") from error

    def _infer_request(self, compiled: Any) -> CourseRunner:
        return CourseRunner(compiled.create_infer_request(), self.model.inputs, self.courses, stateful=self.stateful)

    def outputs(self, key: str) -> list[NDArray[Any]]:
        """What a candidate computes, in the order of the model's outputs."""
        if key in self.references:
            return self.references[key]
        return self._checked(self.requests[key])


_SUBMODEL = re.compile(r"subgraph(\d+): ")


def op_times(
    counted: CourseRunner, plain: CourseRunner, compiled: Any, names: Sequence[str], runs: int, for_s: float
) -> dict[str, Any]:
    """Times of a compiled model's primitives, weighted means over the courses that its requests run.

    ``counted`` has performance counters, ``plain`` has none; ``names`` [N] are the model's ops. Both run each course in
    turn up to ``runs`` times, ending early after ``for_s`` seconds in all.
    ``primitives`` are ``[ops, seconds, submodel, type]`` in order of execution: the indices of all ops that
    the primitive computes, none for what the plugin added by itself, and the submodel of HETERO's that it is in.
    ``latency_s`` is that of the plain runs, ``spread`` their interquartile range over it.
    """
    index = {name: v for v, name in enumerate(names)}
    seconds: dict[str, float] = defaultdict(float)
    types: dict[str, str] = {}
    quartiles_s, num_runs = np.zeros(3), runs
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
        found = _SUBMODEL.match(name)
        own = name[found.end() :] if found else name
        ops = [index[o] for o in originals.get(own, (own,)) if o in index]
        if mean_s > 0 or len(ops) > 1:
            primitives.append([ops, mean_s, int(found[1]) if found else 0, types[name]])
    low, median, high = quartiles_s.tolist()
    return {"primitives": primitives, "latency_s": median, "spread": (high - low) / median, "runs": num_runs}


def _originals(compiled: Any) -> dict[str, list[str]]:
    """By primitive, the names of the model's ops that it computes; empty where the plugin does not tell."""
    try:
        primitives = compiled.get_runtime_model().get_ordered_ops()
    except RuntimeError:
        return {}
    found: dict[str, list[str]] = {}
    for primitive in primitives:
        info = primitive.get_rt_info()
        written = info["originalLayersNames"].astype(str) if "originalLayersNames" in info else ""
        found[primitive.get_friendly_name()] = [
            name.strip().partition(COPY_MARK)[0] for name in written.split(",") if name.strip()
        ]
    return found


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that this process holds in the machine's memory, and in that of GPUs: None where no device tells."""

    resident_bytes: int
    device_bytes: int | None

    @staticmethod
    def now(core: Any, specs: Sequence[DeviceSpec]) -> MemoryUse:
        """By the statistics of the process and of the GPUs among ``specs``, each counted once under all its names."""
        by_device: dict[str, int] = {}
        for spec in specs:
            with suppress(RuntimeError):  # other plugins have no such property
                kinds = core.get_property(spec.openvino_name, "GPU_MEMORY_STATISTICS")
                by_device[spec.plugin] = sum(size for kind, size in kinds.items() if kind != "usm_host")
        return MemoryUse(int(psutil.Process().memory_info().rss), sum(by_device.values()) if by_device else None)

    def since(self, before: MemoryUse) -> dict[str, Any]:
        """What was added, as fields of ``Opened``; nothing where there is less."""
        device_bytes = None
        if self.device_bytes is not None and before.device_bytes is not None:
            device_bytes = max(self.device_bytes - before.device_bytes, 0)
        return {"resident_bytes": max(self.resident_bytes - before.resident_bytes, 0), "device_bytes": device_bytes}


if __name__ == "__main__":
    main(lambda setup, channel: Worker(setup, channel.tell))
