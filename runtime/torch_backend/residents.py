"""Residents: the tensors that lie on devices before an inference begins, constants and inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.torch_backend.graph import Feed, Tensor
from hsdag.runtime.torch_backend.memory import DeviceMemoryError
from hsdag.runtime.torch_backend.program import Program
from hsdag.runtime.torch_backend.state import Ledgers
from hsdag.runtime.torch_backend.task_error import task_error


class Residents:
    """Constants, from the start, and inputs, once loaded. ``held`` [B] has them by buffer.

    ``addresses`` are those of their storages. Raises ExecutionError that names constant and device where there is no
    room.
    """

    def __init__(self, program: Program, ledgers: Ledgers) -> None:
        self._program = program
        self._ledgers = ledgers
        self.held: list[Tensor | None] = [None] * program.num_buffers
        self.addresses: frozenset[int] = frozenset()
        try:
            for node, port, buffer in program.constants:
                what = f"constant {program.graph.nodes[node].name!r}"
                constant = program.graph.nodes[node].constants[port].detach()  # results keep no activations
                self._hold(buffer, self._placed(constant, buffer, what), what)
            _synchronize(program)
            self._note_addresses()
        except BaseException:
            self.close()
            raise

    def load(self, inputs: Mapping[str, Tensor | NDArray[np.generic]]) -> None:
        """Put copies of inputs where they are read. Raises ExecutionError where one does not fit."""
        node_of = {buffer: node for node, buffer in self._program.feeds.items()}
        try:
            for buffer, tensor in self._parts(inputs, copy=True):
                self._let_go(buffer)
                self._hold(buffer, tensor, f"input {self._program.graph.nodes[node_of[buffer]].name!r}")
        finally:
            self._note_addresses()
        _synchronize(self._program)

    def feed(self, inputs: Mapping[str, Tensor | NDArray[np.generic]]) -> dict[int, Tensor]:
        """The parts of inputs by buffer, for one inference. Raises ExecutionError where one is missing or misfits."""
        fed = dict(self._parts(inputs))
        graph, feeds = self._program.graph, self._program.feeds
        lacking = [v for v, buffer in feeds.items() if buffer not in fed and self.held[buffer] is None]
        if lacking:
            names = ", ".join(dict.fromkeys(repr(_feed(self._program, v).tensor) for v in lacking))
            raise ExecutionError(f"{graph.name!r} has no value for its inputs {names}; load them or give them")
        if fed:
            _synchronize(self._program)
        return fed

    def close(self) -> None:
        """Let go of everything."""
        for buffer in range(len(self.held)):
            self._let_go(buffer)

    def _parts(
        self, inputs: Mapping[str, Tensor | NDArray[np.generic]], copy: bool = False
    ) -> Iterable[tuple[int, Tensor]]:
        known = self._program.graph.inputs
        for name in inputs:
            if name not in known:
                raise ExecutionError(f"{self._program.graph.name!r} has no input {name!r}; it has {', '.join(known)}")
        for node, buffer in self._program.feeds.items():
            feed = _feed(self._program, node)
            if feed.tensor in inputs:
                try:
                    part = feed.cut(tensor_of(inputs[feed.tensor]).detach())
                except (ValueError, TypeError) as error:
                    raise ExecutionError(f"input {feed.tensor!r} of {self._program.graph.name!r}: {error}") from error
                yield buffer, self._placed(part, buffer, f"input {feed.tensor!r}", feed.dtype, copy)

    def _placed(
        self, tensor: Tensor, buffer: int, what: str, dtype: torch.dtype | None = None, copy: bool = False
    ) -> Tensor:
        """A tensor on the device of a buffer, in memory of its own size. Raises DeviceMemoryError with its name."""
        device = self._program.devices[self._program.buffer_device[buffer]]
        try:
            placed = tensor.to(device=device.physical, dtype=dtype or tensor.dtype, copy=copy).contiguous()
            is_view = placed.untyped_storage().nbytes() > placed.nbytes  # would keep the whole alive
            return placed.clone() if is_view else placed
        except RuntimeError as error:
            told = task_error(error)
            if isinstance(told, DeviceMemoryError):
                raise DeviceMemoryError(f"{what} on device {device.name}: {told}") from error
            raise

    def _hold(self, buffer: int, tensor: Tensor, what: str) -> None:
        ledger = self._ledgers[self._program.buffer_device[buffer]]
        if ledger is not None:
            try:
                ledger.take(tensor)
            except DeviceMemoryError as error:
                raise DeviceMemoryError(f"{what} on device {ledger.device}: {error}") from error
        self.held[buffer] = tensor

    def _note_addresses(self) -> None:
        self.addresses = frozenset(x.untyped_storage().data_ptr() for x in self.held if x is not None)

    def _let_go(self, buffer: int) -> None:
        tensor, ledger = self.held[buffer], self._ledgers[self._program.buffer_device[buffer]]
        if tensor is not None and ledger is not None:
            ledger.give(tensor)
        self.held[buffer] = None


def tensor_of(values: Tensor | NDArray[np.generic]) -> Tensor:
    """The tensor of an array, in the same memory where that may be written to; torch has no other tensors."""
    if isinstance(values, np.ndarray) and not values.flags.writeable:
        values = values.copy()
    return torch.as_tensor(values)


def _feed(program: Program, node: int) -> Feed:
    feed = program.graph.nodes[node].feed
    assert feed is not None
    return feed


def _synchronize(program: Program) -> None:
    """Wait until copies to GPUs, which ran on the caller's streams, are there."""
    for physical in {device.physical for device in program.devices if device.is_cuda}:
        torch.cuda.current_stream(physical).synchronize()
