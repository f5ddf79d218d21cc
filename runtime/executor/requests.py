"""WorkConservingModel and its requests: a cut model that is used like an ``ov.CompiledModel``."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from hsdag.ir.errors import ExecutionError, OptionError
from hsdag.ir.graph.build import ordered_ops
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.ir.graph.state import variable_of
from hsdag.runtime.executor.cut import Cut
from hsdag.runtime.executor.engine import Engine
from hsdag.runtime.executor.openvino_backend import OpenVinoBackend
from hsdag.runtime.executor.tasks import Run
from hsdag.runtime.machine.devices import array_of, reason_of
from hsdag.runtime.timeline.timeline import Timeline


class WorkConservingModel:
    """A placed model that runs its parts side by side; made by ``compile_work_conserving``.

    Call it with inputs, or make requests to have several inferences in flight. Close it, or use it as a context
    manager, to end its thread at once; otherwise that happens when it is no longer used.
    """

    def __init__(
        self, model: ov.Model, cut: Cut, backend: OpenVinoBackend, engine: Engine, limit_s: float | None
    ) -> None:
        self._model = model
        self.cut = cut
        op = {node.get_name(): v for v, (_, node) in enumerate(ordered_ops(model))}
        tensor_of = dict(cut.results)
        self.input_ops = [op[port.get_node().get_name()] for port in model.inputs]
        self.result_tensors = [tensor_of[op[port.get_node().get_name()]] for port in model.outputs]
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
            return self._called().infer(inputs)

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

    def query_state(self) -> list[Any]:
        """The variables of the request that calls use, as ``ov.VariableState``."""
        with self._lock:
            return self._called().query_state()

    def reset_state(self) -> None:
        """Have calls forget what earlier ones left in variables."""
        with self._lock:
            self._called().reset_state()

    def _called(self) -> WorkConservingRequest:
        if self._own is None:
            self._own = self.create_infer_request()
        return self._own

    def infer_new_request(self, inputs: Any = None) -> Outputs:
        """Infer on a new request."""
        return self.create_infer_request().infer(inputs)

    def close(self) -> None:
        """Cancel inferences in flight and end the thread; idempotent."""
        self._engine.close()


class WorkConservingRequest:
    """One inference at a time, in the manner of ``ov.InferRequest``."""

    def __init__(self, model: WorkConservingModel, backend: OpenVinoBackend, engine: Engine) -> None:
        self._backend, self._engine = backend, engine  # not the model: it may hold a request of its own
        self._limit_s = model.limit_s
        self._has_state = variable_of(model.cut.graph) is not None
        self._input_ports, self._output_ports = model.inputs, model.outputs
        self._input_ops, self._result_tensors = model.input_ops, model.result_tensors
        self._slot = backend.add_slot()
        self._drop = weakref.finalize(self, backend.drop_slot, self._slot)
        self._drop.atexit = False
        self._run: Run | None = None
        self._submitting = threading.Lock()  # until the new run is known here, nobody is told of its end
        self._callback: Callable[[Any], None] | None = None
        self.userdata: Any = None
        self._own = [ov.Tensor(p.get_element_type(), p.get_partial_shape().get_min_shape()) for p in model.inputs]
        self._inputs = list(self._own)
        for op, tensor in zip(self._input_ops, self._inputs, strict=True):
            backend.slot(self._slot).give(op, tensor)

    @property
    def model_inputs(self) -> list[Any]:
        """Ports of the model's inputs."""
        return list(self._input_ports)

    @property
    def model_outputs(self) -> list[Any]:
        """Ports of the model's outputs."""
        return list(self._output_ports)

    def infer(self, inputs: Any = None) -> Outputs:
        """Run and wait. Raises ExecutionError when it fails, OptionError for inputs that do not fit."""
        self.start_async(inputs)
        self.wait()
        return self.results

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:  # noqa: ARG002
        """Start; ``wait`` waits for the end. Raises ExecutionError while it runs, OptionError for unfit inputs.

        Arrays are copied whatever ``share_inputs`` says, which OpenVINO's requests take; tensors never are.
        """
        self._check_idle()
        self._check_state()
        for key, value in named_inputs(inputs, self._input_ports):
            self._set(key, value)
        self.userdata = userdata if userdata is not None else self.userdata
        with self._submitting:
            self._run = self._engine.submit(self._slot, limit_s=self._limit_s, on_end=self._told)

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

    def query_state(self) -> list[Any]:
        """The variables that this request keeps between inferences, as ``ov.VariableState``, each in its part."""
        self._check_idle()
        return self._backend.slot(self._slot).states()

    def reset_state(self) -> None:
        """Forget what earlier inferences left in variables."""
        for state in self.query_state():
            state.reset()
        self._run = None

    def set_callback(self, callback: Callable[[Any], None], userdata: Any = None) -> None:
        """Call ``callback(userdata)`` after every inference that ends well; it must not block."""
        self._callback, self.userdata = callback, userdata

    @property
    def results(self) -> Outputs:
        """Copies of the outputs of the last inference."""
        slot = self._backend.slot(self._slot)
        arrays = [array_of(slot.tensor(tensor)) for tensor in self._result_tensors]
        return Outputs(zip(self._output_ports, arrays, strict=True))

    def get_output_tensor(self, index: int = 0) -> Any:
        """The tensor of an output; the next inference writes it again."""
        tensor = self._result_tensors[port_index(self._output_ports, index, "output")]
        return self._backend.slot(self._slot).tensor(tensor)

    def get_input_tensor(self, index: int = 0) -> Any:
        """The tensor an input is read from; it may be written."""
        return self._inputs[port_index(self._input_ports, index, "input")]

    def get_tensor(self, key: Any) -> Any:
        """The tensor of an input or output by port or name."""
        for ports, of in ((self._input_ports, self.get_input_tensor), (self._output_ports, self.get_output_tensor)):
            found = find_port(ports, key)
            if found is not None:
                return of(found)
        raise OptionError(f"the model has no input or output {key!r}")

    def set_input_tensor(self, index: int | Any, tensor: Any = None) -> None:
        """Read an input from an ``ov.Tensor``, without a copy. Raises OptionError for another type or shape."""
        index, tensor = (0, index) if tensor is None else (index, tensor)
        self._check_idle()
        k = port_index(self._input_ports, index, "input")
        port = self._input_ports[k]
        wanted = f"input {index!r} takes {port.get_element_type().get_type_name()} {_sizes(port)}"
        if not isinstance(tensor, ov.Tensor):
            raise OptionError(f"{wanted} as an ov.Tensor, not {type(tensor).__name__}")
        if tensor.element_type != port.get_element_type() or not _takes(port, tensor.shape):
            raise OptionError(f"{wanted}, not {tensor.element_type.get_type_name()} {list(tensor.shape)}")
        try:
            self._backend.slot(self._slot).give(self._input_ops[k], tensor)
        except RuntimeError as error:
            raise OptionError(f"{wanted}, but the tensor cannot be used: {reason_of(error)}") from error
        self._inputs[k] = tensor

    set_tensor = set_input_tensor

    @property
    def latency(self) -> float:
        """Milliseconds of the last inference."""
        return 1e3 * self._ended().makespan_s

    @property
    def times(self) -> tuple[FloatArray, FloatArray]:
        """[S] when each part of the last inference started and ended, seconds from its start."""
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
        with self._submitting:
            pass
        if self._callback is not None and run.error is None:
            self._callback(self.userdata)

    def _set(self, key: Any, value: Any) -> None:
        if isinstance(value, ov.Tensor):
            self.set_input_tensor(key, value)
            return
        index = port_index(self._input_ports, key, "input")
        own, array, port = self._own[index], np.asarray(value), self._input_ports[index]
        if not _takes(port, array.shape):
            raise OptionError(f"input {key!r} takes an array of shape {_sizes(port)}, not {list(array.shape)}")
        if array.shape != tuple(own.shape):
            own = self._own[index] = ov.Tensor(own.element_type, list(array.shape))
        if own.element_type == ov.Type.string:
            if array.dtype.kind not in "US":
                raise OptionError(f"input {key!r} takes strings and cannot hold {array.dtype}")
            own.str_data = array
        else:
            if not np.can_cast(array.dtype, own.data.dtype, "same_kind"):
                raise OptionError(f"input {key!r} takes {own.data.dtype} and cannot hold {array.dtype}")
            np.copyto(own.data, array, casting="same_kind")
        if self._inputs[index] is not self._own[index]:  # a tensor that the caller gave before stays as it is
            self.set_input_tensor(index, self._own[index])

    def _check_state(self) -> None:
        """Raise ExecutionError where the last inference failed half-way and some of its parts keep state."""
        if self._run is not None and self._run.error is not None and self._has_state:
            raise ExecutionError(
                "the last inference failed, so the variables of its parts no longer belong together: call reset_state()"
            )

    def _check_idle(self) -> None:
        if self._run is not None and not self._run.is_over:
            raise ExecutionError("the request is already running; wait for it, or create another one")


def _takes(port: Any, shape: Any) -> bool:
    """Whether an input takes a tensor of this shape."""
    return bool(port.get_partial_shape().compatible(ov.PartialShape(list(shape))))


def _sizes(port: Any) -> list[int | str]:
    """The shape that an input takes, "?" for sizes that may differ."""
    return [str(d) if d.is_dynamic else d.get_length() for d in port.get_partial_shape()]


class Outputs(dict[Any, NDArray[Any]]):
    """What an inference gave, by output port, index, or name, in the manner of OpenVINO's own results."""

    def __missing__(self, key: Any) -> NDArray[Any]:
        return self.to_tuple()[port_index(list(self), key, "output")]

    def __contains__(self, key: object) -> bool:
        return find_port(list(self), key) is not None

    def get(self, key: Any, default: Any = None) -> Any:
        """The array of an output, ``default`` where there is no such output."""
        found = find_port(list(self), key)
        return default if found is None else self.to_tuple()[found]

    def to_tuple(self) -> tuple[NDArray[Any], ...]:
        """The arrays in the order of the outputs."""
        return tuple(self.values())


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
