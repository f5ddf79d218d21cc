"""Inferences: what state timed ones find, what their inputs are, how scenarios are weighed, and pipelines."""

from __future__ import annotations

import time
import zipfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.base.errors import ExecutionError, HsdagError
from hsdag.ir.device import DeviceSpec, parse_devices
from hsdag.ir.elements import array_of
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.scenario import parse_scenarios
from hsdag.ir.placement.placement import ExecutorName
from hsdag.runtime.machine.devices import device_calls
from hsdag.runtime.measuring import inferences
from hsdag.runtime.measuring.differences import op_by_op
from hsdag.runtime.measuring.inferences import (
    CourseRunner,
    InferenceSequence,
    InputArrays,
    make_courses,
    make_inputs,
    steady_period_s,
)
from hsdag.runtime.measuring.messages import Candidate, WorkerSetup
from hsdag.runtime.measuring.probes import LEAST_STRETCH_S, stretch
from hsdag.runtime.measuring.worker import Worker, op_times
from tests.elements import HELD, ON_CPU, held, through
from tests.hsdag.ir.growing import growing_model, saved

TENSORS = tuple((ov.Tensor(np.full(1, k)),) for k in range(4))


class Recorder:
    """A request that notes what is done with it; inference of tensor k takes k seconds on its own clock."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def set_input_tensor(self, port: int, tensor: ov.Tensor) -> None:
        assert port == 0
        self.bound = int(tensor.data[0])

    def reset_state(self) -> None:
        self.done.append("reset")

    def infer(self) -> None:
        self.done.append(self.bound)
        self.now_s += self.bound


def course_runner(*courses: InferenceSequence, stateful: bool = True) -> tuple[CourseRunner, Recorder]:
    request = Recorder()
    return CourseRunner(request, courses, stateful=stateful), request


def test_what_runs_before_runs_from_a_fresh_state_and_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    course = InferenceSequence((TENSORS[3], TENSORS[3], TENSORS[1]))
    runner, request = course_runner(course)
    monkeypatch.setattr("hsdag.runtime.measuring.inferences.time", request)
    assert runner.seconds(course) == 1.0
    assert request.done == ["reset", 3, 3, 1]


def test_seconds_are_means_by_the_weights_of_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, request = course_runner(
        InferenceSequence((TENSORS[2],), 0.75), InferenceSequence((TENSORS[1],), 0.25), stateful=False
    )
    monkeypatch.setattr("hsdag.runtime.measuring.inferences.time", request)
    assert runner.weighted_s() == 0.75 * 2 + 0.25 * 1
    assert request.done == [2, 1]


class Counting(Recorder):
    """A request whose primitive "a" takes as long as the inference, and "b" nothing."""

    @property
    def profiling_info(self) -> list[Any]:
        real_time = SimpleNamespace(total_seconds=lambda: float(self.bound))
        nothing = SimpleNamespace(total_seconds=lambda: 0.0)
        return [
            SimpleNamespace(node_name=n, node_type="MatMul", real_time=t)
            for n, t in zip("ab", (real_time, nothing), strict=True)
        ]

    def get_runtime_model(self) -> None:
        raise RuntimeError


def test_times_of_ops_are_means_by_the_weights_of_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    courses = [InferenceSequence((TENSORS[2],), 0.75), InferenceSequence((TENSORS[3], TENSORS[1]), 0.25)]
    request = Counting()
    runner = CourseRunner(request, courses, stateful=False)
    monkeypatch.setattr("hsdag.runtime.measuring.inferences.time", request)
    answer = op_times(runner, runner, request, ["a", "b"], 3, 60.0)
    assert answer["primitives"] == [([0], 0.75 * 2 + 0.25 * 1, 0, "MatMul")]
    assert answer["latency_s"] == 0.75 * 2 + 0.25 * 1


def test_streams_run_whole_scenarios_side_by_side() -> None:
    course = InferenceSequence((TENSORS[1], TENSORS[0]))
    pairs = [course_runner(course) for _ in range(2)]
    streams = [runner.stream(course) for runner, _ in pairs]
    steady_period_s(streams, 4)
    for stream, (_, request) in zip(streams, pairs, strict=True):
        stream.infer(share_outputs=True)
        assert request.done == ["reset", 1, 0] * 5
    for tensors, is_plain in (((TENSORS[1],), True), ((TENSORS[1], TENSORS[0]), False)):
        runner, request = course_runner(InferenceSequence(tensors), stateful=False)
        assert (runner.stream(InferenceSequence(tensors)) is request) is is_plain


@pytest.mark.parametrize("fails", [False, True])
def test_devices_side_by_side_go_on_until_each_has_run_for_a_while_or_one_has_failed(fails: bool) -> None:
    def lose(**_: object) -> None:
        raise RuntimeError("lost")

    slow, fast = (SimpleNamespace(infer=lambda s=s, **_: time.sleep(s)) for s in (LEAST_STRETCH_S, 0.001))
    if fails:
        with pytest.raises(RuntimeError, match="lost"):
            stretch([fast, SimpleNamespace(infer=lose)])
    else:
        each_s = stretch([slow, fast])
        assert (each_s[0] >= LEAST_STRETCH_S, each_s[1] > 0.0) == (True, True)


def test_only_errors_of_openvino_are_failures_of_a_device() -> None:
    with pytest.raises(ExecutionError, match="no such device"), device_calls():
        raise RuntimeError("no such device")
    x = opset13.parameter([2], np.float32)
    request = ov.Core().compile_model(ov.Model([opset13.relu(x)], [x], "m"), "CPU").create_infer_request()
    for given in (np.zeros((2, 2), np.float32), {5: np.zeros(2, np.float32)}):  # out of range in C++
        with pytest.raises(ExecutionError), device_calls():
            request.infer(given)
    for defect in (AttributeError, TypeError, KeyError, IndexError, ValueError):
        with pytest.raises(defect), device_calls():
            raise defect


def test_inputs_of_language_models_are_valid_at_every_step() -> None:
    (scenario,) = parse_scenarios((), "2+5")
    inputs = [opset13.parameter([-1, -1], np.int64, name=n) for n in ("input_ids", "attention_mask", "position_ids")]
    inputs.append(opset13.parameter([-1], np.int32, name="beam_idx"))
    model = ov.Model([opset13.result(p) for p in inputs], inputs, "inputs")
    (course,) = make_courses(model, [scenario.of(model)], 0, None)
    tokens, mask, positions, beams = zip(*([t.data.tolist() for t in each] for each in course.inferences), strict=True)
    assert {token for each in tokens for token in each[0]} <= {0, 1}
    assert mask == ([[1] * 3], [[1] * 5], [[1] * 7])
    assert positions == ([[0, 1, 2]], [[3, 4]], [[5, 6]])
    assert beams == ([0],) * 3


def test_arrays_of_a_file_are_the_inputs_of_a_scenario_and_others_depend_on_the_seed_alone(tmp_path: Path) -> None:
    model, given = growing_model(), {"input_ids": (1, 9)}
    np.savez(tmp_path / "in.npz", input_ids=np.arange(9)[None])
    assert make_inputs(model, 0, tmp_path / "in.npz", given)[0].data.tolist() == [list(range(9))]
    first, again, other = (make_inputs(model, seed, None, given)[0].data.tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_strings_come_from_a_file_and_numbers_do_not_pass_for_them(tmp_path: Path) -> None:
    text, x = opset13.parameter([2], ov.Type.string, name="text"), opset13.parameter([1, 8], ov.Type.i4, name="x")
    model = ov.Model([opset13.result(text), opset13.result(opset13.convert(x, "f32"))], [text, x], "texts")
    assert make_inputs(model, 0, None)[1].get_byte_size() == 4  # packed integers
    np.savez(tmp_path / "in.npz", text=np.zeros(2), x=np.zeros((1, 8)))
    with pytest.raises(HsdagError, match="input 'text' takes strings and cannot hold float64"):
        make_inputs(model, 0, tmp_path / "in.npz")
    model = ov.Model([opset13.result(text)], [text], "text")
    np.savez(tmp_path / "in.npz", text=np.array(["ab", "c"]))
    assert make_inputs(model, 0, tmp_path / "in.npz")[0].str_data.tolist() == ["ab", "c"]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> WorkerSetup:
    model = growing_model()
    scenarios = tuple(each.of(model) for each in parse_scenarios(["1,6", "1,5>1,1@3"], None))
    path = saved(model, tmp_path_factory.mktemp("growing"))
    return WorkerSetup(path, (DeviceSpec("CPU", "CPU"),), scenarios=scenarios)


def test_a_step_finds_the_state_that_those_before_it_left_compiled_and_op_by_op(setup: WorkerSetup) -> None:
    model = growing_model()
    steps = [[ov.Tensor(np.array([part]))] for part in ([3, 1, 4, 1, 5], [9])]
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    runner = CourseRunner(compiled.create_infer_request(), [InferenceSequence(tuple(map(tuple, steps)))], stateful=True)
    first, last = runner.outputs(1)
    again = runner.outputs(1)
    np.testing.assert_array_equal(again[1], last)
    by_op = op_by_op(ov.Core(), model, steps, 60.0)
    np.testing.assert_allclose(by_op[0], first, rtol=1e-4)
    np.testing.assert_allclose(by_op[1], last, rtol=1e-4)
    assert not np.allclose(op_by_op(ov.Core(), model, steps[1:], 60.0)[0], last)


def test_a_model_with_state_and_dynamic_shapes_is_profiled_compared_and_timed_by_scenario(setup: WorkerSetup) -> None:
    worker = Worker(setup)
    answer = worker.op_times(Candidate("CPU"), "CPU", 3, 0.2)
    names = [worker.measured.graph.op_types[v] for ops, *_ in answer["primitives"] for v in ops]
    assert {"MatMul", "Softmax"} <= set(names)
    assert (answer["latency_s"] > 0, answer["runs"]) == (True, 3)
    worker.open("a", Candidate("CPU"))
    worker.open("op by op", Candidate("op-by-op"))
    assert worker.difference("a", "op by op")["max_relative"] < 1e-2  # type: ignore[operator]
    assert [len(worker.run("a", 3, 60.0, scenario)) for scenario in (None, 1)] == [3, 3]


class Machine:
    """Requests in virtual time, on a device that runs them in turn; each takes what ``left_s`` says next."""

    def __init__(self, left_s: list[float]) -> None:
        self.left_s, self.now_s, self.free_s = left_s, 0.0, 0.0
        self.running = dict[int, float]()  # by request, its end
        self.in_flight = list[int]()  # whenever one is waited for

    def perf_counter(self) -> float:
        return self.now_s

    def start(self, number: int) -> None:
        assert number not in self.running
        self.free_s = self.running[number] = max(self.free_s, self.now_s) + self.left_s.pop(0)

    def wait(self, number: int) -> None:
        self.in_flight.append(len(self.running))
        self.now_s = max(self.now_s, self.running.pop(number))


@pytest.mark.parametrize(("least", "most_s"), [(5, 99.0), (6, 99.0), (99, 6.1), (99, 12.0)])
def test_all_requests_are_in_flight_and_those_that_fill_and_empty_the_pipeline_do_not_count(
    monkeypatch: pytest.MonkeyPatch, least: int, most_s: float
) -> None:
    machine = Machine([9.0] * 3 + [2.0] * 6 + [7.0] * 3)
    monkeypatch.setattr(inferences, "time", machine)
    requests = [SimpleNamespace(start_async=partial(machine.start, k), wait=partial(machine.wait, k)) for k in range(3)]
    assert steady_period_s(requests, least, most_s) == 2.0
    assert (machine.left_s, machine.in_flight) == ([], [3] * 9 + [3, 2, 1])


class Harm:
    """What runs a program where it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return exec, ("raise AssertionError('code of the file ran')",)


