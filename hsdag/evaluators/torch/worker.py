"""The worker process of the CUDA engine: answers what the OpenVINO worker answers, of placements on torch devices.

Legend: N nodes, D devices, R results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.evaluators.torch.probing import probe_program, probed
from hsdag.evaluators.torch.requests import TorchRequest
from hsdag.evaluators.torch.sources import source_of
from hsdag.evaluators.torch.workload_graph import random_inputs
from hsdag.ir.processes import Request, main
from hsdag.runtime.measuring.candidate import Candidate, Open, TimelineOf
from hsdag.runtime.measuring.inferences import steady_period_s
from hsdag.runtime.measuring.messages import (
    Choices,
    Close,
    Difference,
    InFlight,
    Opened,
    OpTimes,
    Probe,
    Probed,
    Run,
    SideBySide,
    Throughput,
    WorkerSetup,
)
from hsdag.runtime.measuring.probes import probe_model, times_beside
from hsdag.runtime.measuring.worker import output_difference
from hsdag.runtime.timeline.timeline import Timeline
from hsdag.runtime.torch_backend import TorchExecutor, TorchGraph, build_program
from hsdag.runtime.torch_backend.device import NO_LIMIT
from hsdag.runtime.torch_backend.openvino_graph import openvino_graph
from hsdag.runtime.torch_backend.specs import logical_device
from hsdag.runtime.torch_ops import allow_tf32

WARM_UPS = 2
BARRIER = "barrier"
"""The property of a candidate that runs level by level."""


class TorchWorker:
    """Placed graphs by key, over one source and one set of devices. Products in f32 are not rounded to TF32."""

    def __init__(self, setup: WorkerSetup) -> None:
        allow_tf32(False)
        self._devices = {spec.openvino_name: logical_device(spec) for spec in setup.devices}
        self._source = source_of(setup)
        self._executors: dict[str, TorchExecutor] = {}
        self._requests: dict[str, TorchRequest] = {}
        self._references: dict[str, list[NDArray[Any]]] = {}

    def handle(self, request: Request[Any]) -> Any:
        """The answer to a request, by its type."""
        actions: dict[type[Request[Any]], Callable[[Any], Any]] = {
            Open: self.open,
            Run: self.run,
            Throughput: self.throughput,
            Close: self.close,
            Difference: lambda asked: output_difference(self.outputs(asked.key), self.outputs(asked.reference)),
            Choices: lambda asked: [asked.target] * self._source.graph.num_nodes,
            OpTimes: self.op_times,
            Probe: self.probe,
            SideBySide: self.contention,
            TimelineOf: self.timeline,
        }
        return actions[type(request)](request)

    def open(self, request: Open) -> Opened:
        """Place the graph, put constants and inputs on their devices, and see that an inference goes through.

        The answer counts tasks in place of submodels. A candidate that names no device of ours is a reference.
        """
        self.close(Close(request.key))
        candidate, begin_s = request.candidate, time.perf_counter()
        if candidate.devices is None and candidate.target not in self._devices:
            self._references[request.key] = self._source.reference(request)
            return Opened(time.perf_counter() - begin_s, 0, ())
        executor = self._placed(self._source.graph, candidate)
        self._executors[request.key] = executor
        self._requests[request.key] = TorchRequest(executor, request.inference_limit_s)
        try:
            executor.load(self._source.inputs)
            self._requests[request.key].infer()
        except BaseException:
            self.close(Close(request.key))
            raise
        program = executor.program
        used = [name for d, name in enumerate(_names(candidate)) if (program.device_of == d).any()]
        return Opened(time.perf_counter() - begin_s, program.tasks.num_tasks, tuple(used))

    def run(self, request: Run) -> list[float]:
        """Makespans, ending early after ``stop_after_s``."""
        times_s: list[float] = []
        end_s = time.perf_counter() + request.stop_after_s
        while len(times_s) < request.runs and (not times_s or time.perf_counter() < end_s):
            self._requests[request.key].infer()
            times_s.append(self._requests[request.key].latency)
        return times_s

    def throughput(self, request: Throughput) -> InFlight:
        """Several inferences of one executor in flight."""
        executor = self._executors[request.key]
        requests = [TorchRequest(executor, None) for _ in range(request.requests)]
        return InFlight(steady_period_s(requests, max(request.runs, request.requests)), request.requests)

    def close(self, request: Close) -> None:
        """Forget a candidate; nothing where there is none."""
        self._references.pop(request.key, None)
        self._requests.pop(request.key, None)
        executor = self._executors.pop(request.key, None)
        if executor is not None:
            executor.close()

    def outputs(self, key: str) -> list[NDArray[Any]]:
        """[R] what a candidate computes."""
        if key in self._references:
            return self._references[key]
        self._requests[key].start_async()
        return [_array_of(tensor) for tensor in self._requests[key].wait().values()]

    def timeline(self, request: TimelineOf) -> Timeline:
        """That of the median of ``runs`` inferences, after two to warm up."""
        key, found = request.opening.key, []
        self.open(request.opening)
        try:
            for _ in range(WARM_UPS + request.runs):
                self._requests[key].infer()
                found.append((self._requests[key].latency, self._requests[key].timeline))
        finally:
            self.close(Close(key))
        timeline: Timeline = sorted(found[WARM_UPS:], key=lambda run: run[0])[(request.runs - 1) // 2][1]
        return timeline

    def op_times(self, request: OpTimes) -> dict[str, Any]:
        """Medians of ops in an executor that has one device; what constants and inputs take is what is resident."""
        device = replace(self._devices[request.of], memory_bytes=NO_LIMIT)
        graph, begin_s = self._source.graph, time.perf_counter()
        program = build_program(graph, [0] * graph.num_nodes, [device])
        with TorchExecutor(program, count_memory=True) as executor:
            executor.load(self._source.inputs)
            infer = TorchRequest(executor, None)
            infer.infer()
            compile_s = time.perf_counter() - begin_s
            taken_s: list[NDArray[np.float64]] = []
            latencies_s: list[float] = []
            end_s = time.perf_counter() + request.for_s
            while len(taken_s) < request.runs and (len(taken_s) < 3 or time.perf_counter() < end_s):
                infer.infer()
                ran = infer.timeline.ops
                of_node = np.zeros(graph.num_nodes)
                of_node[program.node_of[ran.op]] = ran.end_s - ran.start_s
                taken_s.append(of_node)
                latencies_s.append(infer.latency)
            held_bytes = sum(executor.held_memory_bytes.values())
        median_s, (low, middle, high) = np.median(taken_s, axis=0), np.quantile(latencies_s, [0.25, 0.5, 0.75])
        types = [node.op_type for node in graph.nodes]
        return {
            "primitives": [[[v], s, 0, types[v]] for v, s in enumerate(median_s.tolist()) if s > 0],
            "latency_s": float(middle),
            "spread": float((high - low) / middle),
            "runs": len(latencies_s),
            "resident_bytes": held_bytes,
            "memory_bytes": self._memory_bytes(request.of),
            "compile_s": compile_s,
        }

    def probe(self, request: Probe) -> Probed:
        """Seconds that tensors take from one device to another, beside the ops at both ends."""
        devices = [replace(self._devices[name], memory_bytes=NO_LIMIT) for name in request.devices]
        return probed(probe_program(devices, request.tensors, request.size_bytes), request.runs, request.for_s)

    def contention(self, request: SideBySide) -> list[list[list[tuple[float, float]]]]:
        """Times of devices alone and side by side, each with the graph or a small model of its own."""
        graph, inputs = self._source.graph, self._source.inputs
        if request.kind != "model":
            graph = openvino_graph(probe_model(request.kind))
            inputs = random_inputs(graph)
        executors = [self._placed(graph, Candidate(name)) for name in request.devices]
        try:
            for executor in executors:
                executor.load(inputs)
            return times_beside([TorchRequest(executor, None) for executor in executors], request.for_s)
        finally:
            for executor in executors:
                executor.close()

    def _placed(self, graph: TorchGraph, candidate: Candidate) -> TorchExecutor:
        """A graph on the devices of a candidate, with the order and the mode that it wants."""
        names = _names(candidate)
        home = {name: d for d, name in enumerate(names)}
        placement = [0] * graph.num_nodes if candidate.devices is None else [home[name] for name in candidate.devices]
        program = build_program(graph, placement, [self._devices[name] for name in names])
        given = candidate.priority
        last = len(given) if given else 0  # what has no rank comes behind the others
        ranks = None if given is None else np.array([last if r is None else r for r in given], dtype=np.float64)
        return TorchExecutor(program, ranks=ranks, barrier=bool(candidate.properties.get(BARRIER)))

    def _memory_bytes(self, name: str) -> float | None:
        """The limit of a device, else its share of a GPU's memory; None on the CPU."""
        device = self._devices[name]
        if device.memory_bytes != NO_LIMIT or not device.is_cuda:
            return device.memory_bytes if device.memory_bytes != NO_LIMIT else None
        sharing = sum(other.torch_device == device.torch_device for other in self._devices.values())
        return float(torch.cuda.get_device_properties(device.physical).total_memory) / sharing


def _names(candidate: Candidate) -> Sequence[str]:
    """The devices of a candidate in their order."""
    return candidate.target.split(",")


def _array_of(tensor: torch.Tensor) -> NDArray[Any]:
    plain = tensor.detach().cpu()
    return np.asarray((plain.float() if plain.dtype is torch.bfloat16 else plain).numpy())


if __name__ == "__main__":
    main(lambda setup, _: TorchWorker(setup))
