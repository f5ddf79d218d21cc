"""Keep the tensors of a program on its devices: constants, inputs, and the intermediate results of an inference.

Legend: B buffers.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.base.errors import ExecutionError
from hsdag.runtime.torch.op import Tensor
from hsdag.runtime.torch.program import UNUSED, Program

Inputs = Mapping[str, Tensor | NDArray[np.generic]]
"""Tensors or arrays of the inputs of a graph, by name."""

Values = Sequence[Tensor | None]
"""Tensor of each buffer [B]; None if it does not exist yet, or has been dropped."""


class Residents:
    """The constants and the loaded inputs of a program, on the devices that read them.

    Constants are shared with all other programs of the graph that have them on the same device. Raises an
    ExecutionError that names the constant and the device if a device has no room.

    Attributes:
        values: Tensor of each buffer [B]; None for a buffer that a task writes, or an input that was not loaded.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._lock = threading.Lock()
        values: list[Tensor | None] = [None] * len(program.buffer_device)
        shared: dict[tuple[int, int, str, torch.dtype | None], Tensor] = {}
        for v, port, buffer, dtype in program.constants:
            node, device = program.graph.nodes[v], program.devices[program.buffer_device[buffer]]
            key = v, port, device.torch_device, dtype
            there = shared.get(key)
            if there is None:
                there = program.graph.on_devices.get(key)  # it may vanish at any moment
            if there is None:
                there = self._placed(f"constant {node.name!r}", node.constants[port].detach(), buffer, dtype)
            values[buffer] = shared[key] = there
        self.values: Values = values
        self._synchronize()
        program.graph.on_devices.update(shared)  # once they are there

    @property
    def size_bytes(self) -> int:
        """Return the bytes that constants and loaded inputs take."""
        return sum(x.untyped_storage().nbytes() for x in self.values if x is not None)

    def load(self, inputs: Inputs) -> None:
        """Copy inputs to the devices that read them.

        An inference that begins meanwhile reads either all previous inputs or all of these. Raises ExecutionError for
        an unknown name, for a shape that does not fit, and if a device has no room.
        """
        graph, placed = self._program.graph, dict[int, Tensor]()
        for name in inputs:
            if name not in graph.inputs:
                raise ExecutionError(f"{graph.name!r} has no input {name!r}; it has {', '.join(graph.inputs)}")
        for buffer, feed in self._program.feeds.items():
            if feed.tensor in inputs:
                values = inputs[feed.tensor]
                if isinstance(values, np.ndarray) and not values.flags.writeable:
                    values = values.copy()  # torch has no read-only tensors
                try:
                    part = feed.cut(torch.as_tensor(values).detach())
                except (ValueError, TypeError) as error:
                    raise ExecutionError(f"input {feed.tensor!r} of {graph.name!r}: {error}") from error
                placed[buffer] = self._placed(f"input {feed.tensor!r}", part, buffer, feed.dtype, copy=True)
        self._synchronize()
        with self._lock:  # inferences that begin meanwhile read all previous inputs, or all of these
            self.values = [placed.get(buffer, x) for buffer, x in enumerate(self.values)]

    def loaded(self) -> Values:
        """Return the values for an inference that begins now. Raises ExecutionError if an input was never loaded."""
        values, feeds = self.values, self._program.feeds.items()
        lacking = dict.fromkeys(repr(feed.tensor) for buffer, feed in feeds if values[buffer] is None)
        if lacking:
            raise ExecutionError(f"{self._program.graph.name!r} has no value for its inputs {', '.join(lacking)}")
        return values

    def _placed(
        self, what: str, tensor: Tensor, buffer: int, dtype: torch.dtype | None = None, copy: bool = False
    ) -> Tensor:
        """Return a tensor on the device of a buffer, in storage of exactly its size.

        Args:
            what: Name of the tensor in the ExecutionError that is raised if the device has no room.
            dtype: Element type to convert to; None keeps the tensor's own.
            copy: Whether to copy the tensor even if it is on the device already.
        """
        device = self._program.devices[self._program.buffer_device[buffer]]
        try:
            there = tensor.contiguous().to(device.physical, non_blocking=device.is_cuda, copy=copy)
            there = there.to(dtype or tensor.dtype)
            if there.untyped_storage().nbytes() > there.nbytes:  # a view would keep the whole storage alive
                return there.clone()
        except RuntimeError as error:
            raise ExecutionError(f"{what} on device {device.name}: {task_error(error)}") from error
        return there

    def _synchronize(self) -> None:
        """Wait for the copies to GPUs, which run on the caller's current streams."""
        for physical in {device.physical for device in self._program.devices if device.is_cuda}:
            torch.cuda.current_stream(physical).synchronize()


