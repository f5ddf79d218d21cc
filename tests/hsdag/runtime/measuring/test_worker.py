"""The worker: what it compiles, runs, compares and says of devices."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import psutil
import pytest
from openvino import opset13

from hsdag.base.errors import DeviceError, ExecutionError, ModelError
from hsdag.ir.device import DeviceSpec, parse_devices
from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.scenario import Scenario
from hsdag.runtime.machine.devices import make_core
from hsdag.runtime.measuring import probes
from hsdag.runtime.measuring import worker as worker_process
from hsdag.runtime.measuring.candidates import Compiler
from hsdag.runtime.measuring.differences import CPU_IN_SINGLE
from hsdag.runtime.measuring.messages import Candidate, Probe, WorkerSetup, automatic_targets
from hsdag.runtime.measuring.worker import Worker
from tests import placements
from tests.hsdag.runtime.executor.hand_backend import await_until

ONE = "INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32"
SPECS = parse_devices(f"A=CPU[{ONE}],B=CPU[{ONE}]")
ORDER = ("CPU_A", "CPU_B")
CPU, OTHER = DeviceSpec("CPU", "CPU"), DeviceSpec.parse("OTHER=CPU[INFERENCE_NUM_THREADS=1]")


@pytest.fixture(scope="module")
def worker(tiny_resnet: Path) -> Worker:
    """Over tiny_resnet, the CPU, and two devices of one thread."""
    return Worker(WorkerSetup(tiny_resnet, (CPU, *SPECS)))


@pytest.fixture(scope="module")
def halves(tiny_resnet: Path) -> list[str]:
    """The first half of tiny_resnet on one device, the second on the other."""
    return [f"CPU_{name}" for name in placements.halves(read_graph(tiny_resnet), SPECS).affinity.values()]


def differ(worker: Worker, *keys: str) -> float:
    found = worker.difference(*keys)["max_relative"]
    assert found is not None
    return found


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_split_runs_as_often_as_asked_like_one_device_under_both_executors(
    worker: Worker, halves: list[str], is_ours: bool
) -> None:
    opened = worker.open("split", Candidate.side_by_side(halves, ORDER) if is_ours else Candidate.placed(halves))
    assert (opened.submodels, set(opened.devices)) == (2, set(ORDER))
    assert worker.open("whole", Candidate("CPU_A")).submodels == 1
    assert differ(worker, "split", "whole") < 1e-4
    assert [len(worker.run("split", runs, 60.0)) for runs in (1, 3)] == [1, 3]
    split = worker.candidates.compiled["split"]
    worker.close("split")
    assert "split" not in worker.candidates.requests
    if is_ours:  # whose threads have ended
        with pytest.raises(ExecutionError, match="is closed"):
            split.create_infer_request()
    assert min(worker.run("whole", 2, 60.0)) > 0


@pytest.mark.parametrize("case", [(False, None, 2), (False, 3, 3), (True, None, 4), (True, 2, 2)])
def test_a_period_is_taken_with_as_many_requests_as_asked_for_or_keep_devices_busy(
    worker: Worker, halves: list[str], monkeypatch: pytest.MonkeyPatch, case: tuple[bool, int | None, int]
) -> None:
    is_split, requests, in_flight = case
    taken: list[tuple[float, ...]] = []

    def period_s(requests: Sequence[object], *most: float) -> float:
        taken.append((len(requests), *most))
        return 0.5

    monkeypatch.setattr("hsdag.runtime.measuring.worker.steady_period_s", period_s)
    worker.open("it", Candidate.placed(halves) if is_split else Candidate("CPU_A"))
    assert worker.throughput("it", requests, 8, 2.0) == 0.5
    assert taken == [(in_flight, 8, 2.0)]


def test_what_the_executor_of_ours_refuses_or_gives_up_fails_the_candidate_alone(
    worker: Worker, halves: list[str]
) -> None:
    split = Candidate.side_by_side(halves, ORDER)
    with pytest.raises(ExecutionError, match="on device A"):
        worker.open("late", split, 1e-9)
    with pytest.raises(ExecutionError, match="cannot compile"):
        worker.open("odd", Candidate(split.target, split.devices, {"NO_SUCH_KEY": "1"}, "work-conserving"))
    assert not {"late", "odd"} & (worker.candidates.compiled.keys() | worker.candidates.requests.keys())
    ranked = Candidate.side_by_side(halves, ORDER, [None, *range(len(halves) - 1)])
    assert worker.open("ranked", ranked).submodels == 2


def test_a_candidate_tells_what_it_added_to_memory(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    held = iter([(100, 5), (130, 9), (100, None), (90, 9)])
    monkeypatch.setattr("hsdag.runtime.measuring.candidates.memory_use", lambda *_: next(held))
    opened = [worker.open("a", Candidate("CPU")) for _ in range(2)]
    assert [(each.resident_bytes, each.device_bytes) for each in opened] == [(30, 4), (0, None)]


@pytest.fixture
def picky(tmp_path: Path) -> Path:
    """A model that takes the shape of what it gives as an input: random shapes do not fit."""
    x, shape = opset13.parameter([1, 4], np.float32, name="x"), opset13.parameter([2], np.int64, name="shape")
    bent = opset13.relu(opset13.reshape(opset13.relu(x), shape, special_zero=False), name="late")
    path = tmp_path / "picky.xml"
    ov.serialize(ov.Model([opset13.result(opset13.reduce_sum(bent, np.array([0, 1])))], [x, shape], "picky"), path)
    return path


def test_an_inference_that_fails_is_no_success_on_one_thread_either_but_given_inputs_may_suit(
    picky: Path, tmp_path: Path
) -> None:
    worker = Worker(WorkerSetup(picky, (CPU, *SPECS)))
    for target in ("CPU_A", "HETERO:CPU_A,CPU_B", "CPU"):
        with pytest.raises(ExecutionError, match=r"^the inference failed: .*; the inputs are random: inputs \S+"):
            worker.open("a", Candidate(target))
    np.savez(tmp_path / "in.npz", x=np.ones((1, 4), np.float32), shape=np.array([2, 2]))
    worker = Worker(WorkerSetup(picky, SPECS, inputs=tmp_path / "in.npz"))
    for name in "AB":
        worker.open(name, Candidate(f"CPU_{name}"))
    assert differ(worker, "A", "B") < 1e-4


def test_devices_are_listed_and_say_what_they_are_and_compute_in() -> None:
    worker = Worker(WorkerSetup(None))
    assert "CPU" in worker.list_devices()
    assert worker.list_devices("CPU") == ("CPU",)
    facts = worker.device_facts(SPECS[0])
    assert facts.full_name == ov.Core().get_property("CPU", "FULL_DEVICE_NAME")
    assert facts.plugin_version == ov.Core().get_versions("CPU")["CPU"].build_number
    assert (facts.precision, facts.memory_bytes > 1e9) == ("f32", True)  # type: ignore[operator]
    assert facts.kind in ("integrated", "discrete")
    with pytest.raises(DeviceError, match=r"unknown device 'GPU\.7'"):
        worker.device_facts(DeviceSpec.parse("GPU.7"))
    assert worker.precision(SPECS[0]).default["max_relative"] < 1e-5  # type: ignore[operator]
    if "BF16" in facts.capabilities:
        found = worker.precision(DeviceSpec.parse("HALF=CPU[INFERENCE_PRECISION_HINT=bf16]"))
        assert found.default["max_relative"] > 1e-4 > found.single["max_relative"]  # type: ignore[operator]


def test_a_window_has_devices_alone_and_side_by_side_and_whole_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "LEAST_STRETCH_S", 0.0)
    worker = Worker(WorkerSetup(None))
    compiled, original = list[str](), worker_process._requests_beside

    def noted(compiler: Compiler, devices: Sequence[DeviceSpec], kind: str) -> list[Any]:
        compiled.append(kind)
        return original(compiler, devices, kind)

    monkeypatch.setattr(worker_process, "_requests_beside", noted)
    windows = [worker.contention(SPECS[:2], "compute", SPECS[2:]) for _ in range(2)]
    for found in windows:
        assert found is not None
        assert (len(found.alone_s), len(found.whole_devices_s)) == (2, len(SPECS) - 2)
        (own, beside), (other, own_again) = found.beside_s
        assert own == own_again == 0.0 < min(beside, other, *found.alone_s, *found.whole_devices_s)
    assert len(compiled) == 1
    worker.forget_probes()
    worker.contention(SPECS[:2], "compute", SPECS[2:])
    assert len(compiled) == 2


@pytest.mark.parametrize("names", [ORDER, ORDER[1:]])
def test_a_probe_runs_on_its_devices_five_times_at_least_and_no_more_often_than_asked(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "median_error_s", len)
    what = Probe(names, "image", 2, 4096, 7, 0.0)
    core = make_core(SPECS)
    request = probes.probe_request(core, SPECS, what)
    assert set(request.get_compiled_model().get_property("EXECUTION_DEVICES")) == set(names)
    found = [probes.probe(request, replace(what, runs=runs)) for runs in (7, 3)]
    assert [(each.error_s, each.tensor_bytes) for each in found] == [(5, 4096), (3, 4096)]


def test_the_error_of_a_median_is_that_of_normal_samples_and_tensors_of_probes_are_of_256_channels() -> None:
    assert probes.median_error_s([1.0, 2.0, 4.0, 5.0, 9.0]) == pytest.approx(1.2533 * (5 - 2) / 1.349 / np.sqrt(5))
    shapes = [
        probes.crossing_shapes(Probe(ORDER, kind, 1, size, 1, 0.0))
        for kind in ("image", "matrix")
        for size in (1, 4096)
    ]
    assert shapes == [[1, 256, 1, 1], [1, 256, 2, 2], [1, 1, 256], [1, 4, 256]]


def test_openvino_by_itself_may_take_any_device_first_or_its_own() -> None:
    both = "HETERO:CPU_A,CPU_B", "HETERO:CPU_B,CPU_A"
    assert automatic_targets(SPECS, (CPU,)) == (*both, "AUTO:CPU")
    assert automatic_targets(SPECS[:1], ()) == ()


def test_hetero_gives_every_op_to_the_first_device_that_runs_it(worker: Worker) -> None:
    assert set(worker.choices("HETERO:CPU_A,CPU_B", SPECS)) == {"CPU_A"}
    assert all(worker.choices("CPU_OTHER", (OTHER,)))


def test_a_model_is_compared_with_the_cpu_in_f32_of_open_shapes_on_typical_data(worker: Worker, tmp_path: Path) -> None:
    assert worker.compare_outputs((SPECS[0], CPU_IN_SINGLE))["max_relative"] < 1e-5  # type: ignore[operator]
    x = opset13.parameter([-1, 3], np.float32, name="x")
    ov.save_model(ov.Model([opset13.relu(x, name="r")], [x], "m"), tmp_path / "m.xml")
    with pytest.raises(ModelError, match="data_shape"):
        Worker(WorkerSetup(tmp_path / "m.xml")).compare_outputs((OTHER, CPU_IN_SINGLE))
    scenarios = (Scenario(({"x": (40, 3)}, {"x": (2, 3)})),)
    found = Worker(WorkerSetup(tmp_path / "m.xml", scenarios=scenarios)).compare_outputs((SPECS[0], CPU_IN_SINGLE))
    assert found["max_relative"] == 0.0


def test_the_worker_dies_with_its_parent() -> None:
    program = (
        "import time; from hsdag.runtime.measuring.measurer import OpenVinoMeasurer;"
        "from hsdag.runtime.measuring.messages import WorkerSetup, ask, worker_client;"
        "c = worker_client(WorkerSetup(None)); c.call(ask(OpenVinoMeasurer.list_devices, 'CPU'), 60);"
        "print(c._process.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker_pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    await_until(lambda: not psutil.pid_exists(worker_pid) or psutil.Process(worker_pid).status() == "zombie")


def drawing(folder: Path, seed: int, *, has_more: bool) -> Path:
    """A model with an output that depends on random numbers, and perhaps one that does not."""
    x = opset13.parameter([4, 8], np.float32, name="x")
    bounds = opset13.constant(np.float32(0)), opset13.constant(np.float32(1))
    noise = opset13.random_uniform(opset13.constant(np.array([4, 8])), *bounds, "f32", seed, seed)
    results = [opset13.result(opset13.add(opset13.sin(x), noise))]
    results += [opset13.result(opset13.tanh(x))] * has_more
    path = folder / f"drawing{seed}{has_more}.xml"
    ov.save_model(ov.Model(results, [x], "drawing"), path)
    return path


@pytest.mark.parametrize("hint", ["f32", "bf16"])
def test_random_numbers_with_a_seed_are_compared_in_first_inferences_however_many_ran_since(
    tmp_path: Path, hint: str
) -> None:
    """In bf16 other numbers are drawn than in f32, on a CPU that computes in it."""
    worker = Worker(WorkerSetup(drawing(tmp_path, 3, has_more=False), (CPU, *SPECS)))
    worker.open("one", Candidate("CPU", properties={"INFERENCE_PRECISION_HINT": hint}))
    worker.run("one", 5, 1.0)
    worker.open("other", Candidate("CPU", properties={"INFERENCE_PRECISION_HINT": "f32"}))
    assert hint == "bf16" or differ(worker, "one", "other") <= 1e-6
    assert differ(worker, "one", "other") <= 0.02


def test_outputs_that_depend_on_random_numbers_without_a_seed_are_left_out(tmp_path: Path) -> None:
    worker = Worker(WorkerSetup(drawing(tmp_path, 0, has_more=True), (CPU, *SPECS)))
    for key in ("one", "other"):
        worker.open(key, Candidate("CPU"))
    assert differ(worker, "one", "other") <= 1e-6
    worker = Worker(WorkerSetup(drawing(tmp_path, 0, has_more=False), (CPU, *SPECS)))
    for key in ("one", "other"):
        worker.open(key, Candidate("CPU"))
    with pytest.raises(
        ExecutionError, match=r"all outputs depend on random numbers, which 'RandomUniform_[0-9]+' draws"
    ):
        worker.difference("one", "other")
