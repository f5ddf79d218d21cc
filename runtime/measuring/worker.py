"""The worker process: compiles candidates, runs them, and compares their outputs, one request a line.

It talks JSON lines over the pipes it was started with; everything a plugin prints goes to stderr. It holds
nothing that is worth keeping, so that it can be killed at any time.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from hsdag.ir.build import graph_of, name_uniquely
from hsdag.ir.device import DeviceSpec, hetero_properties
from hsdag.ir.errors import ExecutionError, HsdagError
from hsdag.ir.prepared import PreparedModel, prepare
from hsdag.ir.reader import input_name, last_line, load_model
from hsdag.runtime.measuring.in_flight import steady_period_s
from hsdag.runtime.measuring.references import REFERENCES, onnxruntime_outputs, op_by_op
from hsdag.runtime.measuring.worker_profile import COUNTERS, device_memory_bytes, op_times, probe, resident_bytes
from hsdag.runtime.platforms.devices import make_core
from hsdag.runtime.platforms.inference import infer_checked, reason_of

Request = Mapping[str, Any]
Answer = dict[str, Any]

_PLAIN, _COUNTED = "plain profile", "counted profile"


class Worker:
    """Compiled candidates by key, over one model and one set of devices."""

    def __init__(self, setup: Request) -> None:
        self.specs = tuple(DeviceSpec(d["name"], d["plugin"], d["properties"]) for d in setup["devices"])
        self.setup = setup
        shapes = {name: tuple(shape) for name, shape in setup["shapes"].items()}
        self.core = make_core(self.specs)
        self.model = load_model(Path(setup["model"]), shapes)
        name_uniquely(self.model)  # devices are asked about ops by name
        self.graph = graph_of(self.model)
        self.inputs = make_inputs(self.model, setup["seed"], setup.get("inputs"))
        self.inputs_are_given = setup.get("inputs") is not None
        self.compiled: dict[str, Any] = {}
        self.references: dict[str, list[NDArray[Any]]] = {}
        self.requests: dict[str, Any] = {}
        self.side_by_side: set[str] = set()  # candidates of the work-conserving executor
        self.stateful = bool(self.model.get_variables())

    @cached_property
    def prepared(self) -> PreparedModel:
        """The model for HETERO; made for the first placement."""
        return prepare(self.model, self.graph)

    def handle(self, request: Request) -> Answer:
        """The answer to one request, by its ``do``."""
        actions: dict[str, Callable[[Request], Answer]] = {
            "open": self.open,
            "run": self.run,
            "throughput": self.throughput,
            "close": self.close,
            "difference": self.difference,
            "unsupported": self.unsupported,
            "automatic": self.automatic,
            "op_times": self.op_times,
            "probe": self.probe,
            "timeline": self.timeline,
        }
        return actions[request["do"]](request)

    def open(self, request: Request) -> Answer:
        """Compile a candidate: ``target`` alone, or with ``devices``, OpenVINO's device name per op."""
        if request.get("executor", "hetero") == "work-conserving":
            return self._open_side_by_side(request)
        if request["target"] in REFERENCES:
            return self._open_reference(request)
        devices = request.get("devices")
        model = self.model if devices is None else self.prepared.place(devices)
        begin = time.perf_counter()
        properties = request.get("properties", {})
        if request["target"].startswith("HETERO:"):
            properties = hetero_properties(self.specs, properties)
        compiled = self.core.compile_model(model, request["target"], properties)
        compile_s = time.perf_counter() - begin
        self._keep(request["key"], compiled)
        submodels = 1
        if "HETERO_NUMBER_OF_SUBMODELS" in compiled.get_property("SUPPORTED_PROPERTIES"):
            submodels = int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
        chosen = [str(name).strip("()") for name in compiled.get_property("EXECUTION_DEVICES")]
        return {"compile_s": compile_s, "submodels": submodels, "devices": chosen}

    def run(self, request: Request) -> Answer:
        """Seconds of each of ``runs`` inferences, ending early after ``stop_after_s`` in all."""
        infer = self.requests[request["key"]]
        times_s: list[float] = []
        end = time.perf_counter() + request["stop_after_s"]
        while len(times_s) < request["runs"] and (not times_s or time.perf_counter() < end):
            if self.stateful:
                infer.reset_state()
            begin = time.perf_counter()
            infer.infer()
            times_s.append(time.perf_counter() - begin)
        return {"times_s": times_s}

    def throughput(self, request: Request) -> Answer:
        """Seconds per inference while ``requests`` are in flight, over ``runs`` inferences."""
        compiled = self.compiled[request["key"]]
        count = int(request["requests"])
        if request["key"] not in self.side_by_side:
            count = max(count, int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")))
        requests = [self._infer_request(compiled) for _ in range(count)]
        return {"period_s": steady_period_s(requests, max(request["runs"], count)), "requests": count}

    def close(self, request: Request) -> Answer:
        """Forget a candidate."""
        key = request["key"]
        self.references.pop(key, None)
        self.requests.pop(key, None)
        compiled = self.compiled.pop(key, None)
        if key in self.side_by_side:
            self.side_by_side.discard(key)
            compiled.close()
        return {}

    def timeline(self, request: Request) -> Answer:
        """When every subgraph ran in the median one of ``runs`` inferences; for the work-conserving executor."""
        from hsdag.runtime.measuring.worker_executor import timeline_document

        self._open_side_by_side(request)
        try:
            return timeline_document(self.requests[request["key"]], request["runs"])
        finally:
            self.close(request)

    def difference(self, request: Request) -> Answer:
        """How far the outputs of ``key`` are from those of ``reference`` on the same inputs."""
        return output_difference(self._outputs(request["key"]), self._outputs(request["reference"]))

    def unsupported(self, request: Request) -> Answer:
        """Indices of the ops that device ``device`` does not run."""
        supported = self.core.query_model(self.model, request["device"])
        names = {node.get_friendly_name() for node in self.model.get_ordered_ops()}
        missing = names - set(supported)
        return {"ops": [v for v, name in enumerate(self.graph.op_names) if name in missing]}

    def automatic(self, request: Request) -> Answer:
        """The device per op that ``target`` would choose by itself, OpenVINO's names; "" where it is silent."""
        chosen = self.core.query_model(self.model, request["target"])
        return {"devices": [str(chosen.get(name, "")) for name in self.graph.op_names]}

    def op_times(self, request: Request) -> Answer:
        """Times of the model's ops on ``target``, with ``devices`` per op where it takes several."""
        before = resident_bytes()
        self.open({**request, "key": _PLAIN})
        memory_bytes = max(resident_bytes() - before, 0)
        self.open({**request, "key": _COUNTED, "properties": {**request.get("properties", {}), **COUNTERS}})
        counted, plain = self.requests[_COUNTED], self.requests[_PLAIN]
        names = self.graph.op_names
        answer = op_times(
            counted, plain, self.compiled[_COUNTED], names, request["runs"], request["for_s"], stateful=self.stateful
        )
        for key in (_COUNTED, _PLAIN):
            self.close({"key": key})
        return {**answer, "resident_bytes": memory_bytes, "memory_bytes": device_memory_bytes(self.core, request["of"])}

    def probe(self, request: Request) -> Answer:
        """Seconds that a small model takes beside its ops, on one device or cut between two."""
        return probe(self.core, self.specs, request)

    def _open_reference(self, request: Request) -> Answer:
        """Keep outputs that were computed without compiling the model."""
        begin = time.perf_counter()
        if request["target"] == "op-by-op":
            found = op_by_op(self.core, self.model, self.inputs, request["inference_limit_s"])
        else:
            found = onnxruntime_outputs(Path(self.setup["model"]), self.model, self.inputs)
        self.references[request["key"]] = found
        return {"compile_s": time.perf_counter() - begin, "submodels": 0, "devices": []}

    def _open_side_by_side(self, request: Request) -> Answer:
        from hsdag.runtime.measuring.worker_executor import (
            compile_side_by_side,  # only here: what it compiles takes long
        )

        begin = time.perf_counter()
        compiled = compile_side_by_side(self.core, self.model, self.graph, self.specs, request)
        compile_s = time.perf_counter() - begin
        self._keep(request["key"], compiled, is_side_by_side=True)
        return {
            "compile_s": compile_s,
            "submodels": len(compiled.cut.subgraphs),
            "devices": request["target"].split(","),
        }

    def _keep(self, key: str, compiled: Any, *, is_side_by_side: bool = False) -> None:
        """Have a compiled candidate under a key, in place of what was there, if an inference of it goes through.

        What is timed afterwards is the same inference, unchecked. Raises RuntimeError when it fails.
        """
        self.close({"key": key})
        if is_side_by_side:
            self.side_by_side.add(key)
        self.compiled[key] = compiled
        self.requests[key] = self._infer_request(compiled)
        try:
            self._checked(self.requests[key])
        except RuntimeError:
            self.close({"key": key})
            raise

    def _checked(self, request: Any) -> None:
        """Infer from a fresh state, and raise RuntimeError with the reason when that fails."""
        if self.stateful:
            request.reset_state()
        try:
            infer_checked(request)
        except (RuntimeError, ExecutionError) as error:
            hint = (
                "" if self.inputs_are_given else "; the inputs are random: --input FILE.npz gives the model real ones"
            )
            raise RuntimeError(f"the inference failed: {reason_of(error)}{hint}") from error

    def _infer_request(self, compiled: Any) -> Any:
        request = compiled.create_infer_request()
        for port, tensor in zip(compiled.inputs, self.inputs, strict=True):
            request.set_tensor(port, tensor)
        return request

    def _outputs(self, key: str) -> list[NDArray[Any]]:
        if key in self.references:
            return self.references[key]
        request = self.requests[key]
        self._checked(request)
        return [np.array(request.get_output_tensor(i).data) for i in range(len(self.compiled[key].outputs))]


def make_inputs(model: ov.Model, seed: int, source: str | None) -> list[ov.Tensor]:
    """One tensor per model input, in order.

    From the arrays of an .npz file named like the inputs; else random: floats are standard normal, integers
    and booleans 0 or 1, which every embedding table admits. Raises HsdagError when the file does not fit.
    """
    rng = np.random.default_rng(seed)
    arrays = np.load(source, allow_pickle=False) if source else {}
    tensors = []
    for port in model.inputs:
        shape, element_type = tuple(port.get_shape()), port.get_element_type()
        tensor = ov.Tensor(element_type, ov.Shape(list(shape)))
        if source:
            name = next((n for n in sorted(port.get_names()) if n in arrays), input_name(port))
            if name not in arrays or arrays[name].shape != shape:
                raise HsdagError(f"{source} needs an array {name!r} of shape {list(shape)} for the model's input")
            tensor.data[...] = arrays[name]
        elif element_type.is_real():
            tensor.data[...] = rng.standard_normal(shape).astype(np.float32)
        else:
            tensor.data[...] = rng.integers(0, 2, tensor.data.shape)  # packed types: fewer bytes than elements
        tensors.append(tensor)
    return tensors


def output_difference(found: list[NDArray[Any]], expected: list[NDArray[Any]]) -> Answer:
    """Distance of outputs, the largest over all of them (Table 4 of the HSDAG paper uses the same figures).

    ``max_relative`` is the largest difference over the largest finite magnitude expected. Values that are not
    finite must be the same on both sides; where they are not, ``max_relative`` is None and so are the figures
    that cannot be told.
    """
    worst: Answer = {"max_abs": 0.0, "max_relative": 0.0, "mse": 0.0, "l2": 0.0, "cosine": 1.0}
    for left, right in zip(found, expected, strict=True):
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


def serve(make_worker: Callable[[Request], Worker], requests: TextIO, answers: TextIO) -> None:
    """Answer requests until they end. The first one is the setup."""
    worker: Worker | None = None
    for line in requests:
        request = json.loads(line)
        try:
            if worker is None:
                worker, answer = make_worker(request), {}
            else:
                answer = worker.handle(request)
        except (RuntimeError, ValueError, MemoryError, HsdagError) as error:
            message = str(error) if isinstance(error, HsdagError) else last_line(error)
            users = isinstance(error, HsdagError) and not isinstance(error, ExecutionError)  # a candidate's own
            answer = {"error": message, "user": users}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main(make_worker: Callable[[Request], Worker] = Worker) -> None:
    """Serve over stdin and the original stdout; what plugins print to stdout goes to stderr."""
    _die_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(make_worker, sys.stdin, answers)


def _die_with_parent() -> None:
    """On Linux, have the kernel end this process when the one that started it is killed."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    main()
