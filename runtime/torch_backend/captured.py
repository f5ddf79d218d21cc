"""CapturedProgram: a whole placed graph as one CUDA graph, which replays without Python.

Every resource has a stream. Inside the capture they fork from the first stream, wait for each other's events where a
task reads what another stream made, and join the first again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import torch

from hsdag.ir.errors import ExecutionError
from hsdag.ir.graph import FloatArray, ranked_order
from hsdag.runtime.torch_backend.graph import Tensor
from hsdag.runtime.torch_backend.memory import Buffers, ledgers_of, task_error
from hsdag.runtime.torch_backend.program import Program
from hsdag.runtime.torch_backend.state import Inputs, Residents
from hsdag.runtime.torch_backend.streams import new_capture_stream, new_event, partition_streams

WARM_UPS = 2
"""Passes before the capture: libraries load, workspaces are allocated, indices are copied to the GPU."""


_ON_CAPTURE_STREAMS = threading.RLock()
"""Held while one program captures or replays: torch has 32 streams for it, so that two programs may share some."""


@dataclass(frozen=True)
class Step:
    """One task on the stream of its resource.

    ``waits`` are earlier tasks on other streams whose ends it needs: for each stream the last one only. ``records``
    says whether another stream waits for its end. ``drops`` are buffers that only its own stream has touched, and
    that it reads last: their memory may be used again by what follows on the stream.
    """

    task: int
    resource: int
    waits: tuple[int, ...]
    records: bool
    drops: tuple[int, ...]


def stream_plan(program: Program, ranks: FloatArray | None = None) -> tuple[Step, ...]:
    """The plan that takes, of the tasks whose inputs come before, the one with the smallest of ``ranks`` [T].

    Without ranks tasks come in the order of their index. What crosses streams is never dropped.
    """
    tasks = program.tasks
    rank = np.arange(tasks.num_tasks) if ranks is None else ranks
    order = ranked_order(tasks.num_tasks, tasks.edges[:, 0], tasks.edges[:, 1], rank).tolist()
    resource = program.tasks.resource.tolist()
    waits = _waits(program, order, resource)
    waited_for = {before for tasks in waits.values() for before in tasks}
    drops = _drops(program, order, resource)
    return tuple(Step(t, resource[t], waits[t], t in waited_for, drops.get(t, ())) for t in order)


def _waits(program: Program, order: list[int], resource: list[int]) -> dict[int, tuple[int, ...]]:
    """By task, the latest task of every other stream that it waits for."""
    position = {task: i for i, task in enumerate(order)}
    latest: dict[int, dict[int, int]] = {task: {} for task in order}
    for before, after in program.tasks.edges.tolist():
        stream = resource[before]
        known = latest[after].get(stream)
        if stream != resource[after] and (known is None or position[known] < position[before]):
            latest[after][stream] = before
    return {task: tuple(sorted(found.values(), key=position.__getitem__)) for task, found in latest.items()}


def _drops(program: Program, order: list[int], resource: list[int]) -> dict[int, tuple[int, ...]]:
    """By task, the buffers that it reads last, where one stream alone writes and reads them."""
    streams: dict[int, set[int]] = {}
    last: dict[int, int] = {}
    written: set[int] = set()
    for task in order:
        work = program.works[task]
        written.update(work.writes)
        for buffer in (*work.reads, *work.writes):
            streams.setdefault(buffer, set()).add(resource[task])
            last[buffer] = task
    kept = set(program.outputs.values())
    drops: dict[int, tuple[int, ...]] = {}
    for buffer, task in last.items():
        if buffer in written and buffer >= 0 and buffer not in kept and len(streams[buffer]) == 1:
            drops[task] = (*drops.get(task, ()), buffer)
    return drops


class CapturedProgram:
    """A program captured with the inputs it was given, which later calls may overwrite.

    All devices must be on one GPU. ``ranks`` [N ops] give the order on each stream, smallest first; None takes
    the order of the ops. Results that other streams read are not reused within the graph, so that it takes more
    memory than the dynamic loop. Any thread may call; captures and replays of a process take turns.

    Raises ExecutionError where the devices cannot be captured, an input is missing, or a task cannot run.
    """

    def __init__(self, program: Program, inputs: Inputs, *, ranks: FloatArray | None = None) -> None:
        self._gpu = _only_gpu(program)
        self.program = program
        self._ledgers = ledgers_of(program)
        self._residents = Residents(program, self._ledgers)
        self._residents.load(inputs)
        self._residents.feed({})  # says what is missing
        streams, self.partition = partition_streams(program.devices, for_capture=True)
        names = [resource.name for resource in program.tasks.resources]
        self._streams = [streams.get(name) or new_capture_stream(self._gpu) for name in names]
        self._main = new_capture_stream(self._gpu)
        self._done = new_event()
        self._plan = stream_plan(program, None if ranks is None else program.task_ranks(ranks))
        self._is_closed = False
        with _ON_CAPTURE_STREAMS, torch.no_grad(), torch.cuda.device(self._gpu):
            self._graph, self._outputs = self._capture()

    def infer(self, inputs: Inputs | None = None) -> dict[str, Tensor]:
        """Results by name, as tensors of their own. ``inputs`` replace those of before, for later calls too.

        Raises ExecutionError for an input that does not fit, and where the program is closed.
        """
        with _ON_CAPTURE_STREAMS:
            self._check_open()
            if inputs:
                self._overwrite(inputs)
            self.replay()
            results = {name: tensor.clone() for name, tensor in self._outputs.items()}
            torch.cuda.current_stream(self._gpu).synchronize()  # the next replay writes where these were read
            return results

    def replay(self) -> None:
        """Run the graph on the present inputs and wait for its end; the results stay inside.

        Raises ExecutionError where the program is closed.
        """
        with _ON_CAPTURE_STREAMS:
            self._check_open()
            before = new_event()
            before.record(torch.cuda.current_stream(self._gpu))  # the caller may still write the inputs
            self._main.wait_event(before)
            with torch.cuda.stream(self._main):
                self._graph.replay()
                self._done.record(self._main)
            self._done.synchronize()

    def close(self) -> None:
        """Free the graph and its memory; called again, do nothing."""
        with _ON_CAPTURE_STREAMS:
            if self._is_closed:
                return
            self._is_closed = True
            torch.cuda.synchronize(self._gpu)
            self._outputs = {}
            self._graph.reset()
            self._residents.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ExecutionError(f"the captured program of {self.program.graph.name!r} is closed; create another")

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, dict[str, Tensor]]:
        for _ in range(WARM_UPS):
            with torch.cuda.stream(self._main):
                kept = self._issue()
            torch.cuda.synchronize(self._gpu)
            del kept  # no stream reads it any more
        graph = torch.cuda.CUDAGraph()
        before = torch.cuda.current_stream(self._gpu)
        try:
            # engines of other executors may ask their events meanwhile, from threads of their own
            with torch.cuda.graph(graph, stream=self._main, capture_error_mode="thread_local"):
                outputs, _kept = self._issue()
        except RuntimeError as error:
            torch.cuda.set_stream(before)  # torch leaves the capturing stream set where a capture cannot be ended
            first = _behind(error)
            if first is not None:
                raise first from error
            raise ExecutionError(f"{self.program.graph.name!r} cannot be captured: {task_error(error)}") from error
        return graph, outputs

    def _issue(self) -> tuple[dict[str, Tensor], list[Tensor | None]]:
        """Enqueue everything; the results, and all tensors that must live until it is done."""
        buffers = Buffers(self.program, self._ledgers, self._residents.held)
        events: dict[int, torch.cuda.Event] = {}
        torch.cuda.set_stream(self._main)
        fork = new_event()
        fork.record(self._main)
        for stream in self._streams:
            stream.wait_event(fork)
        try:
            for step in self._plan:
                self._enqueue(step, buffers, events)
        finally:
            torch.cuda.set_stream(self._main)  # first of all: a capture can only be ended on the stream it began on
            for stream in self._streams:
                join = new_event()
                join.record(stream)
                self._main.wait_event(join)
            buffers.uncount_all()
        outputs = {name: buffers.values[buffer] for name, buffer in self.program.outputs.items()}
        return {name: x for name, x in outputs.items() if x is not None}, buffers.values

    def _enqueue(self, step: Step, buffers: Buffers, events: dict[int, torch.cuda.Event]) -> None:
        stream, work = self._streams[step.resource], self.program.works[step.task]
        torch.cuda.set_stream(stream)
        for before in step.waits:
            stream.wait_event(events[before])
        try:
            results = work.run([buffers.values[b] for b in work.reads])  # type: ignore[misc]  # the plan has them before
            buffers.keep_all(work.writes, results)
        except Exception as error:
            where = self.program.tasks.where(step.task)
            raise ExecutionError(f"{where} failed: {task_error(error)}") from error
        if step.records:
            events[step.task] = new_event()
            events[step.task].record(stream)
        for buffer in step.drops:
            buffers.drop(buffer)

    def _overwrite(self, inputs: Inputs) -> None:
        for buffer, tensor in self._residents.feed(inputs).items():
            held = self._residents.held[buffer]
            assert held is not None
            held.copy_(tensor)
        torch.cuda.current_stream(self._gpu).synchronize()


def _behind(error: BaseException) -> ExecutionError | None:
    """What broke a capture off, with op and device: joining streams and ending the capture fail after it."""
    link = error.__context__
    while link is not None and not isinstance(link, ExecutionError):
        link = link.__context__
    return link


def _only_gpu(program: Program) -> torch.device:
    """The one GPU behind all devices. Raises ExecutionError where there is none, or more."""
    found = {device.torch_device for device in program.devices}
    if len(found) != 1 or not program.devices[0].is_cuda:
        raise ExecutionError(
            f"capturing needs all devices on one GPU, but these are on {', '.join(sorted(found))}; "
            "use the dynamic mode (TorchExecutor)"
        )
    return program.devices[0].physical
