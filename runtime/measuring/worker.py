"""The worker process: compiles candidates, runs them, and compares their outputs, one request after another.

It holds nothing that is worth keeping, so that it can be killed at any time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from hsdag.ir.build import graph_of, name_uniquely
from hsdag.ir.device import hetero_properties
from hsdag.ir.errors import DeviceError, ExecutionError, HsdagError, PlacementError
from hsdag.ir.prepared import PreparedModel, prepare
from hsdag.ir.reader import input_name, load_model
from hsdag.runtime.measuring.candidate import Candidate, Open, TimelineOf
from hsdag.runtime.measuring.in_flight import steady_period_s
from hsdag.runtime.measuring.messages import (
    Choices,
    Close,
    Difference,
    InFlight,
    Opened,
    OpTimes,
    Probe,
    Request,
    Run,
    SideBySide,
    Throughput,
    WorkerSetup,
)
from hsdag.runtime.measuring.references import REFERENCES, onnxruntime_outputs, op_by_op
from hsdag.runtime.measuring.serving import main
from hsdag.runtime.measuring.side_by_side import probe_model, times_beside
from hsdag.runtime.measuring.worker_profile import COUNTERS, device_memory_bytes, op_times, probe, resident_bytes
from hsdag.runtime.platforms.devices import make_core
from hsdag.runtime.platforms.inference import array_of, device_calls, infer_checked
from hsdag.runtime.timeline.timeline import Timeline

_PLAIN, _COUNTED = "plain profile", "counted profile"


class Worker:
    """Compiled candidates by key, over one model and one set of devices."""

    def __init__(self, setup: WorkerSetup) -> None:
        self.setup = setup
        self.specs = setup.devices
        self.core = make_core(self.specs)
        self.model = load_model(setup.model, setup.shapes)
        name_uniquely(self.model)  # devices are asked about ops by name
        self.graph = graph_of(self.model)
        self.inputs = make_inputs(self.model, setup.seed, setup.inputs)
        self.inputs_are_given = setup.inputs is not None
        self.compiled: dict[str, Any] = {}
        self.references: dict[str, list[NDArray[Any]]] = {}
        self.requests: dict[str, Any] = {}
        self.side_by_side: set[str] = set()  # candidates of the work-conserving executor
        self.stateful = bool(self.model.get_variables())

    @cached_property
    def prepared(self) -> PreparedModel:
        """The model for HETERO; made for the first placement."""
        return prepare(self.model, self.graph)

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
        }
        return actions[type(request)](request)

    def open(self, request: Open) -> Opened:
        """Compile a candidate, and see that an inference of it goes through. Raises ExecutionError when it does not."""
        candidate = request.candidate
        if candidate.executor == "work-conserving":
            return self._open_side_by_side(request)
        if candidate.target in REFERENCES:
            return self._open_reference(request)
        model = self.model if candidate.devices is None else self.prepared.place(list(candidate.devices))
        properties = candidate.properties
        if candidate.target.startswith("HETERO:"):
            properties = hetero_properties(self.specs, properties)
        begin = time.perf_counter()
        with device_calls():
            compiled = self.core.compile_model(model, candidate.target, properties)
        compile_s = time.perf_counter() - begin
        self._keep(request.key, compiled)
        submodels = 1
        if "HETERO_NUMBER_OF_SUBMODELS" in compiled.get_property("SUPPORTED_PROPERTIES"):
            submodels = int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
        chosen = tuple(str(name).strip("()") for name in compiled.get_property("EXECUTION_DEVICES"))
        return Opened(compile_s, submodels, chosen)

    def run(self, request: Run) -> list[float]:
        """Times of inferences like the one that was checked when the candidate was opened."""
        infer = self.requests[request.key]
        times_s: list[float] = []
        end = time.perf_counter() + request.stop_after_s
        with device_calls():
            while len(times_s) < request.runs and (not times_s or time.perf_counter() < end):
                if self.stateful:
                    infer.reset_state()
                begin = time.perf_counter()
                infer.infer()
                times_s.append(time.perf_counter() - begin)
        return times_s

    def throughput(self, request: Throughput) -> InFlight:
        """At least as many requests in flight as the device asks for."""
        compiled = self.compiled[request.key]
        count = request.requests
        if request.key not in self.side_by_side:
            count = max(count, int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")))
        with device_calls():
            requests = [self._infer_request(compiled) for _ in range(count)]
            return InFlight(steady_period_s(requests, max(request.runs, count)), count)

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
            for _ in range(request.runs + 2):
                self.requests[key].infer()
                found.append((self.requests[key].latency, self.requests[key].timeline))
        finally:
            self.close(Close(key))
        timeline: Timeline = sorted(found[2:], key=lambda run: run[0])[(request.runs - 1) // 2][1]
        return timeline

    def difference(self, request: Difference) -> dict[str, float | None]:
        """Outputs of two candidates, each computed again and checked."""
        return output_difference(self._outputs(request.key), self._outputs(request.reference))

    def choices(self, request: Choices) -> list[str]:
        """What the target's plugin says."""
        with device_calls():
            chosen = self.core.query_model(self.model, request.target)
        return [str(chosen.get(name, "")) for name in self.graph.op_names]

    def op_times(self, request: OpTimes) -> dict[str, Any]:
        """Compiled with performance counters, and without where that takes no longer than ``again_s``."""
        plain = Candidate(request.target, request.devices)
        try:
            before = resident_bytes()
            compile_s = self.open(Open(_COUNTED, replace(plain, properties=COUNTERS))).compile_s
            memory_bytes = max(resident_bytes() - before, 0)
            if compile_s <= request.again_s:
                self.open(Open(_PLAIN, plain))
            requests = self.requests[_COUNTED], self.requests.get(_PLAIN, self.requests[_COUNTED])
            names, compiled = self.graph.op_names, self.compiled[_COUNTED]
            answer = op_times(*requests, compiled, names, request.runs, request.for_s, stateful=self.stateful)
        finally:
            for key in (_COUNTED, _PLAIN):
                self.close(Close(key))
        memory = {"resident_bytes": memory_bytes, "memory_bytes": device_memory_bytes(self.core, request.of)}
        return {**answer, **memory, "compile_s": compile_s}

    def contention(self, request: SideBySide) -> list[list[list[tuple[float, float]]]]:
        """Times of devices alone and side by side, each with a request of its own for the model or a small one.

        Nothing for a model that keeps state, which may take longer every time.
        """
        if request.kind == "model" and self.stateful:
            return []
        model = self.model if request.kind == "model" else probe_model(request.kind)
        with device_calls():
            compiled = [self.core.compile_model(model, device) for device in request.devices]
            if request.kind == "model":
                return times_beside([self._infer_request(each) for each in compiled], request.for_s)
            return times_beside([each.create_infer_request() for each in compiled], request.for_s)

    def _open_reference(self, request: Open) -> Opened:
        """Keep outputs that were computed without compiling the model."""
        begin = time.perf_counter()
        with device_calls():
            if request.candidate.target == "op-by-op":
                found = op_by_op(self.core, self.model, self.inputs, request.inference_limit_s or math.inf)
            else:
                found = onnxruntime_outputs(self.setup.model, self.model, self.inputs)
        self.references[request.key] = found
        return Opened(time.perf_counter() - begin, 0, ())

    def _open_side_by_side(self, request: Open) -> Opened:
        """Raises ModelError for models that no placement suits, as well."""
        from hsdag.runtime.openvino_backend import CutOptions, compile_on  # only here: what it compiles takes long

        candidate, begin = request.candidate, time.perf_counter()
        names = candidate.target.split(",")
        used = [next(spec for spec in self.specs if spec.openvino_name == name) for name in names]
        options = CutOptions(limit_s=request.inference_limit_s, objective=candidate.objective)
        given = (candidate.devices or (), candidate.priority, options, candidate.properties)
        try:
            compiled = compile_on(self.core, self.model, self.graph, used, *given)
        except (DeviceError, PlacementError) as error:
            raise ExecutionError(str(error)) from error
        compile_s = time.perf_counter() - begin
        self._keep(request.key, compiled, is_side_by_side=True)
        return Opened(compile_s, len(compiled.cut.subgraphs), tuple(names[d] for d in np.unique(compiled.cut.device)))

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

    def _checked(self, request: Any) -> None:
        """Infer from a fresh state. Raises ExecutionError when that fails."""
        try:
            with device_calls():
                if self.stateful:
                    request.reset_state()
                infer_checked(request)
        except ExecutionError as error:
            hint = (
                "" if self.inputs_are_given else "; the inputs are random: --input FILE.npz gives the model real ones"
            )
            raise ExecutionError(f"the inference failed: {error}{hint}") from error

    def _infer_request(self, compiled: Any) -> Any:
        request = compiled.create_infer_request()
        for port, tensor in zip(self.model.inputs, self.inputs, strict=True):
            request.set_tensor(port, tensor)  # by the model's port: HETERO may order inputs and outputs otherwise
        return request

    def _outputs(self, key: str) -> list[NDArray[Any]]:
        if key in self.references:
            return self.references[key]
        request = self.requests[key]
        self._checked(request)
        return [array_of(request.get_tensor(port)) for port in self.model.outputs]


