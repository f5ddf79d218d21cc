"""Copies of a whole model on several devices; each inference runs on the copy that is expected to end it first."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import openvino as ov

from hsdag.base.errors import DeviceError, ExecutionError, last_line
from hsdag.ir.device import DeviceSpec
from hsdag.ir.placement.batches import Batches, is_by_rows
from hsdag.ir.ports import CompiledModel, InferenceRequest, Outputs

LATEST_SHARE = 0.2
"""Weight of the latest inference in the moving average of a copy's time per inference."""


def compile_copies(
    core: Any,
    model: ov.Model,
    copies: Sequence[tuple[DeviceSpec | Any, int | None]],
    properties: Mapping[str, Any] | None = None,
) -> CopiedModel:
    """Compile a model whole for each device.

    Each copy is a device and its number of requests, None for one more than the device works on at a time. In place of
    a device there may be a pipeline over several, which is compiled already; it is closed with the returned model.
    Raises DeviceError when a device is absent or does not compile the model.
    """
    compiled = list[Any]()
    with_hint = {"PERFORMANCE_HINT": "THROUGHPUT", **(properties or {})}
    for spec, _ in copies:
        if not isinstance(spec, DeviceSpec):
            compiled.append(spec)
            continue
        spec.register(core)
        try:
            compiled.append(core.compile_model(model, spec.openvino_name, with_hint))
        except RuntimeError as error:
            raise DeviceError(f"{spec.name} cannot compile the model: {last_line(error)}") from error
    return CopiedModel(compiled, [requests for _, requests in copies], is_by_rows=is_by_rows(model))


class Copy:
    """A compiled copy of the model, its free requests, and its time per inference."""

    def __init__(self, compiled: Any, requests: int | None) -> None:
        self.compiled = compiled
        self.num_requests = requests or int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")) + 1
        self.idle = [compiled.create_infer_request() for _ in range(self.num_requests)]
        self.threads = ThreadPoolExecutor(self.num_requests, thread_name_prefix="copy")
        self.period_s = 0.0  # seconds per inference; 0 until one has ended
        self.num_owned = 0  # requests that callers hold

    @property
    def num_busy(self) -> int:
        """Return the number of inferences that it works on."""
        return self.num_requests - len(self.idle)

    @property
    def next_end_s(self) -> float:
        """Return the seconds after which it would end an inference that starts now."""
        return (self.num_busy + 1) * self.period_s

    def num_ended_before(self, seconds: float) -> float:
        """Return the number of further inferences that it would end within ``seconds``."""
        if self.period_s == 0.0:
            return 0.0
        return max(math.ceil(seconds / self.period_s) - 1 - self.num_busy, 0)

    def learn(self, seconds: float, num_busy: int) -> None:
        """Update the period with an inference that took ``seconds`` while ``num_busy`` ran, itself among them."""
        latest_s = seconds / num_busy
        self.period_s += (LATEST_SHARE if self.period_s else 1.0) * (latest_s - self.period_s)