@dataclass(eq=False, slots=True)
class Enqueued:
    """A task that was enqueued on a stream of a lane.

    Attributes:
        event: Event recorded on the stream after the task.
        tensors: Inputs and results of the task, which are kept alive until it has ended.
        is_over: Whether the event has been seen to pass.
    """

    lane: object
    event: torch.cuda.Event
    tensors: list[Tensor]
    is_over: bool = False


class RunState:
    """The buffers of one inference, which tasks fill and drop from any thread.

    Attributes:
        outputs: Results by name after a successful end, else None.
        is_cancelled: Whether tasks that have not started are to be skipped.
    """

    def __init__(self, program: Program, values: Values) -> None:
        self.works = program.works
        self.outputs: dict[str, Tensor] | None = None
        self.is_cancelled = False
        self._program = program
        self._values = list(values)
        self._writer: list[Enqueued | None] = [None] * len(values)
        self._left = list(program.uses)
        self._is_over = False
        self._lock = threading.Lock()

    def inputs(self, task: int) -> list[Tensor]:
        """Return the tensors that a task reads; the engine starts a task only when all of them exist."""
        values = self._values
        return [values[b] for b in self.works[task].reads]  # type: ignore[misc]

    def enqueued(self, task: int) -> set[Enqueued]:
        """Return the enqueued tasks that write the buffers that a task reads."""
        writers = {self._writer[b] for b in self.works[task].reads}
        return {writer for writer in writers if writer is not None}

    def store(self, task: int, results: Sequence[Tensor], enqueued: Enqueued | None = None) -> None:
        """Keep those results of a task that are read later.

        Args:
            enqueued: Task on a stream at whose end the results are valid; None if they are valid already.
        """
        with self._lock:
            for buffer, tensor in zip(self.works[task].writes, results, strict=False):
                if buffer != UNUSED and not self._is_over:
                    self._values[buffer] = tensor
                    self._writer[buffer] = enqueued

    def release(self, task: int) -> None:
        """Count the inputs of a task as read, and drop those that no other task reads."""
        left = self._left
        with self._lock:
            for buffer in self.works[task].reads:
                left[buffer] -= 1
                if not left[buffer]:
                    self._values[buffer] = None

    def own_outputs(self) -> dict[str, Tensor]:
        """Return copies of the results after a successful end; on GPUs, the caller's current stream makes them.

        They are copies because results may share memory with inputs or constants, and callers may change what they get.
        """
        assert self.outputs is not None
        for tensor in self.outputs.values():
            if tensor.is_cuda:  # the caller reads it on another stream than the one that wrote it
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return {name: x.clone() for name, x in self.outputs.items()}

    def end(self) -> None:
        """Drop all tensors except the results, which ``outputs`` keeps if all of them are complete."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = self.is_cancelled = True
            buffers = self._program.outputs
            writers = (self._writer[b] for b in buffers.values())
            is_pending = any(writer is not None and not writer.is_over for writer in writers)
            results = {name: x for name, b in buffers.items() if (x := self._values[b]) is not None}
            self.outputs = results if len(results) == len(buffers) and not is_pending else None
            self._values = [None] * len(self._values)


def task_error(error: BaseException) -> RuntimeError:
    """Return the error to report for a task that raised ``error``, with a message of one line.

    If memory ran out, the message begins with "out of memory".
    """
    text = str(error).strip() or repr(error)
    line = text.splitlines()[0]
    is_memory = isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in text
    shown = RuntimeError(f"out of memory: {line}" if is_memory else line)
    shown.__cause__ = error
    return shown
