"""Ports: which input or output of a model is meant by an index, a name or a port, and what an inference gives by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hsdag.ir.errors import OptionError


class Outputs(Mapping[Any, np.ndarray[Any, Any]]):
    """What an inference gave, by output port, index, or name, in the manner of OpenVINO's own results."""

    def __init__(self, ports: Sequence[Any], arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        self._ports, self._arrays = ports, arrays

    def __getitem__(self, key: Any) -> np.ndarray[Any, Any]:
        return self._arrays[port_index(self._ports, key, "output")]

    def __contains__(self, key: object) -> bool:
        return find_port(self._ports, key) is not None

    def get(self, key: Any, default: Any = None) -> Any:
        """The array of an output, ``default`` where there is no such output."""
        found = find_port(self._ports, key)
        return default if found is None else self._arrays[found]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ports)

    def __len__(self) -> int:
        return len(self._ports)

    def to_tuple(self) -> tuple[np.ndarray[Any, Any], ...]:
        """The arrays in the order of the outputs."""
        return tuple(self._arrays)


def port_index(ports: Sequence[Any], key: Any, kind: str) -> int:
    """Which port is meant by an index, a name or a port. Raises OptionError that lists the names."""
    found = find_port(ports, key)
    if found is None:
        names = ", ".join(port.get_any_name() if port.get_names() else f"#{k}" for k, port in enumerate(ports))
        raise OptionError(f"the model has no {kind} {key!r}; it has {names}")
    return found


def find_port(ports: Sequence[Any], key: Any) -> int | None:
    """Which port is meant, None where there is none; ports of a clone or a compiled model count by their names."""
    if isinstance(key, int):
        return key if 0 <= key < len(ports) else None
    if isinstance(key, str):
        return next((k for k, p in enumerate(ports) if key in p.get_names() or key == _op_name(p)), None)
    if not hasattr(key, "get_names"):
        return None
    tests: tuple[Callable[[Any], bool], ...] = (
        lambda port: bool(key == port),
        lambda port: bool(key.get_names() & port.get_names()),
        lambda port: _op_name(key) == _op_name(port),
    )
    return next((k for is_meant in tests for k, port in enumerate(ports) if is_meant(port)), None)


def _op_name(port: Any) -> str:
    return str(port.get_node().get_friendly_name())


def named_inputs(inputs: Any, ports: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Keys and values of what a caller passes: a mapping, a sequence, one array, or nothing."""
    if inputs is None:
        return []
    if isinstance(inputs, Mapping):
        return list(inputs.items())
    if isinstance(inputs, list | tuple):
        if len(inputs) != len(ports):
            raise OptionError(f"the model has {len(ports)} inputs, not {len(inputs)}")
        return list(enumerate(inputs))
    if len(ports) != 1:
        raise OptionError(f"the model has {len(ports)} inputs; pass a mapping or a list")
    return [(0, inputs)]
