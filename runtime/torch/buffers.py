"""The tensors on devices: those that lie there before an inference begins, and those of one inference.

Legend: B buffers.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.torch.op import Tensor
from hsdag.runtime.torch.program import UNUSED, Program

Inputs = Mapping[str, Tensor | NDArray[np.generic]]


class Residents:
    """Constants, from the start, and inputs, once loaded: ``values`` [B], None where a task writes.

    Raises ExecutionError that names constant and device where there is no room.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.values: list[Tensor | None] = [None] * len(program.buffer_device)
        for v, port, buffer in program.constants:
            node = program.graph.nodes[v]
            self._put(f"constant {node.name!r}", node.constants[port].detach(), buffer)  # without activations
        self._synchronize()

    @property
    def size_bytes(self) -> int:
        """What they take."""
        return sum(x.untyped_storage().nbytes() for x in self.values if x is not None)

    def load(self, inputs: Inputs) -> None:
        """Put copies of inputs where they are read. Raises ExecutionError where one does not fit."""
        graph = self._program.graph
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
                self._put(f"input {feed.tensor!r}", part, buffer, feed.dtype, copy=True)
        self._synchronize()

    def check(self) -> None:
        """Raise ExecutionError where an input was never loaded."""
        feeds = self._program.feeds.items()
        lacking = dict.fromkeys(repr(feed.tensor) for buffer, feed in feeds if self.values[buffer] is None)
        if lacking:
            raise ExecutionError(f"{self._program.graph.name!r} has no value for its inputs {', '.join(lacking)}")

    def _put(
        self, what: str, tensor: Tensor, buffer: int, dtype: torch.dtype | None = None, copy: bool = False
    ) -> None:
        """Fill a buffer, in memory of the tensor's own size. Where there is no room the error names ``what``."""
        device = self._program.devices[self._program.buffer_device[buffer]]
        try:
            placed = tensor.to(device.physical, dtype, copy=copy, memory_format=torch.contiguous_format)
            if placed.untyped_storage().nbytes() > placed.nbytes:  # a view would keep the whole alive
                placed = placed.clone()
            self.values[buffer] = placed
        except RuntimeError as error:
            raise ExecutionError(f"{what} on device {device.name}: {task_error(error)}") from error

    def _synchronize(self) -> None:
        """Wait until copies to GPUs, which ran on the caller's streams, are there."""
        for physical in {device.physical for device in self._program.devices if device.is_cuda}:
            torch.cuda.current_stream(physical).synchronize()


class RunState:
    """The buffers of one inference, filled and dropped by tasks from any thread."""

    def __init__(self, program: Program, residents: Residents) -> None:
        self.works = program.works
        self.outputs: dict[str, Tensor] | None = None
        self.is_cancelled = False
        self._program = program
        self._values = list(residents.values)
        self._left = list(program.uses)
        self._is_over = False
        self._lock = threading.Lock()

    def inputs(self, task: int) -> list[Tensor]:
        """What a task reads; the engine starts it when all of it is there."""
        values = self._values
        return [values[b] for b in self.works[task].reads]  # type: ignore[misc]

    def store(self, task: int, results: Sequence[Tensor]) -> None:
        """Keep those results of a task that are read later."""
        with self._lock:
            for buffer, tensor in zip(self.works[task].writes, results, strict=False):
                if buffer != UNUSED and not self._is_over:
                    self._values[buffer] = tensor

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
            found = {name: self._values[buffer] for name, buffer in self._program.outputs.items()}
            results = {name: x for name, x in found.items() if x is not None}
            self.outputs = results if len(results) == len(found) else None
            self._values = [None] * len(self._values)


def task_error(error: BaseException) -> RuntimeError:
    """The error to report for a task that raised ``error``: one line, and one name for out of memory."""
    text = str(error).strip() or repr(error)
    line = text.splitlines()[0]
    is_memory = isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in text
    shown = RuntimeError(f"out of memory: {line}" if is_memory else line)
    shown.__cause__ = error
    return shown
