"""The worker process of the CUDA engine: answers what the OpenVINO worker answers, of placements on torch devices.

Legend: N nodes, D devices, R results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.evaluators.torch.workload_graph import problem_graph, random_inputs
from hsdag.ir.errors import HsdagError
from hsdag.ir.graph import Csr
from hsdag.ir.processes import Request, main
from hsdag.ir.reader import input_name
from hsdag.models.workload_numpy import values_of
from hsdag.runtime.measuring.candidate import Candidate, Open, TimelineOf
from hsdag.runtime.measuring.differences import output_difference
from hsdag.runtime.measuring.inferences import InputArrays, steady_period_s
from hsdag.runtime.measuring.messages import (
    Choices,
    Close,
    Difference,
    LeftToOpenVino,
    Opened,
    OpTimes,
    Probe,
    Probed,
    Run,
    SideBySide,
    Throughput,
    WorkerSetup,
)
from hsdag.runtime.measuring.probes import median_error_s, probe_model, times_beside
from hsdag.runtime.measuring.worker import Worker
from hsdag.runtime.platforms.inference import array_of
from hsdag.runtime.problems.problem_file import read_problem
from hsdag.runtime.timeline.timeline import Timeline
from hsdag.runtime.torch import (
    Feed,
    LogicalDevice,
    Program,
    TorchExecutor,
    TorchGraph,
    TorchNode,
    TorchRequest,
    allow_tf32,
    build_program,
    openvino_graph,
)
from hsdag.runtime.torch.buffers import Inputs
from hsdag.runtime.torch.devices import NO_LIMIT, logical_device

Arrays = list[NDArray[Any]]

WARM_UPS = 2
BARRIER = "barrier"
"""The property of a candidate that runs level by level."""


class ModelSource:
    """An OpenVINO model; references are OpenVINO's.

    Raises UnsupportedOpError for an op that runs neither in torch nor by itself, and as reading models and inputs does.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._worker = Worker(replace(setup, devices=()))
        model = self._worker.model
        self.graph = openvino_graph(model)
        named = zip(model.inputs, self._worker.courses[0].inferences[0], strict=True)
        self.inputs: Inputs = {input_name(port): array_of(tensor) for port, tensor in named}

    def reference(self, request: Open) -> Arrays:
        """What OpenVINO computes: the whole model compiled for the CPU, or op by op; or ONNX Runtime."""
        self._worker.open(request)
        found = self._worker.outputs(request.key)
        self._worker.close(Close(request.key))
        return found


