"""A cut model and its requests, used like an ``ov.CompiledModel`` and its requests."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import openvino as ov

from hsdag.base.errors import ExecutionError
from hsdag.ir.graph.build import ordered_ops
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.ir.graph.state import variable_of
from hsdag.ir.ports import CompiledModel, InferenceRequest, Outputs
from hsdag.runtime.executor.cut import Cut
from hsdag.runtime.executor.engine import Engine
from hsdag.runtime.executor.openvino_backend import OpenVinoBackend
from hsdag.runtime.executor.tasks import Run
from hsdag.runtime.timeline import Timeline


class WorkConservingModel(CompiledModel):
    """A placed model that runs its parts side by side; made by ``compile_work_conserving``.

    Call it with inputs, or make requests to have several inferences in flight. Close it, or use it as a context
    manager, to end its thread at once; otherwise that happens when it is no longer used.
    """

    def __init__(
        self, model: ov.Model, cut: Cut, backend: OpenVinoBackend, engine: Engine, limit_s: float | None
    ) -> None:
        self.inputs, self.outputs = list(model.inputs), list(model.outputs)
        self.cut = cut
        op = {node.get_name(): v for v, (_, node) in enumerate(ordered_ops(model))}
        tensor_of = dict(cut.results)
        self.input_ops = [op[port.get_node().get_name()] for port in model.inputs]
        self.result_tensors = [tensor_of[op[port.get_node().get_name()]] for port in model.outputs]
        self.limit_s = limit_s
        self._backend = backend
        self._engine = engine
        self._own: WorkConservingRequest | None = None
        self._lock = threading.Lock()

    def __call__(self, inputs: Any = None) -> Outputs:
        """Infer, one call at a time. Raises ExecutionError when it fails, OptionError for inputs that do not fit."""
        with self._lock:
            return self._called().infer(inputs)

    def create_infer_request(self) -> WorkConservingRequest:
        """Return a request with tensors of its own."""
        return WorkConservingRequest(self, self._backend, self._engine)

    def query_state(self) -> list[Any]:
        """Return the variables of the request that calls use, as ``ov.VariableState``."""
        with self._lock:
            return self._called().query_state()

    def reset_state(self) -> None:
        """Reset the variables of the request that calls use."""
        with self._lock:
            self._called().reset_state()

    def _called(self) -> WorkConservingRequest:
        self._own = self._own or self.create_infer_request()
        return self._own

    def close(self) -> None:
        """Cancel inferences in flight and end the thread; idempotent."""
        self._engine.close()


class WorkConservingRequest(InferenceRequest):
    """A request for one inference at a time, like ``ov.InferRequest``."""

    def __init__(self, model: WorkConservingModel, backend: OpenVinoBackend, engine: Engine) -> None:
        self._backend = backend
        self._engine = engine  # not the model: it may hold a request of its own
        self._limit_s = model.limit_s
        self._has_state = variable_of(model.cut.graph) is not None
        self._input_ops, self._result_tensors = model.input_ops, model.result_tensors
        self._slot = backend.add_slot()
        self._drop = weakref.finalize(self, backend.slots.pop, self._slot, None)
        self._drop.atexit = False
        self._run: Run | None = None
        self._submitting = threading.Lock()  # until the new run is known here, its end is not reported
        super().__init__(model.inputs, model.outputs)

    def start(self) -> None:
        """Start an inference."""
        if self._run is not None and self._run.error is not None and self._has_state:
            raise ExecutionError(
                "the last inference failed, so the variables of its parts no longer belong together: call reset_state()"
            )
        with self._submitting:
            self._run = self._engine.submit(self._slot, limit_s=self._limit_s, on_end=self._told)

    def wait(self) -> None:
        """Wait for the end. Raises ExecutionError when it failed."""
        if self._run is not None:
            self._run.wait()

    def wait_for(self, timeout_ms: int) -> bool:
        """Wait up to ``timeout_ms``, and return whether it has ended. Raises ExecutionError when it failed."""
        return self._run is None or self._run.wait(timeout_ms / 1e3)

    def cancel(self) -> None:
        """End the inference early; ``wait`` then raises ExecutionError."""
        if self._run is not None:
            self._engine.cancel(self._run)

    def query_state(self) -> list[Any]:
        """Return the variables that this request keeps between inferences, as ``ov.VariableState``, of all parts."""
        self.check_idle()
        return self._backend.slots[self._slot].states()

    def reset_state(self) -> None:
        """Reset the variables that earlier inferences have set."""
        for state in self.query_state():
            state.reset()
        self._run = None

    @property
    def latency(self) -> float:
        """Return the milliseconds of the last inference."""
        return 1e3 * self._ended().makespan_s

    @property
    def times(self) -> tuple[FloatArray, FloatArray]:
        """Return [S] when each part of the last inference started and ended, in seconds from its start."""
        return self._ended().times

    @property
    def timeline(self) -> Timeline:
        """Return what ran where and when in the last inference."""
        return self._ended().timeline

    @property
    def is_running(self) -> bool:
        """Return whether an inference has not ended yet."""
        return self._run is not None and not self._run.is_over

    def give(self, index: int, tensor: Any) -> None:
        """Make an input read from a tensor."""
        self._backend.slots[self._slot].give(self._input_ops[index], tensor)

    def output_tensor(self, index: int) -> Any:
        """Return the tensor of an output."""
        return self._backend.slots[self._slot].tensor(self._result_tensors[index])

    def _ended(self) -> Run:
        if self._run is None or not self._run.is_over:
            raise ExecutionError("no inference has ended on this request yet")
        return self._run

    def _told(self, run: Run) -> None:
        with self._submitting:
            pass
        if run.error is None:
            self.call_back()
