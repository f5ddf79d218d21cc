"""SharedMemory: where a tensor between parts lives when a GPU writes or reads it.

CPU devices share the memory of the process: the output tensor of one request is the input tensor of another. A GPU
plugin copies such a tensor on every inference. Two subgraphs of one GPU need no copy when the tensor stays in its
memory (a remote tensor), and a GPU and a CPU need none when it lies in host memory that the GPU sees too (unified
shared memory). Where a plugin offers neither, the ordinary tensor stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from hsdag.ir.device import DeviceSpec


class Home(Enum):
    """Where a tensor is best kept."""

    REQUEST = "the request that writes it"
    DEVICE = "the memory of the one GPU that writes and reads it"
    HOST = "host memory that its GPU sees"


def home_of(writer: DeviceSpec, readers: Iterable[DeviceSpec], is_result: bool) -> Home:
    """Where a tensor is best kept; a result of the model is read by the caller, who is on the CPU."""
    involved = {spec.name: spec.plugin for spec in (writer, *readers)}
    if not any(plugin.startswith("GPU") for plugin in involved.values()):
        return Home.REQUEST
    return Home.DEVICE if len(involved) == 1 and not is_result else Home.HOST


class SharedMemory:
    """Makes tensors for homes, through the contexts of the GPUs; remembers which of them cannot."""

    def __init__(self, core: Any, specs: Sequence[DeviceSpec]) -> None:
        self._core, self._specs = core, specs
        self._contexts: dict[str, Any] = {}

    def tensor(self, writer: int, readers: Sequence[int], is_result: bool, element_type: Any, shape: Any) -> Any:
        """A tensor that devices ``writer`` and ``readers`` use without copies; None for the request's own."""
        specs = [self._specs[d] for d in readers]
        home = home_of(self._specs[writer], specs, is_result)
        if home is Home.REQUEST:
            return None
        gpu = next(spec for spec in (self._specs[writer], *specs) if spec.plugin.startswith("GPU"))
        context = self._context(gpu.openvino_name)
        if context is None:
            return None
        try:
            if home is Home.DEVICE:
                return context.create_tensor(element_type, shape, {})
            return context.create_host_tensor(element_type, shape)
        except RuntimeError:
            self._contexts[gpu.openvino_name] = None
            return None

    def _context(self, name: str) -> Any:
        if name not in self._contexts:
            try:
                self._contexts[name] = self._core.get_default_context(name)
            except RuntimeError:
                self._contexts[name] = None
        return self._contexts[name]