class WorkloadSource:
    """A problem file whose ops have expressions; the reference is NumPy in double precision.

    Raises ModelError for an op without an expression, HsdagError for a file of inputs that lacks one.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        assert setup.model is not None
        self._problem = read_problem(setup.model)
        self.graph = problem_graph(self._problem)
        self.inputs: Inputs = random_inputs(self.graph, setup.seed)
        if setup.inputs is not None:
            self.inputs = _read(setup.inputs, self.graph, self.inputs)

    def reference(self, request: Open) -> Arrays:  # noqa: ARG002 - there is one alone
        """What the expressions give."""
        problem = self._problem
        before = Csr.build(problem.num_ops, problem.edge_dst, problem.edge_src)
        sources = [before.of(v).tolist() for v in range(problem.num_ops)]
        wide = {name: _widened(torch.as_tensor(x)) for name, x in self.inputs.items()}
        wanted = [v for v, _ in self.graph.outputs.values()]
        order = problem.topological_order.tolist()
        values = values_of(problem.labels.expressions, sources, order, wide, set(wanted))
        return [values[v] for v in wanted]


def _read(path: Path, graph: TorchGraph, like: Inputs) -> Inputs:
    """The arrays of a file, of the shapes of others."""
    arrays = InputArrays(path)
    lacking = [name for name in graph.inputs if name not in arrays.names]
    if lacking:
        raise HsdagError(f"{path} needs an array {lacking[0]!r}; the inputs are {', '.join(graph.inputs)}")
    types = {node.feed.tensor: node.feed.dtype for node in graph.nodes if node.feed is not None}
    return {name: torch.as_tensor(arrays.read(name, tuple(like[name].shape))).to(types[name]) for name in graph.inputs}


def _widened(x: torch.Tensor) -> NDArray[Any]:
    return x.to(torch.complex128 if x.is_complex() else torch.float64).numpy()


class TorchWorker:
    """Placed graphs by key, over one source and one set of devices. Products in f32 are not rounded to TF32."""

    def __init__(self, setup: WorkerSetup) -> None:
        allow_tf32(False)
        self._devices = {spec.openvino_name: logical_device(spec) for spec in setup.devices}
        is_workload = setup.model is not None and setup.model.suffix == ".json"
        self._source = WorkloadSource(setup) if is_workload else ModelSource(setup)
        self._executors: dict[str, TorchExecutor] = {}
        self._requests: dict[str, TorchRequest] = {}
        self._references: dict[str, Arrays] = {}

    def handle(self, request: Request[Any]) -> Any:
        """The answer to a request, by its type."""
        actions: dict[type[Request[Any]], Callable[[Any], Any]] = {
            Open: self.open,
            Run: self.run,
            Throughput: self.throughput,
            Close: self.close,
            Difference: lambda asked: output_difference(self.outputs(asked.key), self.outputs(asked.reference)),
            Choices: lambda asked: [asked.target] * self._source.graph.num_nodes,
            LeftToOpenVino: lambda _: sorted({node.op_type for node in self._source.graph.nodes if not node.in_torch}),
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

    def throughput(self, request: Throughput) -> float:
        """Several inferences of one executor in flight."""
        executor = self._executors[request.key]
        requests = [TorchRequest(executor) for _ in range(request.requests)]
        return steady_period_s(requests, max(request.runs, request.requests))

    def close(self, request: Close) -> None:
        """Forget a candidate; nothing where there is none."""
        self._references.pop(request.key, None)
        self._requests.pop(request.key, None)
        executor = self._executors.pop(request.key, None)
        if executor is not None:
            executor.close()

    def outputs(self, key: str) -> Arrays:
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
        with TorchExecutor(program) as executor:
            executor.load(self._source.inputs)
            infer = TorchRequest(executor)
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
            resident_bytes = executor.resident_bytes
        median_s, (low, middle, high) = np.median(taken_s, axis=0), np.quantile(latencies_s, [0.25, 0.5, 0.75])
        types = [node.op_type for node in graph.nodes]
        return {
            "primitives": [[[v], s, 0, types[v]] for v, s in enumerate(median_s.tolist()) if s > 0],
            "latency_s": float(middle),
            "spread": float((high - low) / middle),
            "runs": len(latencies_s),
            "resident_bytes": resident_bytes,
            "memory_bytes": self._memory_bytes(request.of),
            "compile_s": compile_s,
        }

    def probe(self, request: Probe) -> Probed:
        """Seconds that tensors take from one device to another, beside the ops at both ends."""
        devices = [replace(self._devices[name], memory_bytes=NO_LIMIT) for name in request.devices]
        return _probed(probe_program(devices, request.tensors, request.size_bytes), request.runs, request.for_s)

    def contention(self, request: SideBySide) -> list[list[list[tuple[float, float]]]]:
        """Times of devices alone and side by side, each with the graph or a small model of its own."""
        graph, inputs = self._source.graph, self._source.inputs
        if request.kind != "model":
            graph = openvino_graph(probe_model(request.kind))
            inputs = random_inputs(graph)
        executors = [self._placed(graph, Candidate(spec.openvino_name)) for spec in request.devices]
        try:
            for executor in executors:
                executor.load(inputs)
            return times_beside([TorchRequest(executor) for executor in executors], request.for_s)
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


def probe_program(devices: Sequence[LogicalDevice], tensors: int, size_bytes: int) -> Program:
    """An op on the first device that makes ``tensors`` tensors, and one on the last that reads them all."""
    given = TorchNode("sent", feed=Feed("sent", torch.uint8, (size_bytes,)))
    near = TorchNode(
        "near",
        "Split",
        ((0, 0),),
        lambda xs: tuple(xs[0].clone() for _ in range(tensors)),
        output_bytes=(float(size_bytes),) * tensors,
    )
    far = TorchNode("far", "Concat", tuple((1, k) for k in range(tensors)), lambda xs: (xs[0][:1].clone(),))
    return build_program(TorchGraph("probe", (given, near, far), {"y": (2, 0)}), [0, 0, len(devices) - 1], devices)


def _probed(program: Program, runs: int, for_s: float) -> Probed:
    """What a probe's inferences take beside its two ops: the median and its standard error, and bytes of a tensor."""
    (feed,) = program.feeds.values()
    rest_s: list[float] = []
    with TorchExecutor(program) as executor:
        executor.load({feed.tensor: np.zeros(feed.shape, dtype=np.uint8)})
        request = TorchRequest(executor)
        for _ in range(3):
            request.infer()
        end_s = time.perf_counter() + for_s
        while len(rest_s) < runs and (len(rest_s) < 5 or time.perf_counter() < end_s):
            request.infer()
            ops = request.timeline.ops
            rest_s.append(request.latency - float((ops.end_s - ops.start_s).sum()))
    return Probed(float(np.median(rest_s)), median_error_s(rest_s), feed.shape[0])


def _names(candidate: Candidate) -> Sequence[str]:
    """The devices of a candidate in their order."""
    return candidate.target.split(",")


def _array_of(tensor: torch.Tensor) -> NDArray[Any]:
    plain = tensor.detach().cpu()
    return np.asarray((plain.float() if plain.dtype is torch.bfloat16 else plain).numpy())


if __name__ == "__main__":
    main(lambda setup, _: TorchWorker(setup))
