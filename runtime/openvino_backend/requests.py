"""WorkConservingModel and its requests: a cut model that is used like an ``ov.CompiledModel``."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov

from hsdag.ir.errors import ExecutionError, OptionError
from hsdag.runtime.executor import Engine, Run, TaskTimes
from hsdag.runtime.openvino_backend.backend import OpenVinoBackend
from hsdag.runtime.openvino_backend.cut import Cut
from hsdag.runtime.timeline import Timeline


class Outputs(Mapping[Any, np.ndarray[Any, Any]]):
    """What an inference gave, by output port, index, or name, in the manner of OpenVINO's own results."""

    def __init__(self, ports: Sequence[Any], arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        self._ports, self._arrays = ports, arrays

    def __getitem__(self, key: Any) -> np.ndarray[Any, Any]:
        return self._arrays[port_index(self._ports, key, "output")]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ports)

    def __len__(self) -> int:
        return len(self._ports)

    def to_tuple(self) -> tuple[np.ndarray[Any, Any], ...]:
        """The arrays in the order of the outputs."""
        return tuple(self._arrays)


class WorkConservingModel:
    """A placed model that runs its subgraphs side by side; made by ``compile_work_conserving``.

    Call it with inputs, or make requests to have several inferences in flight. Close it, or use it as a context
    manager, to end its thread at once; otherwise that happens when it is no longer used.
    """

    def __init__(
        self, model: ov.Model, cut: Cut, backend: OpenVinoBackend, engine: Engine, limit_s: float | None
    ) -> None:
        self._model = model
        self.cut = cut
        self.limit_s = limit_s
        self._backend, self._engine = backend, engine
        self._own: WorkConservingRequest | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> WorkConservingModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, inputs: Any = None) -> Outputs:
        """Infer, one call at a time. Raises ExecutionError when it fails, OptionError for inputs that do not fit."""
        with self._lock:
            if self._own is None:
                self._own = self.create_infer_request()
            return self._own.infer(inputs)

    @property
    def inputs(self) -> list[Any]:
        """Ports of the model's inputs."""
        return list(self._model.inputs)

    @property
    def outputs(self) -> list[Any]:
        """Ports of the model's outputs."""
        return list(self._model.outputs)

    def input(self, key: Any = 0) -> Any:
        """An input by index or name."""
        return self._model.inputs[port_index(self._model.inputs, key, "input")]

    def output(self, key: Any = 0) -> Any:
        """An output by index or name."""
        return self._model.outputs[port_index(self._model.outputs, key, "output")]

    def create_infer_request(self) -> WorkConservingRequest:
        """A request with tensors of its own."""
        return WorkConservingRequest(self, self._backend, self._engine)

    def infer_new_request(self, inputs: Any = None) -> Outputs:
        """Infer on a new request."""
        return self.create_infer_request().infer(inputs)

    def close(self) -> None:
        """Cancel inferences in flight and end the thread; idempotent."""
        self._engine.close()


