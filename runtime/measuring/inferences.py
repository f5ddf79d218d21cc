"""Requests with the inferences that they run, and inputs for these: of scenarios, or of the model's fixed shapes.

Legend: I inputs of the model, S scenarios.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from hsdag.base.errors import HsdagError, last_line
from hsdag.ir.elements import array_of, numpy_type, tensor_of
from hsdag.ir.graph.reader import Shapes, input_name
from hsdag.ir.graph.scenario import Scenario, shares
from hsdag.runtime.machine.devices import infer_checked

Tensors = tuple[ov.Tensor, ...]


@dataclass(frozen=True, eq=False)
class InferenceSequence:
    """A course: a sequence of inferences from an empty state, each as tensors [I]; the last one is timed.

    ``share`` is the weight of its time; those of all courses add up to 1.
    """

    inferences: tuple[Tensors, ...]
    share: float = 1.0


class CourseRunner:
    """A request of a compiled model together with the courses that it runs."""

    def __init__(self, request: Any, courses: Sequence[InferenceSequence], *, stateful: bool) -> None:
        self.request = request
        self.courses = tuple(courses)
        self._stateful = stateful
        self._bound: Tensors = ()
        self.first_s = 0.0  # seconds of the first inference, 0 before it
        self._bind(courses[0].inferences[0])

    def seconds(self, course: InferenceSequence) -> float:
        """Run a course; return the seconds of its last inference."""
        self._reset()
        for tensors in course.inferences[:-1]:
            self._bind(tensors)
            self.request.infer()
        self._bind(course.inferences[-1])
        begin = time.perf_counter()
        self.request.infer()
        return time.perf_counter() - begin

    def weighted_s(self) -> float:
        """Run every course; return the weighted mean of their seconds."""
        return sum(course.share * self.seconds(course) for course in self.courses)

    def outputs(self, num: int) -> list[np.ndarray[Any, Any]]:
        """Run every course; return the ``num`` outputs of all its inferences. Raises RuntimeError where one fails."""
        arrays: list[np.ndarray[Any, Any]] = []
        for course in self.courses:
            self._reset()
            for tensors in course.inferences:
                self._bind(tensors)
                begin = time.perf_counter()
                infer_checked(self.request)
                self.first_s = self.first_s or time.perf_counter() - begin
                arrays.extend(array_of(self.request.get_output_tensor(k)) for k in range(num))
        return arrays

    def stream(self, course: InferenceSequence) -> Any:
        """Return an object that runs a course again and again, started and waited for like a request."""
        if len(course.inferences) == 1 and not self._stateful:
            self._bind(course.inferences[0])
            return self.request
        return _Stream(self, course)

    def _reset(self) -> None:
        if self._stateful:
            self.request.reset_state()

    def _bind(self, tensors: Tensors) -> None:
        if tensors is not self._bound:
            for k, tensor in enumerate(tensors):  # by number: names may be missing or ambiguous
                self.request.set_input_tensor(k, tensor)
            self._bound = tensors


class _Stream:
    """A course that runs in a thread of its own, with the methods of a request."""

    def __init__(self, runner: CourseRunner, course: InferenceSequence) -> None:
        self._runner = runner
        self._course = course
        self._thread = ThreadPoolExecutor(1)
        self._running: Future[float] | None = None

    def start_async(self) -> None:
        """Begin the course."""
        self._running = self._thread.submit(self._runner.seconds, self._course)

    def infer(self, **_: object) -> None:
        """Run the course in the calling thread, ignoring options of ``ov.InferRequest.infer``."""
        self._runner.seconds(self._course)

    def wait(self) -> None:
        """Wait for the end. Raises what the inferences raised."""
        if self._running is not None:
            self._running.result()


def repeats(most: int, for_s: float, least: int = 1) -> Iterator[int]:
    """Yield 0, 1 and so on for at most ``most`` turns, and after ``for_s`` seconds for no more than ``least``."""
    end_s = time.perf_counter() + for_s
    for number in range(most):
        if number >= least and time.perf_counter() >= end_s:
            return
        yield number


def make_courses(
    model: ov.Model, scenarios: Sequence[Scenario], seed: int, source: Path | None
) -> tuple[InferenceSequence, ...]:
    """Return courses for scenarios, which have all inputs of the model; without scenarios, one with its fixed shapes.

    Raises HsdagError as ``make_inputs`` does.
    """
    if not scenarios:
        return (InferenceSequence((tuple(make_inputs(model, seed, source)),)),)
    courses = []
    for scenario, share in zip(scenarios, shares(scenarios).tolist(), strict=True):
        before: Counter[str] = Counter()
        inferences = []
        for number, shapes in enumerate(scenario.inferences):
            inferences.append(tuple(make_inputs(model, seed + number, source, shapes, before)))
            before.update({name: shape[-1] for name, shape in shapes.items() if shape})
        courses.append(InferenceSequence(tuple(inferences), share))
    return tuple(courses)


def make_inputs(
    model: ov.Model,
    seed: int,
    source: Path | None,
    shapes: Shapes | None = None,
    before: Mapping[str, int] | None = None,
) -> list[ov.Tensor]:
    """Return one tensor per model input, in order.

    Values come from the arrays of an .npz file, named like the inputs, or are random: floats are standard normal;
    integers, booleans and strings are 0 or 1, which every embedding table admits. For language models
    ``attention_mask`` is 1, and ``position_ids`` and ``beam_idx`` count up from ``before`` (positions so far, by input)
    and from 0. ``shapes`` are those of inputs of dynamic shapes. Raises HsdagError when the file does not fit.
    """
    rng = np.random.default_rng(seed)
    arrays = InputArrays(source) if source else None
    tensors = []
    for port in model.inputs:
        name, kind = input_name(port), port.get_element_type()
        shape = tuple(port.get_shape()) if shapes is None else shapes[name]
        if arrays is not None:
            name = next((n for n in sorted(port.get_names()) if n in arrays.names), name)
            values = arrays.read(name, shape)
        else:
            values = _random(rng, name, kind, shape, (before or {}).get(name, 0))
        try:
            tensors.append(tensor_of(kind, values))
        except ValueError as error:
            raise HsdagError(f"{source or 'the model'}: input {name!r} {error}") from error
    return tensors


def _random(rng: np.random.Generator, name: str, kind: ov.Type, shape: tuple[int, ...], before: int) -> NDArray[Any]:
    """Return random values of an input, as ``make_inputs`` describes."""
    if kind == ov.Type.string:
        return rng.integers(0, 2, shape).astype(str)
    if not kind.is_dynamic() and numpy_type(kind).kind == "f":
        values = rng.standard_normal(shape).astype(np.float32)
        return np.abs(values) if kind == ov.Type.f8e8m0 else values  # this type has no sign
    if name.endswith("attention_mask"):
        return np.ones(shape, np.int64)
    if name.endswith(("position_ids", "beam_idx")) and shape:
        begin = before if name.endswith("position_ids") else 0
        return np.broadcast_to(begin + np.arange(shape[-1]), shape)
    return rng.integers(0, 2, shape)


REQUESTS_IN_FLIGHT = 4
"""Least number of requests in flight by default."""


def requests_in_flight(asked_for: int, num_devices: int = 1) -> int:
    """Return how many requests to keep in flight for a model that asks for some; a device of one stream needs two."""
    return 2 if asked_for == num_devices == 1 else max(REQUESTS_IN_FLIGHT, asked_for)


def steady_period_s(requests: Sequence[Any], inferences: int, most_s: float = math.inf) -> float:
    """Return seconds per inference with all requests in flight, over ``inferences``, or fewer after ``most_s`` seconds.

    Each request is started again as soon as its turn comes. The first inference of each, which finds devices idle,
    does not count, nor do those in flight at the end. All requests count equally often, at least once.
    """

    def next_turn_s() -> float:
        for request in requests:
            request.wait()
            request.start_async()
        return time.perf_counter()

    for request in requests:
        request.start_async()
    begin_s, end_s = next_turn_s(), next_turn_s()
    num = len(requests)
    while num < inferences and end_s - begin_s < most_s:
        end_s = next_turn_s()
        num += len(requests)
    for request in requests:
        request.wait()
    return (end_s - begin_s) / num


KINDS = "biufcSU"
"""NumPy's letters of readable element types: numbers and strings. Objects would be pickled, and are never read."""