def test_arrays_come_back_as_they_were_written_and_others_are_refused(tmp_path: Path) -> None:
    given: dict[str, Any] = {"x": np.arange(6.0).reshape(2, 3), "s": np.array(["ab", "c"])}
    np.savez(tmp_path / "in.npz", **given, d=np.zeros(1, "<M8[s]"), o=np.array([Harm()], dtype=object))
    with zipfile.ZipFile(tmp_path / "in.npz", "a") as archive:
        archive.writestr("damaged.npy", b"\x93NUMPY\x09\x00")
    arrays = InputArrays(tmp_path / "in.npz")
    for name, array in given.items():
        assert np.array_equal(arrays.read(name, array.shape), array)
    for name, shape, reason in (
        ("x", (6,), r"needs an array 'x' of shape \[6\]"),
        ("y", (2,), "needs an array 'y' of shape"),
        ("d", (1,), r"has an array 'd' of datetime64.*, not of numbers or strings"),
        ("o", (1,), r"the array 'o' of .* cannot be read: Object arrays"),
        ("damaged", (4,), r"the array 'damaged' of .* cannot be read"),
    ):
        with pytest.raises(HsdagError, match=reason):
            arrays.read(name, shape)
    for content in (b"x", b""):
        (tmp_path / "in.npz").write_bytes(content)
        with pytest.raises(HsdagError, match=r"is not an \.npz file"):
            InputArrays(tmp_path / "in.npz")


