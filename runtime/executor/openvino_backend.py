"""The back end that runs the submodels of a cut through infer requests, with one thread per device.

Every slot has a request for each submodel, set up once; the outputs of a submodel are bound as inputs of those that
read them, so nothing is copied between devices that share memory. Devices with their own memory copy inside their
plugin, which is part of the time of a task.

Requests run synchronously in the thread of their device. OpenVINO's own asynchronous requests have a thread each, and
on a machine whose cores are busy every change of thread may wait for the scheduler: with them Inception-V3 on two
one-thread devices took 0.81 of one device, in device threads 0.72.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.base.errors import ExecutionError, ModelError
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import ordered_ops
from hsdag.ir.graph.colocation import repeated_ops
from hsdag.ir.graph.folding import folded_clone
from hsdag.ir.graph.gates import keep_gates_apart
from hsdag.ir.graph.heads import keep_heads_apart
from hsdag.ir.graph.masks import put_masks_first
from hsdag.ir.graph.narrow import widen_columns
from hsdag.runtime.executor.cut import MODEL_INPUT, Cut, Tensor, incoming_ports
from hsdag.runtime.executor.tasks import Attempt, Backend, Inbox
from hsdag.runtime.machine.devices import infer_checked, infer_unchecked, reason_of

LEFT_BEHIND: list[Any] = []
"""Requests that failed in a thread of the executor.

