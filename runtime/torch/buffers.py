"""The tensors on devices: those that lie there before an inference begins, and those of one inference.

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


Values = Sequence[Tensor | None]
"""[B] the tensor of each buffer, None where there is none yet, or no longer."""


class Residents:
    """Constants, from the start, and inputs, once loaded: ``values`` [B], None where a task writes.

    Constants are shared with all other programs of the graph that have them on the same device. Raises ExecutionError
    that names constant and device where there is no room.
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
        """What they take."""
        return sum(x.untyped_storage().nbytes() for x in self.values if x is not None)

    def load(self, inputs: Inputs) -> None:
        """Put copies of inputs where they are read, all at once. Raises ExecutionError where one does not fit."""
        graph, placed = self._program.graph, dict[int, Tensor]()
        for name in inputs:
            if name not in graph.inputs:
                raise ExecutionError(f"{graph.name!r} has no input {name!r}; it has {', '.join(graph.inputs)}")
        for buffer, feed in self._program.feeds.items():
            if feed.tensor in inputs:
                values = inputs[feed.tensor]
                if isinstance(values, np.ndarray) and not values.flags.writeable:
                    values = values.copy()  # torch has no tensors that may not be written to
                try:
                    part = feed.cut(torch.as_tensor(values).detach())
                except (ValueError, TypeError) as error:
                    raise ExecutionError(f"input {feed.tensor!r} of {graph.name!r}: {error}") from error
                placed[buffer] = self._placed(f"input {feed.tensor!r}", part, buffer, feed.dtype, copy=True)
        self._synchronize()
        with self._lock:  # inferences that begin meanwhile have all inputs of before, or all of these
            self.values = [placed.get(buffer, x) for buffer, x in enumerate(self.values)]

    def loaded(self) -> Values:
        """Return the values for an inference that begins now. Raises ExecutionError where an input was never loaded."""
        values, feeds = self.values, self._program.feeds.items()
        lacking = dict.fromkeys(repr(feed.tensor) for buffer, feed in feeds if values[buffer] is None)
        if lacking:
            raise ExecutionError(f"{self._program.graph.name!r} has no value for its inputs {', '.join(lacking)}")
        return values

    def _placed(
        self, what: str, tensor: Tensor, buffer: int, dtype: torch.dtype | None = None, copy: bool = False
    ) -> Tensor:
        """Return it where a buffer lies, in memory of its own size. Where there is no room the error names ``what``."""
        device = self._program.devices[self._program.buffer_device[buffer]]
        try:
            there = tensor.contiguous().to(device.physical, non_blocking=device.is_cuda, copy=copy)
            there = there.to(dtype or tensor.dtype)
            if there.untyped_storage().nbytes() > there.nbytes:  # a view would keep the whole alive
                return there.clone()
        except RuntimeError as error:
            raise ExecutionError(f"{what} on device {device.name}: {task_error(error)}") from error
        return there

    def _synchronize(self) -> None:
        """Wait until copies to GPUs, which ran on the caller's streams, are there."""
        for physical in {device.physical for device in self._program.devices if device.is_cuda}:
            torch.cuda.current_stream(physical).synchronize()


@dataclass(eq=False, slots=True)
class Enqueued:
    """A task on a stream of a lane: the event behind it, and the tensors it touches, kept until it is over."""

    lane: object
    event: torch.cuda.Event
    tensors: list[Tensor]
    is_over: bool = False  # the event has passed


class RunState:
    """The buffers of one inference, filled and dropped by tasks from any thread."""

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
        """What a task reads; the engine starts it when all of it is there."""
        values = self._values
        return [values[b] for b in self.works[task].reads]  # type: ignore[misc]

    def enqueued(self, task: int) -> set[Enqueued]:
        """Return the tasks on streams that write what a task reads."""
        found = {self._writer[b] for b in self.works[task].reads}
        return {each for each in found if each is not None}

    def store(self, task: int, results: Sequence[Tensor], enqueued: Enqueued | None = None) -> None:
        """Keep those results of a task that are read later; they are there once what was ``enqueued`` is over."""
        with self._lock:
            for buffer, tensor in zip(self.works[task].writes, results, strict=False):
                if buffer != UNUSED and not self._is_over:
                    self._values[buffer] = tensor
                    self._writer[buffer] = enqueued

    def release(self, task: int) -> None:
        """A task has read its inputs; those that no other task reads are dropped."""
        left = self._left
        with self._lock:
            for buffer in self.works[task].reads:
                left[buffer] -= 1
                if not left[buffer]:
                    self._values[buffer] = None

    def own_outputs(self) -> dict[str, Tensor]:
        """Copies of the results after a good end, on GPUs made on the present stream of the caller.

        Results may show memory of inputs or constants, and whoever asks may change what they get.
        """
        assert self.outputs is not None
        for tensor in self.outputs.values():
            if tensor.is_cuda:  # whoever reads it works on a stream of their own
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return {name: x.clone() for name, x in self.outputs.items()}

    def end(self) -> None:
        """Drop everything; the results stay in ``outputs`` where all of them are there."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = self.is_cancelled = True
            buffers = self._program.outputs
            pending = [each for b in buffers.values() if (each := self._writer[b]) is not None and not each.is_over]
            results = {name: x for name, b in buffers.items() if (x := self._values[b]) is not None}
            self.outputs = results if len(results) == len(buffers) and not pending else None
            self._values = [None] * len(self._values)


def task_error(error: BaseException) -> RuntimeError:
    """The error to report for a task that raised ``error``: one line, and one name for out of memory."""
    text = str(error).strip() or repr(error)
    line = text.splitlines()[0]
    is_memory = isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in text
    shown = RuntimeError(f"out of memory: {line}" if is_memory else line)
    shown.__cause__ = error
    return shown