def make_inputs(model: ov.Model, seed: int, source: Path | None) -> list[ov.Tensor]:
    """One tensor per model input, in order.

    From the arrays of an .npz file named like the inputs; else random: floats are standard normal, integers, booleans
    and strings 0 or 1, which every embedding table admits. Raises HsdagError when the file does not fit.
    """
    rng = np.random.default_rng(seed)
    arrays = np.load(source, allow_pickle=False) if source else {}
    tensors = []
    for port in model.inputs:
        shape, element_type = tuple(port.get_shape()), port.get_element_type()
        tensor, is_text = ov.Tensor(element_type, ov.Shape(list(shape))), element_type == ov.Type.string
        if source:
            name = next((n for n in sorted(port.get_names()) if n in arrays), input_name(port))
            if name not in arrays or arrays[name].shape != shape:
                raise HsdagError(f"{source} needs an array {name!r} of shape {list(shape)} for the model's input")
            values = arrays[name]
            if is_text != (values.dtype.kind in "SU"):
                kind = "strings" if is_text else "numbers"
                raise HsdagError(f"{source} needs an array {name!r} of {kind}, not of {values.dtype}")
        elif is_text:
            values = rng.integers(0, 2, shape).astype(str)
        elif element_type.is_real():
            values = rng.standard_normal(shape).astype(np.float32)
        else:
            values = rng.integers(0, 2, tensor.data.shape)  # packed types: fewer bytes than elements
        if is_text:
            tensor.str_data = values
        else:
            tensor.data[...] = values
        tensors.append(tensor)
    return tensors