@pytest.mark.parametrize("executor", ["hetero", "work-conserving"])
def test_elements_of_every_type_are_read_from_a_file_and_come_out_of_every_output(
    tmp_path: Path, executor: ExecutorName
) -> None:
    model = through(*ON_CPU)
    np.savez(tmp_path / "x.npz", **{name: held(name) for name in ON_CPU})  # type: ignore[arg-type]
    devices = parse_devices("A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1]")
    worker = Worker(WorkerSetup(saved(model, tmp_path), devices, inputs=tmp_path / "x.npz"))
    sets = colocate(worker.measured.graph).sets.labels.tolist()
    target = "HETERO:CPU_A,CPU_B" if executor == "hetero" else "CPU_A,CPU_B"
    worker.open("a", Candidate(target, tuple(("CPU_A", "CPU_B")[s % 2] for s in sets), executor=executor))
    for array, name in zip(worker.candidates.outputs("a"), ON_CPU * 3, strict=True):
        assert (array.dtype.kind, array.ravel().tolist()) == (held(name).dtype.kind, held(name).tolist())


def test_random_inputs_are_numbers_of_every_type_and_not_all_alike() -> None:
    model = ov.Model([], [opset13.parameter([99], getattr(ov.Type, name), name=name) for name in HELD], "many")
    for name, tensor in zip(HELD, make_inputs(model, 0, None), strict=True):
        values = array_of(tensor)
        if values.dtype.kind == "f" and name != "f8e8m0":
            assert 0.5 < values.astype(np.float64).std() < 1.2
            assert abs(values.astype(np.float64).mean()) < 0.5
        elif name != "f8e8m0":
            assert {*values.tolist()} == {values.dtype.type(0), values.dtype.type(1)}
        assert len({*values.tolist()}) > 1