class CopiedModel(CompiledModel):
    """Copies of a model that are used like one ``ov.CompiledModel``, from any number of threads.

    An inference starts on the copy that is expected to end it first, in the order of the calls; it waits
    if a busy copy would end it sooner than a free one. If the model keeps state, a request stays on its copy.
    Close it, or use it as a context manager, to end its threads.
    """

    def __init__(self, compiled: Sequence[Any], requests: Sequence[int | None], *, is_by_rows: bool) -> None:
        self.copies = [Copy(model, count) for model, count in zip(compiled, requests, strict=True)]
        self.inputs, self.outputs = list(compiled[0].inputs), list(compiled[0].outputs)
        self.has_state = bool(self.copies[0].idle[0].query_state())
        self._waiting: deque[tuple[Callable[[Any], object], Future[None]]] = deque()
        self._lock = threading.Lock()
        self._is_closed = False
        self._of_thread = threading.local()
        self._callback: Callable[[Any, Any], None] | None = None
        self._error: Exception | None = None  # the first that the callback raised
        self._started: dict[int, deque[tuple[Future[Outputs], Any]]] = defaultdict(deque)  # by caller's thread
        self._told = threading.Condition()
        self.batches = None if self.has_state else Batches(self, len(self.copies), is_by_rows=is_by_rows)

    def __call__(self, inputs: Any = None) -> Outputs:
        """Infer on the calling thread's own request. Raises ExecutionError, OptionError as a request does.

        More rows than the model has become several inferences, each on a copy. If the number of rows is open and no
        copy is busy, copies share the rows if that was measured to be faster. Outputs are joined.
        """
        if not hasattr(self._of_thread, "request"):
            self._of_thread.request = self.create_infer_request()
        request, is_busy = self._of_thread.request, any(copy.num_busy for copy in self.copies)
        divided = self.batches.infer(inputs, request, is_busy=is_busy) if self.batches else None
        result: Outputs = divided or request.infer(inputs)
        return result

    @property
    def num_in_flight(self) -> int:
        """Return the number of inferences that should be in flight to keep all copies busy."""
        slowest_s = max(copy.period_s for copy in self.copies)
        ratios = (slowest_s / copy.period_s if copy.period_s else 1.0 for copy in self.copies)
        return sum(copy.num_requests for copy in self.copies) + sum(map(math.ceil, ratios))

    def create_infer_request(self) -> Any:
        """Return a request with its own tensors; if the model keeps state, OpenVINO's, on the least used copy."""
        if not self.has_state:
            return CopiesRequest(self)
        with self._lock:
            copy = min(self.copies, key=lambda copy: (copy.num_owned + 1) * (copy.period_s or 1.0))
            copy.num_owned += 1
        return copy.compiled.create_infer_request()

    def set_callback(self, callback: Callable[[Any, Any], None]) -> None:
        """Call ``callback(outputs, userdata)`` after each ``start_async``, for each thread in order of its calls."""
        self._callback = callback

    def start_async(self, inputs: Any = None, userdata: Any = None) -> Future[Outputs]:
        """Start an inference on a request of its own, and return its future outputs, which the callback gets too.

        Raises OptionError for inputs that do not fit, ExecutionError for a model that keeps state.
        """
        if self.has_state:
            raise ExecutionError("the model keeps state between inferences: use create_infer_request()")
        request = CopiesRequest(self)
        outputs = Future[Outputs]()
        caller = threading.get_ident()
        request.start_async(inputs)
        with self._told:
            self._started[caller].append((outputs, userdata))

        def ended(run: Future[None]) -> None:
            error = run.exception()
            if error is None:
                outputs.set_result(request.results)
            else:
                outputs.set_exception(error)
            self._tell(caller)

        request.run.add_done_callback(ended)
        return outputs

    def wait_all(self) -> None:
        """Wait until all inferences of ``start_async`` have ended and been called back. Raises errors of callbacks."""
        with self._told:
            self._told.wait_for(lambda: not any(self._started.values()))
            error, self._error = self._error, None
        if error is not None:
            raise error

    def _tell(self, caller: int) -> None:
        """Call back for the ended inferences of a thread, up to the first that has not ended."""
        with self._told:
            started = self._started[caller]
            while started and started[0][0].done():
                outputs, userdata = started.popleft()
                try:
                    if self._callback is not None and outputs.exception() is None:
                        self._callback(outputs.result(), userdata)
                except Exception as error:  # noqa: BLE001 - wait_all raises it
                    self._error = self._error or error
            self._told.notify_all()

    def submit(self, run: Callable[[Any], object]) -> Future[None]:
        """Call ``run`` with a free request of a copy, soon. Raises ExecutionError once the model is closed."""
        done = Future[None]()
        with self._lock:
            if self._is_closed:
                raise ExecutionError("the model is closed")
            self._waiting.append((run, done))
            self._dispatch()
        return done

    def _dispatch(self) -> None:
        """Start waiting inferences, oldest first, as long as a free copy helps."""
        while self._waiting:
            free = [copy for copy in self.copies if copy.idle and self._helps(copy)]
            if not free:
                return
            copy = min(free, key=lambda copy: copy.next_end_s)
            request = copy.idle.pop()
            copy.threads.submit(self._run, copy, request, copy.num_busy, *self._waiting.popleft())

    def _helps(self, copy: Copy) -> bool:
        """Return whether more inferences wait than the other copies would end before this copy ends one."""
        others = (other for other in self.copies if other is not copy)
        return len(self._waiting) > sum(other.num_ended_before(copy.next_end_s) for other in others)

    def _run(self, copy: Copy, request: Any, num_busy: int, run: Callable[[Any], object], done: Future[None]) -> None:
        begin_s = time.perf_counter()
        error = None
        try:
            run(request)
        except Exception as failure:  # noqa: BLE001 - raised in the thread that waits for it
            error = ExecutionError(last_line(failure))
        with self._lock:
            if error is None:
                copy.learn(time.perf_counter() - begin_s, num_busy)
            copy.idle.append(request)
            self._dispatch()
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def close(self) -> None:
        """End the threads after running inferences, and fail waiting ones; idempotent."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, deque()
        for _, done in waiting:
            done.set_exception(ExecutionError("the model was closed before the inference started"))
        for copy in self.copies:
            copy.threads.shutdown()
            if isinstance(copy.compiled, CompiledModel):  # a pipeline, which has threads of its own
                copy.compiled.close()


class CopiesRequest(InferenceRequest):
    """A request for one inference at a time, each on the copy that is expected to end it first."""

    def __init__(self, model: CopiedModel) -> None:
        self._model = model
        self._tensors = dict[int, Any]()
        self._results: list[Any] = []
        self.run: Future[None] = Future()
        self.run.set_result(None)
        super().__init__(model.inputs, model.outputs)

    def start(self) -> None:
        """Start an inference."""
        self.run = self._model.submit(self._infer)
        self.run.add_done_callback(lambda run: self.call_back() if run.exception() is None else None)

    def wait(self) -> None:
        """Wait for the end. Raises ExecutionError when it failed."""
        self.run.result()

    @property
    def is_running(self) -> bool:
        """Return whether an inference has not ended yet."""
        return not self.run.done()

    def give(self, index: int, tensor: Any) -> None:
        """Make an input read from a tensor."""
        self._tensors[index] = tensor

    def output_tensor(self, index: int) -> Any:
        """Return the tensor of an output. Raises ExecutionError before the first inference."""
        if not self._results:
            raise ExecutionError("no inference has ended on this request yet")
        return self._results[index]

    def _infer(self, request: Any) -> None:
        """Run on a request of a copy, in a thread of the plugin, since only there all failures are raised."""
        for index, tensor in self._tensors.items():
            request.set_input_tensor(index, tensor)
        request.start_async()
        request.wait()
        tensors = [request.get_output_tensor(index) for index in range(len(self.model_outputs))]
        if [tensor.shape for tensor in tensors] != [tensor.shape for tensor in self._results]:
            self._results = [ov.Tensor(tensor.element_type, tensor.shape) for tensor in tensors]
        for tensor, result in zip(tensors, self._results, strict=True):
            if result.size:  # OpenVINO crashes when it copies an empty tensor
                tensor.copy_to(result)  # if an output is an input, the CPU plugin fills no tensors given to it