def output_difference(found: list[NDArray[Any]], expected: list[NDArray[Any]]) -> dict[str, float | None]:
    """Distance of outputs, the largest over all of them (Table 4 of the HSDAG paper uses the same figures).

    ``max_relative`` is the largest difference over the largest finite magnitude expected. Values that are not
    finite must be the same on both sides; where they are not, ``max_relative`` is None and so are the figures
    that cannot be told. Strings must be the same too.
    """
    worst: dict[str, Any] = {"max_abs": 0.0, "max_relative": 0.0, "mse": 0.0, "l2": 0.0, "cosine": 1.0}
    for left, right in zip(found, expected, strict=True):
        if right.dtype.kind in "SU":
            if not np.array_equal(left, right):
                return dict.fromkeys(worst)
            continue
        a, b = left.astype(np.float64).ravel(), right.astype(np.float64).ravel()
        finite = np.isfinite(a) & np.isfinite(b)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return dict.fromkeys(worst)
        a, b = a[finite], b[finite]
        if not a.size:
            continue
        gap = np.abs(a - b)
        scale = float(np.abs(b).max())
        norm = float(np.linalg.norm(a) * np.linalg.norm(b))
        figures = {
            "max_abs": float(gap.max()),
            "max_relative": float(gap.max() / scale) if scale else float(gap.max()),
            "mse": float((gap**2).mean()),
            "l2": float(np.linalg.norm(gap)),
        }
        worst |= {name: max(worst[name], figure) for name, figure in figures.items()}
        worst["cosine"] = min(worst["cosine"], float(a @ b) / norm if norm else float(not gap.any()))
    return worst


if __name__ == "__main__":
    main(Worker)