The CPU plugin leaves their task in its queue (2026.4.1), and runs it before the next task of that thread, or of its
successor, whatever has become of the request. So these requests live on, and once there is one, every inference of the
process runs in a thread of the plugin.
"""
CLOSE_S = 5.0
"""Seconds for which closing waits for each device."""


def passed_on(compiled: Any) -> dict[int, int]:
    """Return the outputs of unknown size that a compiled model passes on from an input, {output: input}.

    That happens where the plugin has removed every op between them, such as a Convert from f32 to f32. The CPU plugin
    (2026.4.1) then gives zeros, or writes beyond the tensor, when an inference has a smaller size than the one before.
    """
    try:
        results = compiled.get_runtime_model().get_results()
    except RuntimeError:  # a plugin need not show what it runs
        return {}
    inputs = {port.get_node().get_friendly_name(): k for k, port in enumerate(compiled.inputs)}
    source = {result.get_friendly_name(): result.input_value(0).get_node().get_friendly_name() for result in results}
    sources = [source.get(port.get_node().get_friendly_name()) for port in compiled.outputs]
    return {
        k: inputs[name]
        for k, (name, port) in enumerate(zip(sources, compiled.outputs, strict=True))
        if name in inputs and port.get_partial_shape().is_dynamic
    }


@dataclass(frozen=True, eq=False)
class Submodel:
    """A subgraph as a model: the tensor that each of its inputs reads, and that each of its outputs holds.

    After those outputs the model has one more, a constant: a device hands out constants at the end of every
    inference, which distinguishes a complete inference from one that stopped half-way. A subgraph that ``has_state``
    keeps variables between inferences.
    """

    model: ov.Model
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    has_state: bool = False


def build_submodels(
    model: ov.Model, cut: Cut, bf16: Collection[int] = (), single: Collection[int] = ()
) -> tuple[Submodel, ...]:
    """Build the submodels of a cut; ``model`` is not changed. Raises ModelError for a cut of another model.

    Submodels of one device come from one clone, unless they have copies of repeated ops that read inputs of their own.
    ``bf16`` are the devices that compute in bf16, ``single`` those of one thread. Tensors between parts keep their type
    all the same: values that a plugin keeps in single precision in the whole model, such as the sums that run along a
    transformer, cross in single precision.
    """
    named = ordered_ops(model)
    graph = cut.graph
    if tuple(name for name, _ in named) != graph.op_names:
        raise ModelError(f"the cut is of another model than {model.get_friendly_name()!r}: their ops differ")
    incoming = incoming_ports(graph)
    repeated = np.flatnonzero(repeated_ops(graph)).tolist()
    clones: dict[int, list[ov.Node]] = {}
    submodels = []
    for s, part in enumerate(cut.subgraphs):
        clone = s if repeated else part.device
        if clone not in clones:
            clones[clone] = folded_clone(model, graph)[1]
        nodes = clones[clone]
        ends = [(nodes[tensor.op], tensor) for tensor in part.outputs]  # a Result hands out itself
        results = [v if v.get_type_name() == "Result" else opset13.result(v.output(t.port)) for v, t in ends]
        results.append(opset13.result(opset13.constant(np.ones(1, dtype=np.float32))))
        parameters: dict[Tensor, ov.Node] = {}
        read = {(tensor.op, tensor.port): tensor for tensor in part.inputs}
        for v in (*part.ops, *repeated):
            nodes[v].set_friendly_name(graph.op_names[v])  # OpenVINO's own messages name it
            for port, (u, out) in enumerate(incoming[v]):
                tensor = read.get((u, out))
                if tensor is None:
                    continue
                source = named[u][1].output(out)
                if tensor not in parameters:
                    parameters[tensor] = opset13.parameter(source.get_partial_shape(), source.get_element_type())
                    parameters[tensor].set_friendly_name(f"{graph.op_names[u]}:{out}")
                nodes[v].input(port).replace_source_output(parameters[tensor].output(0))
        sinks = [nodes[v] for v in part.ops if graph.op_types[v] == "Assign"]
        members = [nodes[v] for v in part.ops]
        keep_heads_apart(members)
        if part.device in single:
            keep_gates_apart(members)
        if part.device in bf16:
            put_masks_first(members)
            widen_columns(members)
        excerpt = ov.Model(results, sinks, list(parameters.values()), f"{graph.name}/{s}")
        submodels.append(Submodel(excerpt, tuple(parameters), part.outputs, bool(sinks)))
    return tuple(submodels)


class CompiledPart:
    """A submodel compiled on its device, without the outputs that it would only pass on.

    ``passed`` are these with their input, {output: input}; ``position`` is the compiled model's number of every other
    output, and of the constant after them. ``model`` is None where nothing is left to be run.
    """

    def __init__(self, submodel: Submodel, compile_model: Callable[[ov.Model], Any]) -> None:
        self.inputs, self.outputs, self.has_state = submodel.inputs, submodel.outputs, submodel.has_state
        self.model: Any = compile_model(submodel.model)
        self.is_dynamic = [output.get_partial_shape().is_dynamic for output in self.model.outputs]
        self.passed = passed_on(self.model) if any(self.is_dynamic) else {}
        kept = [k for k in range(len(self.is_dynamic)) if k not in self.passed]
        self.position = {k: nth for nth, k in enumerate(kept)}
        if self.passed:
            whole = submodel.model
            results = [whole.get_results()[k] for k in kept]
            rest = ov.Model(results, whole.get_sinks(), whole.get_parameters(), whole.get_name())
            self.model = compile_model(rest) if len(kept) > 1 or self.has_state else None
        ports = (port for op in submodel.model.get_ops() for port in op.outputs())
        has_open = any(port.get_partial_shape().is_dynamic for port in ports)
        has_text = any(port.get_element_type() == ov.Type.string for port in submodel.model.outputs)
        self.may_run_unchecked = not (has_open or has_text or self.has_state)  # for text, OpenVINO warns that it copies


class Wiring:
    """The reads between the parts of a cut: ``reads[s]`` are (input, part, output of that part).

    ``read_by[s]`` are (reader, its input, output of s); ``model_inputs[op]`` are (part, input) that read an input of
    the model.
    """

    def __init__(self, parts: Sequence[CompiledPart]) -> None:
        self.parts = parts
        self.output_of = {t: (s, k) for s, part in enumerate(parts) for k, t in enumerate(part.outputs)}
        self.reads: list[list[tuple[int, int, int]]] = [[] for _ in parts]
        self.read_by: list[list[tuple[int, int, int]]] = [[] for _ in parts]
        self.model_inputs: dict[int, list[tuple[int, int]]] = {}
        for s, part in enumerate(parts):
            for k, tensor in enumerate(part.inputs):
                if tensor.source == MODEL_INPUT:
                    self.model_inputs.setdefault(tensor.op, []).append((s, k))
                else:
                    source, out = self.output_of[tensor]
                    self.reads[s].append((k, source, out))
                    self.read_by[source].append((s, k, out))


class Slot:
    """The requests of all subgraphs and the tensors between them, for one run in flight at a time.

    ``shared_outputs(s)`` are the outputs of subgraph s, by number, that live in memory other than the
    request's own.
    """

    def __init__(
        self, wiring: Wiring, shared_outputs: Callable[[int], Sequence[tuple[int, Any]]] = lambda _: ()
    ) -> None:
        self._wiring = wiring
        self._requests: list[Any] = [
            None if part.model is None else part.model.create_infer_request() for part in wiring.parts
        ]
        self._given: dict[int, Any] = {}  # by op: the tensor of an input of the model
        self._sharing = threading.Lock()
        self._marks = [np.zeros(1, dtype=np.float32) for _ in wiring.parts]
        self._in_thread = [part.may_run_unchecked for part in wiring.parts]
        for s, part in enumerate(wiring.parts):
            for k, tensor in shared_outputs(s):
                if isinstance(tensor, ov.RemoteTensor):  # OpenVINO takes it by name alone, and cannot show it later
                    self._requests[s].set_tensor(part.model.outputs[k].get_any_name(), tensor)
                    self._in_thread[s] = False
                else:
                    self._requests[s].set_output_tensor(k, tensor)
            if part.model is not None:  # the constant output is written where ``infer`` looks for it
                mark = ov.Tensor(self._marks[s], shared_memory=True)
                self._requests[s].set_output_tensor(part.position[len(part.outputs)], mark)
        for s, part in enumerate(wiring.parts):
            for k, source, out in wiring.reads[s]:
                if part.model is not None and not wiring.parts[source].is_dynamic[out]:
                    self._requests[s].set_input_tensor(k, self._output(source, out))

    def tensor(self, tensor: Tensor) -> Any:
        """Return the ov.Tensor that a subgraph handed out, or the model's input that it passed on."""
        if tensor.source == MODEL_INPUT:
            return self._given[tensor.op]
        return self._output(*self._wiring.output_of[tensor])

    def _output(self, s: int, k: int) -> Any:
        part = self._wiring.parts[s]
        if k in part.passed:
            return self.tensor(part.inputs[part.passed[k]])
        return self._requests[s].get_output_tensor(part.position[k])

    def _input(self, s: int, k: int) -> Any:
        """Return output k of subgraph s, of a size that is not known before, as a tensor of its reader's own.

        The CPU plugin's tensors of such outputs write their shape anew whenever they are asked for it, so that two
        readers on threads of their own see each other's half-written shapes: an inference fails, or computes with the
        sizes of the inference before (2026.4.1). A tensor over all of another has a shape of its own.
        """
        with self._sharing:
            tensor = self._output(s, k)
            if isinstance(tensor, ov.RemoteTensor):
                return tensor
            shape = list(tensor.shape)
            return ov.Tensor(tensor, [0] * len(shape), shape)

    def states(self) -> list[Any]:
        """Return the variables of all subgraphs."""
        pairs = zip(self._requests, self._wiring.parts, strict=True)
        return [state for request, part in pairs if part.has_state for state in request.query_state()]

    def give(self, op: int, tensor: Any) -> None:
        """Make every reader of an input of the model read an ov.Tensor, of the input's type and shape."""
        for s, k in self._wiring.model_inputs.get(op, ()):
            if self._requests[s] is not None:
                self._requests[s].set_input_tensor(k, tensor)
        self._given[op] = tensor

    def infer(self, s: int, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Run subgraph s in the calling thread. Raises what the plugin does.

        In the calling thread an inference may fail silently, so the constant output shows whether it is complete. If it
        is not, it is run again, checked; if that succeeds, once more unchecked, which removes the failed task from the
        plugin's queue. Outputs of unknown size cannot be touched after a swallowed error, and state must not change
        twice: subgraphs that have either are checked from the start, and not run again. So are subgraphs with tensors
        of unknown size inside: sizes that the CPU plugin refused, it accepts when they come again at once (2026.4.1),
        and then computes something with the sizes of before.
        """
        request, mark = self._requests[s], self._marks[s]
        for k, source, out in self._wiring.reads[s]:
            if self._wiring.parts[source].is_dynamic[out]:
                request.set_input_tensor(k, self._input(source, out))
        if not self._in_thread[s]:
            infer_checked(request)
            return
        if LEFT_BEHIND:
            try:
                infer_checked(request)
            except RuntimeError:
                if is_cancelled():
                    raise
                infer_checked(request)
            return
        mark[0] = 0.0
        infer_unchecked(request)
        if not mark[0]:
            self._repeat(s, request, mark)

    def _repeat(self, s: int, request: Any, mark: Any) -> None:
        """Run again an inference that failed in the calling thread. Raises what the plugin does."""
        try:
            infer_checked(request)
        except BaseException:
            LEFT_BEHIND.append(request)
            raise
        mark[0] = 0.0
        infer_unchecked(request)
        self._in_thread[s] = bool(mark[0])  # else nothing was wrong: the plugin does not write constants every time

    def cancel(self, s: int) -> None:
        """Ask the plugin to stop subgraph s between two ops. Raises RuntimeError where it cannot.

        An inference in the calling thread goes on to its end: a task that stops there stays in the plugin's queue.
        """
        if LEFT_BEHIND or not self._in_thread[s]:
            self._requests[s].cancel()


def memory_of(writer: DeviceSpec, readers: Iterable[DeviceSpec], is_result: bool) -> str | None:
    """Return where a tensor is best kept: "device" memory of its only GPU, "host" memory that its GPU sees, or None.

    The caller, who is on the CPU, reads the results of the model.
    """
    involved = {spec.name: spec.plugin for spec in (writer, *readers)}
    if not any(plugin.startswith("GPU") for plugin in involved.values()):
        return None
    return "device" if len(involved) == 1 and not is_result else "host"


class SharedMemory:
    """An allocator of tensors between parts that need no copies, through the contexts of GPUs.

    CPU devices share the memory of the process. A GPU plugin copies a tensor from there on every inference, but not
    from its own memory (a remote tensor) or from host memory that it sees too (unified shared memory).
    """

    def __init__(self, core: Any, specs: Sequence[DeviceSpec]) -> None:
        self._core = core
        self._specs = specs
        self._contexts: dict[str, Any] = {}

    def tensor(self, writer: int, readers: Sequence[int], is_result: bool, element_type: Any, shape: Any) -> Any:
        """Return a tensor that ``writer`` and ``readers`` use without copies; None for the request's own tensor."""
        specs = [self._specs[d] for d in (writer, *readers)]
        memory = memory_of(specs[0], specs[1:], is_result)
        if memory is None:
            return None
        gpu = next(spec for spec in specs if spec.plugin.startswith("GPU")).openvino_name
        try:
            context = self._contexts[gpu] if gpu in self._contexts else self._core.get_default_context(gpu)
            self._contexts[gpu] = context
            if context is None:
                return None
            if memory == "device":
                return context.create_tensor(element_type, shape, {})
            return context.create_host_tensor(element_type, shape)
        except RuntimeError:
            self._contexts[gpu] = None
            return None


class DeviceThread:
    """The thread in which the requests of one device run, one at a time; started by the first job.

    A job may add the next one itself, which then follows without a change of thread: on a machine whose cores are
    all busy, waking another thread takes up to a slice of the scheduler's, some milliseconds.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def give(self, job: Callable[[], object]) -> None:
        """Queue a job."""
        if self._thread is None:
            thread = threading.Thread(target=self._main, name=self._name, daemon=True)
            thread.start()  # may raise where the system has no thread to give; the next job then tries again
            self._thread = thread
        self._jobs.put(job)

    def close(self, timeout_s: float) -> None:
        """Let the thread end after its jobs, and wait a while for that, unless it is the caller."""
        self._jobs.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _main(self) -> None:
        for job in iter(self._jobs.get, None):
            job()
            del job


class OpenVinoBackend(Backend):
    """Requests of compiled submodels, by slot; every device has a thread, which runs one request at a time.

    ``slots`` are added, dropped and bound by any thread, but only while no run is on them; all else belongs to the
    engine.
    """

    def __init__(self, cut: Cut, parts: Sequence[CompiledPart], memory: SharedMemory) -> None:
        self._parts = parts
        self._wiring = Wiring(parts)
        self._device: list[int] = cut.device.tolist()
        self._memory = memory
        self._results = {tensor for _, tensor in cut.results}
        self._threads = [DeviceThread(f"hsdag-device-{d}") for d in range(max(self._device, default=-1) + 1)]
        self.slots: dict[int, Slot] = {}
        self._numbers = itertools.count()
        self._is_closed = False

    def add_slot(self) -> int:
        """Add a slot, requests with bound tensors for one more run in flight; return its number.

        Raises ExecutionError when the backend is closed.
        """
        if self._is_closed:
            raise ExecutionError("the executor is closed; compile the model again")
        number = next(self._numbers)
        self.slots[number] = Slot(self._wiring, self._shared_outputs)
        return number

    def _shared_outputs(self, s: int) -> list[tuple[int, Any]]:
        """Return outputs of subgraph s that a GPU writes or reads, in memory that needs no copies, if there is any."""
        part = self._parts[s]
        tensors = []
        for k, output in enumerate(part.outputs):
            if not part.is_dynamic[k]:
                port = part.model.outputs[part.position[k]]
                readers = [self._device[r] for r, _, out in self._wiring.read_by[s] if out == k]
                description = output in self._results, port.get_element_type(), port.get_shape()
                tensors.append((part.position[k], self._memory.tensor(self._device[s], readers, *description)))
        return [(k, tensor) for k, tensor in tensors if tensor is not None]

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:
        """Give a request to the thread of its device; True for a part that has nothing to run."""
        if self._parts[attempt.task].model is None:
            return True
        job = partial(self._run, attempt, self.slots[attempt.run.slot], inbox)
        self._threads[self._device[attempt.task]].give(job)
        return False

    def _run(self, attempt: Attempt, slot: Slot, inbox: Inbox) -> None:
        """Infer and report; the report may start other tasks in this thread."""
        error: BaseException | None = None
        try:
            if attempt.is_cancelled:
                raise ExecutionError("cancelled")
            slot.infer(attempt.task, lambda: attempt.is_cancelled)
        except BaseException as raised:  # noqa: BLE001 - whatever a plugin raises is the failure of its run
            error = RuntimeError(reason_of(raised))  # without the frames it went through
        inbox.done(attempt, error)

    def cancel(self, attempt: Attempt) -> None:
        """Ask the plugin to stop between two ops."""
        attempt.is_cancelled = True
        with contextlib.suppress(RuntimeError):
            self.slots[attempt.run.slot].cancel(attempt.task)

    def close(self) -> None:
        """End the threads and release compiled models. Slots keep their tensors until they are dropped."""
        self._is_closed = True
        for thread in self._threads:
            thread.close(CLOSE_S)
