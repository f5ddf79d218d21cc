"""Run the worker process of the CUDA engine, which answers the OpenVINO worker's requests on torch devices.

Legend: N nodes, D devices, R results.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.base.errors import ExecutionError, HsdagError
from hsdag.base.processes import main
from hsdag.ir.device import DeviceSpec
from hsdag.ir.elements import array_of
from hsdag.ir.graph.reader import input_name
from hsdag.runtime.measuring.candidates import Compiler, OpenCandidates
from hsdag.runtime.measuring.differences import output_difference
from hsdag.runtime.measuring.inferences import REQUESTS_IN_FLIGHT, InputArrays, steady_period_s
from hsdag.runtime.measuring.measured_model import MeasuredModel
from hsdag.runtime.measuring.measurer import TorchMeasurer
from hsdag.runtime.measuring.messages import (
    CAPTURED,
    PLAIN,
    Beside,
    CallHandler,
    Candidate,
    Distance,
    Opened,
    OpTimes,
    Probe,
    Probed,
    WorkerSetup,
)
from hsdag.runtime.measuring.probes import median_error_s, probe_model, times_beside
from hsdag.runtime.problem.problem_file import read_problem
from hsdag.runtime.timeline import Timeline
from hsdag.runtime.torch.buffers import Inputs
from hsdag.runtime.torch.devices import LogicalDevice, logical_device
from hsdag.runtime.torch.executor import TorchExecutor, TorchRequest
from hsdag.runtime.torch.graph import Feed, TorchGraph, TorchNode, openvino_graph
from hsdag.runtime.torch.op import allow_tf32
from hsdag.runtime.torch.plain import PlainExecutor, PlainRequest, PlainStart
from hsdag.runtime.torch.program import Program, build_program
from hsdag.runtime.torch.workload_graph import double_values, problem_graph, random_inputs

Arrays = list[NDArray[Any]]

WARM_UPS, LEAST_RUNS = 2, 5
"""Number of inferences before those that are timed; and least number that is timed, even past the time limit."""


@dataclass(frozen=True, eq=False)
class GraphSource:
    """A graph, its inputs by name, and the function that computes its reference outputs [R].

    The function takes a candidate that names the reference, a limit in seconds for an inference, and the inputs.
    """

    graph: TorchGraph
    inputs: Inputs
    reference: Callable[[Candidate, float | None, Inputs], Arrays]


def of_model(setup: WorkerSetup) -> GraphSource:
    """Return an OpenVINO model as a source, whose references OpenVINO computes: compiled for the CPU, or op by op.

    Raises UnsupportedOpError for an op that torch does not run and OpenVINO does not run by itself, and the errors of
    reading models and inputs.
    """
    measured = MeasuredModel(replace(setup, devices=()))
    candidates = OpenCandidates(Compiler(measured))

    def reference(candidate: Candidate, limit_s: float | None, _: Inputs) -> Arrays:
        candidates.open(candidate.target, candidate, limit_s)
        outputs = candidates.outputs(candidate.target)
        candidates.close(candidate.target)
        return outputs

    named = zip(measured.model.inputs, measured.courses[0].inferences[0], strict=True)
    inputs = {input_name(port): array_of(tensor) for port, tensor in named}
    return GraphSource(openvino_graph(measured.model), inputs, reference)


def of_problem(setup: WorkerSetup) -> GraphSource:
    """Return a problem file whose ops have expressions as a source, whose reference is computed in double precision.

    Raises ModelError for an op without an expression, and HsdagError for a file of inputs that lacks one of them.
    """
    assert setup.model is not None
    problem = read_problem(setup.model)
    graph = problem_graph(problem)

    def reference(_: Candidate, __: float | None, inputs: Inputs) -> Arrays:
        sources = [[u for u, _ in node.reads] for node in graph.nodes]
        tensors = {name: torch.as_tensor(x) for name, x in inputs.items()}
        wanted = [v for v, _ in graph.outputs.values()]
        values = double_values(problem.labels.expressions, sources, graph.order.tolist(), tensors, set(wanted))
        return [values[v].numpy() for v in wanted]

    inputs = random_inputs(graph, setup.seed)
    if setup.inputs is not None:
        arrays = InputArrays(setup.inputs)
        for name, x in inputs.items():
            if name not in arrays.names:
                raise HsdagError(f"{setup.inputs} needs an array {name!r}; the inputs are {', '.join(inputs)}")
            inputs[name] = torch.as_tensor(arrays.read(name, tuple(x.shape))).to(x.dtype)
    return GraphSource(graph, inputs, reference)


class TorchWorker(CallHandler):
    """Worker that runs placements of one source on one set of devices, each with its precision of products in f32.

    Targets are devices and, as baselines, ``EAGER:`` or ``GRAPH:`` and a device: without the engine, the latter as a
    CUDA graph.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        allow_tf32(False)
        self._devices = {spec.openvino_name: logical_device(spec) for spec in setup.devices}
        assert setup.model is not None
        self._source = (of_problem if setup.model.suffix == ".json" else of_model)(setup)
        if any(device.is_cuda for device in self._devices.values()):
            self._source = replace(self._source, graph=self._source.graph.pinned())
        self._requests: dict[str, TorchRequest | PlainRequest] = {}
        self._references: dict[str, Arrays] = {}

    def open(self, key: str, candidate: Candidate, inference_limit_s: float | None = None) -> Opened:
        """Place the graph, move constants and inputs to their devices, and make a first inference.

        A candidate whose target is no device of this worker is a reference. In the answer, tasks are counted in place
        of submodels.
        """
        self.close(key)
        begin_s = time.perf_counter()
        mode, _, name = candidate.target.partition(":")
        if mode in PLAIN and name in self._devices:
            self._requests[key] = self._plain_request(name, captured=mode == CAPTURED)
        elif candidate.devices is None and candidate.target not in self._devices:
            self._references[key] = self._source.reference(candidate, inference_limit_s, self._source.inputs)
            return Opened(time.perf_counter() - begin_s, 0, ())
        else:
            self._requests[key] = self._request(candidate, limit_s=inference_limit_s)
        request = self._requests[key]
        try:
            request.infer()
        except BaseException:
            self.close(key)
            raise
        program = request.executor.program
        names = [name] if mode in PLAIN else candidate.target.split(",")
        used = [name for d, name in enumerate(names) if (program.device_of == d).any()]
        return Opened(time.perf_counter() - begin_s, program.tasks.num_tasks, tuple(used))

    def run(self, key: str, runs: int, stop_after_s: float, scenario: int | None = None) -> list[float]:  # noqa: ARG002
        """Return the seconds of ``runs`` inferences, or of fewer if these take longer than ``stop_after_s``."""
        return latencies(self._requests[key], runs, stop_after_s, warm_ups=0, least_runs=1)

    def throughput(self, key: str, requests: int | None, runs: int, most_s: float = math.inf) -> float:
        """Return the seconds per inference with several of them in flight in one executor."""
        request = self._requests[key]
        num = requests or REQUESTS_IN_FLIGHT
        if isinstance(request, TorchRequest):
            return steady_period_s([TorchRequest(request.executor) for _ in range(num)], runs, most_s)
        return steady_period_s([PlainStart(request.executor) for _ in range(num)], runs, most_s)

    def close(self, key: str) -> None:
        """Release a candidate, if there is one of this key."""
        self._references.pop(key, None)
        if (request := self._requests.pop(key, None)) is not None:
            request.executor.close()

    def difference(self, key: str, reference: str) -> Distance:
        """Return how far the outputs of one candidate are from those of another."""
        return output_difference(self.outputs(key), self.outputs(reference))

    def choices(self, target: str) -> list[str]:
        """Return the device [N] that runs each op, which is always ``target``."""
        return [target] * self._source.graph.num_nodes

    def left_to_openvino(self) -> list[str]:
        """Return the types of the ops that torch does not run, so that OpenVINO evaluates them on the CPU."""
        return sorted({node.op_type for node in self._source.graph.nodes if not node.in_torch})

    def outputs(self, key: str) -> Arrays:
        """Return the outputs [R] of a candidate."""
        if key in self._references:
            return self._references[key]
        self._requests[key].start_async()
        return [_array_of(tensor) for tensor in self._requests[key].wait().values()]

    def timeline(self, candidate: Candidate, runs: int, inference_limit_s: float | None = None) -> Timeline:
        """Return the timeline of the inference with the median latency of ``runs``."""
        request = self._request(candidate, limit_s=inference_limit_s)
        with request.executor:
            inferences = timed(request, runs)
        return sorted(inferences, key=lambda run: run[0])[(runs - 1) // 2][1]

    def op_times(
        self,
        candidate: Candidate,  # noqa: ARG002
        of: str,
        runs: int,
        for_s: float,
        again_s: float = math.inf,  # noqa: ARG002
    ) -> OpTimes:
        """Return the median seconds of each op on one device, and the figures of the whole graph there.

        The resident bytes are those of constants and inputs.

        Args:
            of: Device, by OpenVINO's name.
            for_s: Seconds after which no further inference is started.
        """
        begin_s = time.perf_counter()
        request = self._request(Candidate(of))
        with request.executor as executor:
            compile_s = time.perf_counter() - begin_s
            device = self._devices[of]
            taken = MemoryTaken(device) if device.is_cuda else None
            inferences = timed(request, runs, for_s)
            memory_bytes = None
            if taken is not None:
                sharing = sum(other.torch_device == device.torch_device for other in self._devices.values())
                memory_bytes = taken.left_bytes(executor.program.peak_bytes) / sharing
        taken_s = np.zeros((len(inferences), self._source.graph.num_nodes))
        for k, (_, timeline) in enumerate(inferences):
            taken_s[k, executor.program.node_of[timeline.ops.op]] = timeline.ops.end_s - timeline.ops.start_s
        low, middle, high = np.quantile([latency_s for latency_s, _ in inferences], [0.25, 0.5, 0.75])
        median_s = np.median(taken_s, axis=0).tolist()
        return {
            "primitives": [([v], s, 0, self._source.graph.nodes[v].op_type) for v, s in enumerate(median_s) if s > 0],
            "latency_s": float(middle),
            "spread": float((high - low) / middle),
            "runs": len(inferences),
            "resident_bytes": executor.residents.size_bytes,
            "memory_bytes": memory_bytes,
            "compile_s": compile_s,
        }

    def probe(self, what: Probe) -> Probed:
        """Return the median seconds of a transfer between devices, without the ops at both ends.

        Raises ExecutionError if the data arrive changed.
        """
        devices = [self._devices[name] for name in what.devices]
        with TorchExecutor(probe_program(devices, what.tensors, what.size_bytes)) as executor:
            sent = np.arange(what.size_bytes).astype(np.uint8)
            request = TorchRequest(executor)
            executor.load({"sent": sent})
            inferences = timed(request, what.runs, what.for_s)
            if not np.array_equal(_array_of(request.wait()["y"]), sent):
                raise ExecutionError(f"a copy from {devices[0].name} to {devices[-1].name} is damaged")
        rest_s = [
            latency_s - float((timeline.ops.end_s - timeline.ops.start_s).sum()) for latency_s, timeline in inferences
        ]
        return Probed(float(np.median(rest_s)), median_error_s(rest_s), what.size_bytes)

    def contention(self, devices: Sequence[DeviceSpec], kind: str, whole_devices: Sequence[DeviceSpec] = ()) -> Beside:
        """Return one window of devices alone and side by side, each with the graph or a small model of its own."""
        graph = None if kind == "model" else openvino_graph(probe_model(kind))
        with ExitStack() as stack:
            requests = [self._request(Candidate(spec.openvino_name), graph) for spec in (*devices, *whole_devices)]
            for request in requests:
                stack.enter_context(request.executor)
                request.infer()
            return times_beside(requests, len(whole_devices))

    def pulse(self) -> list[float]:
        """Return nothing: there is no small model that is always the same."""
        return []

    def forget_probes(self) -> None:
        """Do nothing, as windows keep nothing."""

    def _plain_request(self, name: str, *, captured: bool) -> PlainRequest:
        """Return the graph of the source on one device without the engine, with its inputs."""
        graph = self._source.graph
        program = build_program(graph, np.zeros(graph.num_nodes), [self._devices[name]])
        executor = PlainExecutor(program, captured=captured)
        executor.load(self._source.inputs)
        return PlainRequest(executor)

    def _request(
        self,
        candidate: Candidate,
        graph: TorchGraph | None = None,
        *,
        limit_s: float | None = None,
    ) -> TorchRequest:
        """Return a request that runs a graph, by default the source's, as a candidate places and orders it."""
        names = candidate.target.split(",")
        inputs = self._source.inputs if graph is None else random_inputs(graph)
        graph = graph or self._source.graph
        devices = [self._devices[name] for name in names]
        placement = np.zeros(graph.num_nodes) if candidate.devices is None else map(names.index, candidate.devices)
        ranks = candidate.priority
        last = len(ranks) if ranks else 0  # ops without a rank come after the others
        priority = None if ranks is None else np.array([last if r is None else r for r in ranks], dtype=np.float64)
        executor = TorchExecutor(build_program(graph, list(placement), devices), priority=priority)
        try:
            executor.load(inputs)
        except BaseException:
            executor.close()
            raise
        return TorchRequest(executor, limit_s)


class MemoryTaken:
    """The memory that inferences take of a GPU, from the creation of the object on."""

    def __init__(self, device: LogicalDevice) -> None:
        self._gpu = device.physical
        torch.cuda.reset_peak_memory_stats(self._gpu)
        self._begin_bytes = torch.cuda.memory_allocated(self._gpu)

    def left_bytes(self, planned_bytes: float) -> float:
        """Return the bytes that constants and results of a plan may take.

        Contexts, libraries and other programs have taken their part already. Subtracted is also what ops took beyond
        their results: workspaces, whole results of which only a view is left, and results of tasks enqueued early.

        Args:
            planned_bytes: Most bytes that results of the inferences since then take at once by ``Program.peak_bytes``.
        """
        free_bytes, _ = torch.cuda.mem_get_info(self._gpu)
        peak_bytes = torch.cuda.max_memory_allocated(self._gpu) - self._begin_bytes
        return float(free_bytes + torch.cuda.memory_reserved(self._gpu) - max(0.0, peak_bytes - planned_bytes))


def probe_program(devices: Sequence[LogicalDevice], tensors: int, size_bytes: int) -> Program:
    """Return a program whose op on the first device makes several tensors that an op on the last device reads."""
    sizes = (float(size_bytes),) * tensors
    nodes = (
        TorchNode("sent", feed=Feed("sent", torch.uint8, (size_bytes,))),
        TorchNode("near", "Split", ((0, 0),), lambda xs: [xs[0].clone() for _ in range(tensors)], output_bytes=sizes),
        TorchNode("far", "Concat", tuple((1, k) for k in range(tensors)), lambda xs: (xs[-1],)),
    )
    return build_program(TorchGraph("probe", nodes, {"y": (2, 0)}), [0, 0, len(devices) - 1], devices)


def timed(request: TorchRequest, runs: int, for_s: float = math.inf) -> list[tuple[float, Timeline]]:
    """Return seconds and timelines of ``runs`` inferences after warm-ups, or of fewer as ``latencies`` does."""
    timelines: list[Timeline] = []
    latencies_s = latencies(request, runs, for_s, after_each=lambda: timelines.append(request.run.timeline))
    return list(zip(latencies_s, timelines, strict=True))


def latencies(
    request: TorchRequest | PlainRequest,
    runs: int,
    for_s: float = math.inf,
    *,
    warm_ups: int = WARM_UPS,
    least_runs: int = LEAST_RUNS,
    after_each: Callable[[], object] = lambda: None,
) -> list[float]:
    """Return the seconds that each of ``runs`` inferences took.

    Args:
        for_s: Seconds after which no further inference is started.
        least_runs: Number of inferences that are timed even after ``for_s``, if ``runs`` is not smaller.
    """
    for _ in range(warm_ups):
        request.infer()
    latencies_s: list[float] = []
    end_s = time.perf_counter() + for_s
    while len(latencies_s) < runs and (len(latencies_s) < least_runs or time.perf_counter() < end_s):
        request.infer()
        latencies_s.append(request.latency)
        after_each()
    return latencies_s


def _array_of(tensor: torch.Tensor) -> NDArray[Any]:
    plain = tensor.detach().cpu()
    return np.asarray((plain.float() if plain.dtype is torch.bfloat16 else plain).numpy())


if TYPE_CHECKING:
    _is_measurer: type[TorchMeasurer] = TorchWorker


if __name__ == "__main__":
    main(lambda setup, _: TorchWorker(setup))
