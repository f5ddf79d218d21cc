"""Run a graph on one device without the engine, as PyTorch alone would, as a baseline."""

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
"""Number of inferences before a CUDA graph is captured, so that libraries allocate nothing during the capture."""


class PlainExecutor(Closing):
    """An executor that runs the ops of a program for one device in topological order, in the calling thread.

    On a GPU they are enqueued on one stream. Raises ExecutionError if the device has no room for constants, and if a
    CUDA graph would contain ops that torch lacks.

    Args:
        captured: Whether the ops are captured once, into a CUDA graph that every inference replays.
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
        """Wait for the inferences that were started, and copy inputs to the device; a CUDA graph is captured again."""
        self.synchronize()  # inferences in flight may still read the previous inputs
        self.residents.load(inputs)
        self._graph = None

    def start(self) -> None:
        """Run an inference, or on a GPU enqueue it. Raises an ExecutionError that names the op that fails."""
        with self._context():
            if not self._is_captured:
                self._outputs = self._run()
                return
            if self._graph is None:
                self._capture()
            assert self._graph is not None
            self._graph.replay()

    def synchronize(self) -> None:
        """Wait for the inferences that were started."""
        if self._stream is not None:
            self._stream.synchronize()

    def marked(self) -> torch.cuda.Event | None:
        """Return an event recorded after the inferences that were started; None on the CPU, where they have ended."""
        if self._stream is None:
            return None
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def outputs(self) -> dict[str, Tensor]:
        """Return copies of the results of the last inference; on GPUs, the caller's current stream makes them."""
        self.synchronize()
        results = {name: x.clone() for name, x in self._outputs.items()}
        if self._stream is not None:  # the next inference may overwrite the results
            torch.cuda.current_stream(self._device.physical).synchronize()
        return results

    def close(self) -> None:
        """Release the results and the CUDA graph."""
        self._graph, self._outputs = None, {}

    def _run(self) -> dict[str, Tensor]:
        """Run all ops, or on a GPU enqueue them, and return the results. Raises ExecutionError as ``start`` does."""
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
        """Capture all ops in a CUDA graph, whose tensors keep their addresses."""
        for _ in range(CAPTURE_WARM_UPS):
            self._run()
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._outputs = self._run()
        self._graph = graph

    @contextmanager
    def _context(self) -> Iterator[None]:
        """Compute without gradients, on the stream of the GPU or with the number of threads of the CPU device."""
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
    """A request for one inference at a time of a PlainExecutor, used like a TorchRequest.

    Attributes:
        latency: Seconds that the last inference took.
    """

    def __init__(self, executor: PlainExecutor) -> None:
        self.executor = executor
        self.latency = 0.0

    def infer(self, **_: object) -> None:
        """Run an inference, and wait for it."""
        begin_s = time.perf_counter()
        self.start_async()
        self.executor.synchronize()
        self.latency = time.perf_counter() - begin_s

    def start_async(self) -> None:
        """Start an inference."""
        self.executor.start()

    def wait(self) -> dict[str, Tensor]:
        """Wait for the inference, and return its results by name, in memory of their own."""
        return self.executor.outputs()


class PlainStart:
    """A request for one of several inferences in flight of a PlainExecutor, which waits for no later ones."""

    def __init__(self, executor: PlainExecutor) -> None:
        self._executor = executor
        self._event: torch.cuda.Event | None = None

    def start_async(self) -> None:
        """Start an inference after those that were started."""
        self._executor.start()
        self._event = self._executor.marked()

    def wait(self) -> None:
        """Wait for the end of the inference."""
        if self._event is not None:
            self._event.synchronize()
