"""Infer requests whose inputs and outputs are found by port, index or name, as with OpenVINO's own requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from hsdag.base.errors import ExecutionError, OptionError, last_line
from hsdag.base.processes import Closing
from hsdag.ir.elements import array_of, fill


class CompiledModel(Closing):
    """Base of models that are used like an ``ov.CompiledModel``, with its inputs and outputs."""

    inputs: list[Any]
    outputs: list[Any]

    def input(self, key: Any = 0) -> Any:
        """Return an input port by index or name."""
        return self.inputs[port_index(self.inputs, key, "input")]

    def output(self, key: Any = 0) -> Any:
        """Return an output port by index or name."""
        return self.outputs[port_index(self.outputs, key, "output")]

    @abstractmethod
    def create_infer_request(self) -> Any:
        """Return a request with tensors of its own."""

    def infer_new_request(self, inputs: Any = None) -> Any:
        """Infer on a new request."""
        return self.create_infer_request().infer(inputs)


class InferenceRequest(ABC):
    """Base of requests like ``ov.InferRequest``: one inference at a time, with tensors of its own."""

    def __init__(self, input_ports: Sequence[Any], output_ports: Sequence[Any]) -> None:
        self.model_inputs, self.model_outputs = list(input_ports), list(output_ports)
        self._callback: Callable[[Any], None] | None = None
        self.userdata: Any = None
        self._buffers = [ov.Tensor(p.get_element_type(), p.get_partial_shape().get_min_shape()) for p in input_ports]
        self._inputs = list(self._buffers)
        for index, tensor in enumerate(self._buffers):
            self.give(index, tensor)

    @abstractmethod
    def start(self) -> None:
        """Start an inference. Raises ExecutionError where it cannot be started."""

    @abstractmethod
    def wait(self) -> None:
        """Wait for the end. Raises ExecutionError when it failed."""

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Return whether an inference has not ended yet."""

    @abstractmethod
    def give(self, index: int, tensor: Any) -> None:
        """Make an input read from a tensor. Raises RuntimeError for a tensor that cannot be used."""

    @abstractmethod
    def output_tensor(self, index: int) -> Any:
        """Return the tensor of an output."""

    def infer(self, inputs: Any = None) -> Outputs:
        """Infer and return the outputs. Raises ExecutionError when it fails, OptionError for inputs that do not fit."""
        self.start_async(inputs)
        self.wait()
        return self.results

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:  # noqa: ARG002
        """Start an inference, to ``wait`` for. Raises ExecutionError while one runs, OptionError for unfit inputs.

        Arrays are always copied and tensors never are; ``share_inputs`` is there because OpenVINO's requests take it.
        """
        self.check_idle()
        for key, value in named_inputs(inputs, self.model_inputs):
            self._set(key, value)
        self.userdata = userdata if userdata is not None else self.userdata
        self.start()

    def set_callback(self, callback: Callable[[Any], None], userdata: Any = None) -> None:
        """Set ``callback(userdata)`` to be called after every inference that ends well; it must not block."""
        self._callback, self.userdata = callback, userdata

    @property
    def results(self) -> Outputs:
        """Return copies of the outputs of the last inference."""
        arrays = [array_of(self.output_tensor(index)) for index in range(len(self.model_outputs))]
        return Outputs(zip(self.model_outputs, arrays, strict=True))

    def get_output_tensor(self, index: int = 0) -> Any:
        """Return the tensor of an output; the next inference overwrites it."""
        return self.output_tensor(port_index(self.model_outputs, index, "output"))

    def get_input_tensor(self, index: int = 0) -> Any:
        """Return the tensor that an input is read from; it may be written."""
        return self._inputs[port_index(self.model_inputs, index, "input")]

    def get_tensor(self, key: Any) -> Any:
        """Return the tensor of an input or output by port or name."""
        for ports, of in ((self.model_inputs, self.get_input_tensor), (self.model_outputs, self.get_output_tensor)):
            index = find_port(ports, key)
            if index is not None:
                return of(index)
        raise OptionError(f"the model has no input or output {key!r}")

    def set_input_tensor(self, index: int | Any, tensor: Any = None) -> None:
        """Read an input from an ``ov.Tensor``, without a copy. Raises OptionError for another type or shape."""
        index, tensor = (0, index) if tensor is None else (index, tensor)
        self.check_idle()
        k = port_index(self.model_inputs, index, "input")
        port = self.model_inputs[k]
        wanted = f"input {index!r} takes {port.get_element_type().get_type_name()} {_sizes(port)}"
        if not isinstance(tensor, ov.Tensor):
            raise OptionError(f"{wanted} as an ov.Tensor, not {type(tensor).__name__}")
        if tensor.element_type != port.get_element_type() or not _takes(port, tensor.shape):
            raise OptionError(f"{wanted}, not {tensor.element_type.get_type_name()} {list(tensor.shape)}")
        try:
            self.give(k, tensor)
        except RuntimeError as error:
            raise OptionError(f"{wanted}, but the tensor cannot be used: {last_line(error)}") from error
        self._inputs[k] = tensor

    set_tensor = set_input_tensor

    def _set(self, key: Any, value: Any) -> None:
        if isinstance(value, ov.Tensor):
            self.set_input_tensor(key, value)
            return
        index = port_index(self.model_inputs, key, "input")
        buffer, port = self._buffers[index], self.model_inputs[index]
        array = np.asarray(value)
        if not _takes(port, array.shape):
            raise OptionError(f"input {key!r} takes an array of shape {_sizes(port)}, not {list(array.shape)}")
        if array.shape != tuple(buffer.shape):
            buffer = self._buffers[index] = ov.Tensor(buffer.element_type, list(array.shape))
        try:
            fill(buffer, array)
        except ValueError as error:
            raise OptionError(f"input {key!r} {error}") from error
        if self._inputs[index] is not buffer:  # a tensor that the caller gave before stays as it is
            self.set_input_tensor(index, buffer)

    def call_back(self) -> None:
        """Call the callback after an inference that ended well."""
        if self._callback is not None:
            self._callback(self.userdata)

    def check_idle(self) -> None:
        """Raise ExecutionError while an inference runs."""
        if self.is_running:
            raise ExecutionError("the request is already running; wait for it, or create another one")


