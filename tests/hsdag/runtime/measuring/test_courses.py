"""Courses: what state timed inferences find, what their inputs are, and how scenarios are weighed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import ExecutionError
from hsdag.ir.graph.scenario import parse_scenarios
from hsdag.runtime.machine.devices import device_calls
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.differences import op_by_op
from hsdag.runtime.measuring.inferences import Course, CourseRunner, make_courses, make_inputs, steady_period_s
from hsdag.runtime.measuring.messages import WorkerSetup, worker_client
from hsdag.runtime.measuring.probes import times_beside
from hsdag.runtime.measuring.runner import CandidateRunner
from hsdag.runtime.measuring.worker import Worker, op_times
from hsdag.runtime.objectives import LATENCY
from tests.hsdag.ir.growing import growing_model, saved

TENSORS = tuple((ov.Tensor(np.full(1, k)),) for k in range(4))


class Recorder:
    """A request that notes what is done with it; inference of tensor k takes k seconds on its own clock."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def set_tensor(self, port: str, tensor: ov.Tensor) -> None:
        assert port == "x"
        self.bound = int(tensor.data[0])

    def reset_state(self) -> None:
        self.done.append("reset")

    def infer(self) -> None:
        self.done.append(self.bound)
        self.now_s += self.bound


def course_runner(*courses: Course, stateful: bool = True) -> tuple[CourseRunner, Recorder]:
    request = Recorder()
    return CourseRunner(request, ["x"], courses, stateful=stateful), request


def test_what_runs_before_runs_from_a_fresh_state_and_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course((TENSORS[3], TENSORS[3], TENSORS[1]))
    runner, request = course_runner(course)
    monkeypatch.setattr("hsdag.runtime.measuring.inferences.time", request)
    assert runner.seconds(course) == 1.0
    assert request.done == ["reset", 3, 3, 1]


def test_seconds_are_means_by_the_weights_of_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, request = course_runner(Course((TENSORS[2],), 0.75), Course((TENSORS[1],), 0.25), stateful=False)
    monkeypatch.setattr("hsdag.runtime.measuring.inferences.time", request)
    assert runner.weighted_s() == 0.75 * 2 + 0.25 * 1
    assert request.done == [2, 1]


class Counting(Recorder):
    """A request whose only primitive, an op called "a", takes as long as the inference."""

    @property
    def profiling_info(self) -> list[Any]:
        real_time = SimpleNamespace(total_seconds=lambda: float(self.bound))
        return [SimpleNamespace(node_name="a", node_type="MatMul", real_time=real_time)]

    def get_runtime_model(self) -> None:
        raise RuntimeError


def test_times_of_ops_are_means_by_the_weights_of_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    courses = [Course((TENSORS[2],), 0.75), Course((TENSORS[3], TENSORS[1]), 0.25)]
    request = Counting()
    runner = CourseRunner(request, ["x"], courses, stateful=False)
    monkeypatch.setattr("hsdag.runtime.measuring.inferences.time", request)
    answer = op_times(runner, runner, request, ["a"], 3, 60.0)
    assert answer["primitives"] == [[[0], 0.75 * 2 + 0.25 * 1, 0, "MatMul"]]
    assert answer["latency_s"] == 0.75 * 2 + 0.25 * 1


def test_streams_run_whole_scenarios_side_by_side() -> None:
    course = Course((TENSORS[1], TENSORS[1]))
    pairs = [course_runner(course) for _ in range(2)]
    steady_period_s([runner.stream(course) for runner, _ in pairs], 4)
    for _, request in pairs:
        assert request.done == ["reset", 1, 1] * 4


def test_scenarios_with_inferences_before_the_timed_one_run_beside_each_other() -> None:
    x = opset13.parameter(ov.PartialShape([-1]), np.float32)
    model = ov.Model([opset13.tanh(x)], [x], "tanh")
    compiled = ov.Core().compile_model(model, "CPU")
    course = Course(((ov.Tensor(np.ones(4, np.float32)),), (ov.Tensor(np.ones(2, np.float32)),)))
    runners = [CourseRunner(compiled.create_infer_request(), model.inputs, [course], stateful=False) for _ in range(2)]
    found = times_beside([runner.stream(course) for runner in runners], 0.01)
    assert len(found[0][1]) > 0 < len(found[1][0])


def test_only_errors_of_openvino_are_failures_of_a_device() -> None:
    with pytest.raises(ExecutionError, match="no such device"), device_calls():
        raise RuntimeError("no such device")
    with pytest.raises(AttributeError), device_calls():
        object().infer  # type: ignore[attr-defined]  # noqa: B018


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


def test_arrays_of_a_file_are_the_inputs_of_a_scenario_of_their_shapes(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", input_ids=np.array([[3, 1, 2]]))
    model = growing_model()
    (found,) = make_inputs(model, 0, tmp_path / "in.npz", {"input_ids": (1, 3)})
    assert found.data.tolist() == [[3, 1, 2]]


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
    runner = CourseRunner(
        compiled.create_infer_request(), model.inputs, [Course(tuple(map(tuple, steps)))], stateful=True
    )
    first, last = runner.outputs(model.outputs)
    again = runner.outputs(model.outputs)
    np.testing.assert_array_equal(again[1], last)
    by_op = op_by_op(ov.Core(), model, steps, 60.0)
    np.testing.assert_allclose(by_op[0], first, rtol=1e-4)
    np.testing.assert_allclose(by_op[1], last, rtol=1e-4)
    assert not np.allclose(op_by_op(ov.Core(), model, steps[1:], 60.0)[0], last)


def test_a_model_with_state_and_dynamic_shapes_is_profiled_on_its_scenarios(setup: WorkerSetup) -> None:
    worker = Worker(setup)
    answer = worker.op_times(Candidate("CPU"), "CPU", 3, 0.2)
    names = [worker.graph.op_types[v] for ops, *_ in answer["primitives"] for v in ops]
    assert {"MatMul", "Softmax"} <= set(names)
    assert answer["latency_s"] > 0
    assert answer["runs"] == 3


def test_outputs_of_every_inference_are_compared_and_scenarios_are_timed_apart(setup: WorkerSetup) -> None:
    with worker_client(setup) as client:
        runner = CandidateRunner(client, LATENCY)
        runner.open("a", Candidate("CPU"))
        runner.open("op by op", Candidate("op-by-op"))
        relative = runner.difference("a", "op by op")["max_relative"]
        assert relative is not None
        assert relative < 1e-2
        assert len(runner.run("a", 3)) == len(runner.run_scenario("a", 3, 1)) == 3
