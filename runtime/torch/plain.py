"""PlainExecutor: a graph on one device without the engine, as PyTorch alone would run it: a baseline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hsdag.base.errors import ExecutionError
from hsdag.base.processes import Closing
from hsdag.runtime.torch.buffers import Inputs, Residents, RunState, task_error
from hsdag.runtime.torch.lanes import streams_of
from hsdag.runtime.torch.op import Tensor
from hsdag.runtime.torch.program import Program

CAPTURE_WARM_UPS = 3
"""Inferences before a CUDA graph is captured, in which libraries allocate what they must not allocate then."""


class PlainExecutor(Closing):
    """Runs the ops of a program for one device in topological order, in the calling thread.

    On a GPU they are enqueued on one stream. Where they are ``captured``, that happens once, into a CUDA graph, which
    every inference replays.

    Raises ExecutionError where the device has no room for constants, and for a CUDA graph with ops that torch lacks.
    """

    def __init__(self, program: Program, *, captured: bool = False) -> None:
        (self._device,) = program.devices
        left = sorted({node.op_type for node in program.graph.nodes if not node.in_torch})
        if captured and left:
            raise ExecutionError(f"a CUDA graph cannot hold {', '.join(left)}, which OpenVINO evaluates on the CPU")
        self.program = program
        self.residents = Residents(program)
        gpus = (self._device.physical,) if self._device.is_cuda else ()
        self._stream = next(iter(streams_of(self._device.name, gpus)), None)
        self._is_captured = captured
        self._graph: torch.cuda.CUDAGraph | None = None
        self._outputs: dict[str, Tensor] = {}

    def load(self, inputs: Inputs) -> None:
        """Put inputs on the device, after what was started; a graph that was captured is captured again."""
        self.synchronize()  # what was enqueued may still read the inputs of before
        self.residents.load(inputs)
        self._graph = None

    def start(self) -> None:
        """Run an inference, on a GPU enqueue it. Raises ExecutionError that names the op that fails."""
        with self._context():
            if not self._is_captured:
                self._outputs = self._run()
                return
            if self._graph is None:
                self._capture()
            assert self._graph is not None
            self._graph.replay()

    def synchronize(self) -> None:
        """Wait for what was started."""
        if self._stream is not None:
            self._stream.synchronize()

    def marked(self) -> torch.cuda.Event | None:
        """Return an event behind what was started, None on the CPU, where that is over."""
        if self._stream is None:
            return None
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def outputs(self) -> dict[str, Tensor]:
        """Return copies of the results of what was started last, on GPUs made on the present stream of the caller."""
        self.synchronize()
        found = {name: x.clone() for name, x in self._outputs.items()}
        if self._stream is not None:  # the next inference may write where the results lie
            torch.cuda.current_stream(self._device.physical).synchronize()
        return found

    def close(self) -> None:
        """Forget the results and the graph."""
        self._graph, self._outputs = None, {}

    def _run(self) -> dict[str, Tensor]:
        state = RunState(self.program, self.residents.loaded())
        for task, work in enumerate(self.program.works):
            try:
                state.store(task, work.run(state.inputs(task)))
            except RuntimeError as error:
                raise ExecutionError(f"{self.program.tasks.where(task)} failed: {task_error(error)}") from error
            state.release(task)
        state.end()
        assert state.outputs is not None
        return state.outputs

    def _capture(self) -> None:
        """Enqueue all ops once into a graph, whose tensors stay where they are."""
        for _ in range(CAPTURE_WARM_UPS):
            self._run()
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._outputs = self._run()
        self._graph = graph

    @contextmanager
    def _context(self) -> Iterator[None]:
        """Compute without gradients, on a GPU on the stream, on the CPU with the threads of the device."""
        threads = torch.get_num_threads()
        if not self._device.is_cuda:
            torch.set_num_threads(self._device.threads)
        try:
            with torch.no_grad(), torch.cuda.stream(self._stream):
                yield
        finally:
            if not self._device.is_cuda:
                torch.set_num_threads(threads)


class PlainRequest:
    """One inference at a time of a PlainExecutor, called like a TorchRequest."""

    def __init__(self, executor: PlainExecutor) -> None:
        self.executor = executor
        self.latency = 0.0
        """Seconds that the last inference took."""

    def infer(self, **_: object) -> None:
        """Run and wait."""
        begin_s = time.perf_counter()
        self.start_async()
        self.executor.synchronize()
        self.latency = time.perf_counter() - begin_s

    def start_async(self) -> None:
        """Start an inference."""
        self.executor.start()

    def wait(self) -> dict[str, Tensor]:
        """Wait for the results, which are in memory of their own."""
        return self.executor.outputs()


class PlainStart:
    """One of several inferences in flight of a PlainExecutor; waiting for it does not wait for those behind it."""

    def __init__(self, executor: PlainExecutor) -> None:
        self._executor = executor
        self._event: torch.cuda.Event | None = None

    def start_async(self) -> None:
        """Start an inference behind those that were started."""
        self._executor.start()
        self._event = self._executor.marked()

    def wait(self) -> None:
        """Wait for its end."""
        if self._event is not None:
            self._event.synchronize()