class WorkConservingRequest:
    """One inference at a time, in the manner of ``ov.InferRequest``."""

    def __init__(self, model: WorkConservingModel, backend: OpenVinoBackend, engine: Engine) -> None:
        self._compiled, self._backend, self._engine = model, backend, engine
        self._cut = model.cut
        self._slot = backend.add_slot()
        self._drop = weakref.finalize(self, backend.drop_slot, self._slot)
        self._run: Run | None = None
        self._callback: Callable[[Any], None] | None = None
        self.userdata: Any = None
        parameters = [v for v, kind in enumerate(self._cut.graph.op_types) if kind == "Parameter"]
        by_name = {self._cut.graph.op_names[v]: v for v in parameters}
        self._input_ops = [by_name[port.node.get_friendly_name()] for port in model.inputs]
        self._results = [tensor for _, tensor in self._cut.results]
        self._inputs: list[Any] = []
        for k, port in enumerate(model.inputs):
            self._inputs.append(ov.Tensor(port.get_element_type(), port.get_shape()))
            backend.bind_input(self._slot, self._input_ops[k], self._inputs[k])

    @property
    def model_inputs(self) -> list[Any]:
        """Ports of the model's inputs."""
        return self._compiled.inputs

    @property
    def model_outputs(self) -> list[Any]:
        """Ports of the model's outputs."""
        return self._compiled.outputs

    def infer(self, inputs: Any = None) -> Outputs:
        """Run and wait. Raises ExecutionError when it fails, OptionError for inputs that do not fit."""
        self.start_async(inputs)
        self.wait()
        return self.results

    def start_async(self, inputs: Any = None, userdata: Any = None) -> None:
        """Start; ``wait`` waits for the end. Raises ExecutionError while it runs, OptionError for unfit inputs."""
        if self._run is not None and not self._run.is_over:
            raise ExecutionError("the request runs already; wait for it, or make another one")
        for key, value in _named(inputs, self.model_inputs):
            self._set(key, value)
        self.userdata = userdata if userdata is not None else self.userdata
        self._run = self._engine.submit(self._slot, limit_s=self._compiled.limit_s, on_end=self._told)

    def wait(self) -> None:
        """Wait for the end. Raises ExecutionError when it failed."""
        if self._run is not None:
            self._run.wait()

    def wait_for(self, timeout_ms: int) -> bool:
        """Wait a while; whether it has ended. Raises ExecutionError when it failed."""
        return self._run is None or self._run.wait(timeout_ms / 1e3)

    def cancel(self) -> None:
        """End the inference early; ``wait`` then raises ExecutionError."""
        if self._run is not None:
            self._engine.cancel(self._run)

    def set_callback(self, callback: Callable[[Any], None], userdata: Any = None) -> None:
        """Call ``callback(userdata)`` after every inference that ends well; it must not block."""
        self._callback, self.userdata = callback, userdata

    @property
    def results(self) -> Outputs:
        """Copies of the outputs of the last inference."""
        return Outputs(
            self.model_outputs, [np.array(self.get_output_tensor(k).data) for k in range(len(self._results))]
        )

    def get_output_tensor(self, index: int = 0) -> Any:
        """The tensor of an output; the next inference writes it again."""
        return self._backend.tensor(self._slot, self._results[index])

    def get_input_tensor(self, index: int = 0) -> Any:
        """The tensor an input is read from; it may be written."""
        return self._inputs[index]

    def get_tensor(self, key: Any) -> Any:
        """The tensor of an input or output by port or name."""
        for ports, of in ((self.model_inputs, self.get_input_tensor), (self.model_outputs, self.get_output_tensor)):
            found = _find(ports, key)
            if found is not None:
                return of(found)
        raise OptionError(f"the model has no input or output {key!r}")

    def set_input_tensor(self, index: int | Any, tensor: Any = None) -> None:
        """Read an input from an ``ov.Tensor``, without a copy. Raises OptionError for another type or shape."""
        index, tensor = (0, index) if tensor is None else (index, tensor)
        port = self.model_inputs[index]
        if tensor.element_type != port.get_element_type() or tensor.shape != port.get_shape():
            raise OptionError(
                f"input {index} takes {port.get_element_type().get_type_name()} {list(port.get_shape())}, "
                f"not {tensor.element_type.get_type_name()} {list(tensor.shape)}"
            )
        self._inputs[index] = tensor
        self._backend.bind_input(self._slot, self._input_ops[index], tensor)

    def set_tensor(self, key: Any, tensor: Any) -> None:
        """Read an input, by port or name, from an ``ov.Tensor``. Raises OptionError as set_input_tensor does."""
        self.set_input_tensor(port_index(self.model_inputs, key, "input"), tensor)

    @property
    def latency(self) -> float:
        """Milliseconds of the last inference."""
        return 1e3 * self._ended().makespan_s

    @property
    def times(self) -> TaskTimes:
        """When each subgraph of the last inference ran."""
        return self._ended().times

    @property
    def timeline(self) -> Timeline:
        """What ran where and when in the last inference."""
        return self._ended().timeline

    def _ended(self) -> Run:
        if self._run is None or not self._run.is_over:
            raise ExecutionError("no inference has ended on this request yet")
        return self._run

    def _told(self, run: Run) -> None:
        if self._callback is not None and run.error is None:
            self._callback(self.userdata)

    def _set(self, key: Any, value: Any) -> None:
        index = port_index(self.model_inputs, key, "input")
        if isinstance(value, ov.Tensor):
            self.set_input_tensor(index, value)
            return
        held = self._inputs[index].data
        array = np.asarray(value)
        if array.shape != held.shape:
            raise OptionError(f"input {key!r} takes an array of shape {list(held.shape)}, not {list(array.shape)}")
        if not np.can_cast(array.dtype, held.dtype, "same_kind"):
            raise OptionError(f"input {key!r} takes {held.dtype} and cannot hold {array.dtype}")
        np.copyto(held, array, casting="same_kind")


def port_index(ports: Sequence[Any], key: Any, kind: str) -> int:
    """Which port is meant by an index, a name or a port. Raises OptionError that lists the names."""
    found = _find(ports, key)
    if found is None:
        names = ", ".join(port.get_any_name() if port.get_names() else f"#{k}" for k, port in enumerate(ports))
        raise OptionError(f"the model has no {kind} {key!r}; it has {names}")
    return found


def _find(ports: Sequence[Any], key: Any) -> int | None:
    if isinstance(key, int):
        return key if 0 <= key < len(ports) else None
    for k, port in enumerate(ports):
        if isinstance(key, str):
            if key in port.get_names() or key == port.node.get_friendly_name():
                return k
        elif key == port or (hasattr(key, "get_names") and key.get_names() and key.get_names() == port.get_names()):
            return k
    return None


def _named(inputs: Any, ports: Sequence[Any]) -> list[tuple[Any, Any]]:
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