def _takes(port: Any, shape: Any) -> bool:
    return bool(port.get_partial_shape().compatible(ov.PartialShape(list(shape))))


def _sizes(port: Any) -> list[int | str]:
    """Return the shape that an input takes, with text for sizes that may differ."""
    return [str(d) if d.is_dynamic else d.get_length() for d in port.get_partial_shape()]


class Outputs(dict[Any, NDArray[Any]]):
    """The outputs of an inference by port, index or name, as in OpenVINO's own results."""

    def __missing__(self, key: Any) -> NDArray[Any]:
        return self.to_tuple()[port_index(list(self), key, "output")]

    def __contains__(self, key: object) -> bool:
        return find_port(list(self), key) is not None

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the array of an output, ``default`` where there is no such output."""
        index = find_port(list(self), key)
        return default if index is None else self.to_tuple()[index]

    def to_tuple(self) -> tuple[NDArray[Any], ...]:
        """Return the arrays in the order of the outputs."""
        return tuple(self.values())


def port_index(ports: Sequence[Any], key: Any, kind: str) -> int:
    """Return the position of a port given by index, name or port. Raises OptionError that lists the names."""
    index = find_port(ports, key)
    if index is None:
        names = ", ".join(port.get_any_name() if port.get_names() else f"#{k}" for k, port in enumerate(ports))
        raise OptionError(f"the model has no {kind} {key!r}; it has {names}")
    return index


def find_port(ports: Sequence[Any], key: Any) -> int | None:
    """Return the position of a port, None if there is none; ports of a clone or a compiled model match by name."""
    if isinstance(key, int):
        return key if 0 <= key < len(ports) else None
    if isinstance(key, str):
        return next((k for k, p in enumerate(ports) if key in p.get_names() or key == _op_name(p)), None)
    if not hasattr(key, "get_names"):
        return None
    tests: tuple[Callable[[Any], bool], ...] = (
        lambda port: bool(key == port),
        lambda port: bool(key.get_names() & port.get_names()) and _op_name(key) == _op_name(port),
        lambda port: bool(key.get_names() & port.get_names()),
        lambda port: _op_name(key) == _op_name(port),
    )
    return next((k for is_meant in tests for k, port in enumerate(ports) if is_meant(port)), None)


def _op_name(port: Any) -> str:
    return str(port.get_node().get_friendly_name())


def named_inputs(inputs: Any, ports: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return keys and values of a caller's inputs: a mapping, a sequence, one array, or None."""
    if inputs is None:
        return []
    if isinstance(inputs, Mapping):
        return list(inputs.items())
    values = inputs if isinstance(inputs, list | tuple) else [inputs]
    if len(values) != len(ports):
        raise OptionError(f"the model has {len(ports)} inputs, not {len(values)}; pass a mapping or a list")
    return list(enumerate(values))