class InputArrays:
    """The arrays of an .npz file by name. Raises HsdagError where it is missing or another kind of file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file, np.load(file) as archive:  # NumPy leaves files open that it cannot read
                self.names = frozenset(archive.files)
        except FileNotFoundError as error:
            raise HsdagError(f"no such file: {path}; give arrays named like the inputs as an .npz file") from error
        except Exception as error:  # whatever NumPy raises for other files
            raise HsdagError(f"{path} is not an .npz file; numpy.savez writes one") from error

    def read(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Read an array of a shape. Raises HsdagError if there is none, or its elements are no numbers or strings."""
        array = None
        if name in self.names:
            try:
                with np.load(self.path) as archive:
                    file = f"{name}.npy"  # NumPy would look for this second if another array is called "NAME.npy"
                    array = archive[file if file in archive.zip.namelist() else name]
            except Exception as error:  # as above
                raise HsdagError(f"the array {name!r} of {self.path} cannot be read: {last_line(error)}") from error
        if array is None or array.shape != shape:
            raise HsdagError(f"{self.path} needs an array {name!r} of shape {list(shape)} for the model's input")
        if array.dtype.kind not in KINDS:
            raise HsdagError(f"{self.path} has an array {name!r} of {array.dtype}, not of numbers or strings")
        return np.asarray(array)
