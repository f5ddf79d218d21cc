"""Slot: the infer requests of all submodels for one run in flight, each reading what the others write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openvino as ov

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.cutting.cut import MODEL_INPUT, Tensor
from hsdag.runtime.openvino_backend.submodels import Submodel
from hsdag.runtime.platforms.inference import infer_checked, infer_unchecked

LEFT_BEHIND: list[Any] = []
"""Requests that failed in a thread of ours.

The CPU plugin leaves their task in its queue (2026.4.1), and runs it before the next one of that thread, or of one in
its place, whatever has become of the request. So these live on, and once there is one, every inference of the process
runs in a thread of the plugin.
"""


def has_open_sizes(model: Any) -> bool:
    """Whether a model has tensors whose size is known only when they are there."""
    return any(port.get_partial_shape().is_dynamic for op in model.get_ops() for port in op.outputs())


class Wiring:
    """Who reads what among the submodels of a cut: ``reads[s]`` are (input, subgraph, output of that subgraph).

    ``model_inputs[op]`` are (subgraph, input) that read an input of the model; ``is_dynamic[s]`` says of each output
    whether its size is known only when it is there, and ``has_open_sizes[s]`` whether that holds of any tensor within.
    """

    def __init__(self, submodels: Sequence[Submodel], compiled: Sequence[Any]) -> None:
        self.output_of = {t: (s, k) for s, sub in enumerate(submodels) for k, t in enumerate(sub.outputs)}
        self.num_outputs = [len(sub.outputs) for sub in submodels]
        self.has_state = [sub.has_state for sub in submodels]
        self.is_dynamic = [[output.get_partial_shape().is_dynamic for output in each.outputs] for each in compiled]
        self.has_open_sizes = [has_open_sizes(sub.model) for sub in submodels]
        self.reads: list[list[tuple[int, int, int]]] = [[] for _ in submodels]
        self.read_by: list[list[tuple[int, int, int]]] = [[] for _ in submodels]  # reader, its input, own output
        self.model_inputs: dict[int, list[tuple[int, int]]] = {}
        for s, sub in enumerate(submodels):
            for k, tensor in enumerate(sub.inputs):
                if tensor.source == MODEL_INPUT:
                    self.model_inputs.setdefault(tensor.op, []).append((s, k))
                else:
                    source, out = self.output_of[tensor]
                    self.reads[s].append((k, source, out))
                    self.read_by[source].append((s, k, out))


class Slot:
    """Requests and the tensors between them; ``compiled`` [S] are what they are made from.

    Only one run may use it at a time. A request that hangs is put aside, and there is none where ``compiled`` has None;
    another takes its place when it is needed. ``shared_outputs(s)`` are outputs of subgraph s, with their number, that
    are to live in memory other than the request's own.
    """

    def __init__(
        self,
        wiring: Wiring,
        compiled: Sequence[Any],
        shared_outputs: Callable[[int], Sequence[tuple[int, Any]]] = lambda _: (),
    ) -> None:
        self._wiring, self._shared_outputs = wiring, shared_outputs
        self._made_from: list[Any] = list(compiled)
        self._requests: list[Any] = [None if each is None else each.create_infer_request() for each in compiled]
        self._given: dict[int, Any] = {}  # by op: the tensor of an input of the model
        self.lock = threading.Lock()  # for who changes requests, and who gives them up
        self._marks: list[Any] = [np.zeros(1, dtype=np.float32) for _ in compiled]
        self._in_thread = [
            not any(found) and not is_open and not has_state
            for found, is_open, has_state in zip(
                wiring.is_dynamic, wiring.has_open_sizes, wiring.has_state, strict=True
            )
        ]
        made = [s for s, request in enumerate(self._requests) if request is not None]
        for s in made:
            self._prepare(s)
        for s in made:
            self._bind(wiring.reads[s], s)

    def tensor(self, tensor: Tensor) -> Any:
        """The ov.Tensor that holds what a subgraph handed out.

        Raises ExecutionError where its inference hung, and was not run again.
        """
        s, k = self._wiring.output_of[tensor]
        if self._requests[s] is None:
            raise ExecutionError("the inference was abandoned, so there is no result; run it again")
        return self._requests[s].get_output_tensor(k)

    def states(self) -> list[Any]:
        """The variables of all subgraphs. Raises ExecutionError where one hung and was not run again."""
        with_state = [r for r, has_state in zip(self._requests, self._wiring.has_state, strict=True) if has_state]
        if None in with_state:
            raise ExecutionError("a part that keeps state was abandoned; create another request")
        return [state for request in with_state for state in request.query_state()]

    def give(self, op: int, tensor: Any) -> None:
        """Make every reader of an input of the model read an ov.Tensor. Raises RuntimeError for a misfit."""
        readers = [(s, k) for s, k in self._wiring.model_inputs.get(op, ()) if self._requests[s] is not None]
        try:
            for s, k in readers:
                self._requests[s].set_input_tensor(k, tensor)
        except RuntimeError:
            for s, k in readers if op in self._given else ():
                self._requests[s].set_input_tensor(k, self._given[op])
            raise
        self._given[op] = tensor

    def infer(
        self, s: int, compiled: Any, begin: Callable[[], None], is_cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Run subgraph s, as compiled, in the calling thread. Raises what the plugin does.

        ``begin`` is called with the lock when the slot is about to be touched, and raises where it must not be.

        What runs in the calling thread may fail silently, so the constant output shows whether an inference went
        through. One that did not is run again, checked; where that goes well, once more, which takes what failed out of
        the plugin's queue. Outputs of unknown size cannot be touched after a swallowed error, and state must not change
        twice: subgraphs that have either are checked from the start, and not run again. So are those with tensors of
        unknown size within: what the CPU plugin refused for its sizes it takes when it comes again at once (2026.4.1),
        and computes something with the sizes of before.
        """
        is_fit = self._made_from[s] is compiled and self._requests[s] is not None
        fresh = None if is_fit else compiled.create_infer_request()
        with self.lock:
            begin()
            if fresh is not None:
                self._renew(s, compiled, fresh)
            request, mark = self._requests[s], self._marks[s]
        for k, source, out in self._wiring.reads[s]:
            if self._wiring.is_dynamic[source][out]:
                request.set_input_tensor(k, self._requests[source].get_output_tensor(out))
        if not self._in_thread[s]:
            infer_checked(request)
            return
        if LEFT_BEHIND:
            try:
                infer_checked(request)
            except RuntimeError:
                if is_cancelled():
                    raise
                infer_checked(request)
            return
        mark[0] = 0.0
        infer_unchecked(request)
        if not mark[0]:
            self._repeat(s, request, mark)

    def _repeat(self, s: int, request: Any, mark: Any) -> None:
        """Run again what did not go through in the calling thread. Raises what the plugin does."""
        try:
            infer_checked(request)
        except BaseException:
            LEFT_BEHIND.append(request)
            raise
        mark[0] = 0.0
        infer_unchecked(request)
        self._in_thread[s] = bool(mark[0])  # else nothing was wrong: the plugin does not write constants every time

    def cancel(self, s: int) -> None:
        """Ask the plugin to stop subgraph s between two ops. Raises RuntimeError where it cannot.

        What runs in the calling thread goes on to its end: a task that stops there stays in the plugin's queue.
        """
        if self._requests[s] is not None and (LEFT_BEHIND or not self._in_thread[s]):
            self._requests[s].cancel()

    def put_aside(self, s: int) -> None:
        """Leave a request that hangs to the thread it hangs in: touching it may block or raise."""
        self._requests[s] = None

    def _renew(self, s: int, compiled: Any, request: Any) -> None:
        """Take a request of another compilation; nobody who reads it runs now."""
        self._requests[s], self._made_from[s] = request, compiled
        self._prepare(s)
        for op, readers in self._wiring.model_inputs.items():
            for r, k in readers:
                if r == s and op in self._given:
                    request.set_input_tensor(k, self._given[op])
        self._bind(self._wiring.reads[s], s)
        for r, k, out in self._wiring.read_by[s]:
            self._bind([(k, s, out)], r)

    def _prepare(self, s: int) -> None:
        """Give a new request its outputs."""
        for k, tensor in self._shared_outputs(s):
            if isinstance(tensor, ov.RemoteTensor):  # OpenVINO takes it by name alone, and cannot show it after infer()
                self._requests[s].set_tensor(self._made_from[s].outputs[k].get_any_name(), tensor)
                self._in_thread[s] = False
            else:
                self._requests[s].set_output_tensor(k, tensor)
        # the constant output is written where ``infer`` looks for it
        self._marks[s] = np.zeros(1, dtype=np.float32)
        self._requests[s].set_output_tensor(self._wiring.num_outputs[s], ov.Tensor(self._marks[s], shared_memory=True))

    def _bind(self, reads: Sequence[tuple[int, int, int]], s: int) -> None:
        """Make subgraph s read output tensors of others, where their sizes are known beforehand."""
        for k, source, out in reads:
            if None not in (self._requests[s], self._requests[source]) and not self._wiring.is_dynamic[source][out]:
                self._requests[s].set_input_tensor(k, self._requests[source].get_output_tensor(out))
