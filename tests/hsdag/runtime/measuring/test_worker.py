"""The worker process: what it measures, and what happens when a plugin crashes or hangs in it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13, opset15

from hsdag.ir import processes
from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import HsdagError
from hsdag.ir.graph.build import read_graph
from hsdag.ir.processes import CandidateFailed, WorkerDefect
from hsdag.placing.final import Check, Verifier
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.inferences import make_inputs
from hsdag.runtime.measuring.messages import WORKER_COMMAND, WorkerSetup, ask, worker_client
from hsdag.runtime.measuring.runner import CandidateRunner, Limits
from hsdag.runtime.measuring.worker import Worker
from hsdag.runtime.objectives import LATENCY

CPU = DeviceSpec("CPU", "CPU")
FAULTY = Path(__file__).with_name("faulty_worker.py")
ALONE = Candidate(CPU.openvino_name)


def is_close(relative: float | None) -> bool:
    return relative is not None and relative < 1e-4


def faulty(fault: str, nth: int) -> tuple[str, ...]:
    return (sys.executable, str(FAULTY), fault, str(nth))


def runner_for(model: Path, command: tuple[str, ...] = WORKER_COMMAND, limits: Limits | None = None) -> CandidateRunner:
    return CandidateRunner(worker_client(WorkerSetup(model, (CPU,)), command), LATENCY, limits)


def test_a_candidate_runs_as_often_as_asked_and_a_split_one_reports_its_submodels(tiny_resnet: Path) -> None:
    graph = read_graph(tiny_resnet)
    specs = tuple(DeviceSpec.parse(f"P{i}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]") for i in range(2))
    with worker_client(WorkerSetup(tiny_resnet, specs)) as client:
        runner = CandidateRunner(client, LATENCY)
        relu = next(v for v in range(graph.num_ops) if graph.op_types[v] == "Relu")
        devices = ["CPU_P0" if graph.position[v] <= graph.position[relu] else "CPU_P1" for v in range(graph.num_ops)]
        assert runner.open("split", Candidate("HETERO:CPU_P0,CPU_P1", tuple(devices))).submodels == 2
        assert runner.open("whole", Candidate("CPU_P0")).submodels == 1
        times_s, difference = runner.run("split", 5), runner.difference("split", "whole")
    assert len(times_s) == 5
    assert min(times_s) > 0
    assert is_close(difference["max_relative"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [("crash", "SIGSEGV"), ("hang", "no answer within 3 s"), ("half", "no answer within 3 s")],
)
def test_a_lost_worker_is_replaced_and_the_reason_kept(tiny_resnet: Path, fault: str, reason: str) -> None:
    runner = runner_for(tiny_resnet, faulty(fault, 1), Limits(compile_s=3.0))
    with runner.client:
        with pytest.raises(CandidateFailed, match=reason) as failure:
            runner.open("a", ALONE)
        assert failure.value.lost_worker
        assert not runner.client.is_running
        with pytest.raises(CandidateFailed, match=reason):
            runner.open("a", ALONE)
    assert runner.client.num_starts == 2


def split_of(model: Path) -> Candidate:
    """The first op on A, the others on B."""
    return Candidate("HETERO:CPU_A,CPU_B", ("CPU_A", *["CPU_B"] * (read_graph(model).num_ops - 1)))


@pytest.mark.slow
def test_a_candidate_that_takes_all_memory_is_killed_before_the_machine_is_out_of_it(tiny_resnet: Path) -> None:
    runner = runner_for(tiny_resnet, faulty("eat", 1))
    runner.client.memory_bytes = 0.8e9
    with runner.client:
        with pytest.raises(CandidateFailed, match=r"took more than 0\.8 GB of memory and was killed") as failure:
            runner.open("a", ALONE)
        assert failure.value.lost_worker


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [("nan", "differ in values that are not finite from cpu"), ("shape", r"output 0 has shape \[2, .*is expected")],
)
def test_a_plugin_that_gives_wrong_outputs_is_rejected_with_the_reason(
    tiny_resnet: Path, fault: str, reason: str
) -> None:
    with worker_client(WorkerSetup(tiny_resnet, (CPU, *ONE_THREAD)), faulty(fault, 0)) as client:
        runner = CandidateRunner(client, LATENCY)
        runner.open("split", split_of(tiny_resnet))
        verdict = Verifier(runner, Check(reduced=False)).compared("split")
    assert re.search(reason, verdict.reason or "")


@pytest.mark.slow
def test_a_device_may_compile_for_long_but_a_split_may_not(tiny_resnet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TOLD_AFTER_S", 0.5)
    runner, told = runner_for(tiny_resnet, faulty("slow", 1), Limits(compile_s=1.0)), list[str]()
    runner.client.on_wait = told.append
    with runner.client:
        runner.open("a", ALONE)
        assert told == ["waiting for CPU to compile; GPUs may take minutes the first time"]
        runner.client.restart()
        devices = ("CPU",) * read_graph(tiny_resnet).num_ops
        with pytest.raises(CandidateFailed, match="no answer within 1 s while it compiled for HETERO:CPU"):
            runner.open("split", Candidate("HETERO:CPU", devices))


def test_candidates_are_opened_again_in_the_next_worker(tiny_resnet: Path) -> None:
    runner = runner_for(tiny_resnet, faulty("crash", 3))
    with runner.client:
        runner.open("a", ALONE)
        runner.open("b", ALONE)
        with pytest.raises(CandidateFailed):
            runner.open("c", ALONE)
        assert len(runner.run("a", 2)) == 2
    assert runner.client.num_starts == 2


def test_a_refused_candidate_costs_no_worker_which_the_kernel_would_end_before_the_search(tiny_resnet: Path) -> None:
    runner = runner_for(tiny_resnet, faulty("raise", 1))
    with runner.client:
        with pytest.raises(CandidateFailed, match="refuses this model") as failure:
            runner.open("a", ALONE)
        assert not failure.value.lost_worker
        runner.open("a", ALONE)
        if sys.platform == "linux":
            assert runner.client._process is not None
            score = Path(f"/proc/{runner.client._process.pid}/oom_score_adj").read_text()
            assert int(score) == 1000 > int(Path("/proc/self/oom_score_adj").read_text())
    assert runner.client.num_starts == 1


@pytest.fixture
def picky(tmp_path: Path) -> Path:
    """A model that takes the shape of what it gives as an input: random shapes do not fit."""
    x, shape = opset13.parameter([1, 4], np.float32, name="x"), opset13.parameter([2], np.int64, name="shape")
    bent = opset13.relu(opset13.reshape(opset13.relu(x), shape, special_zero=False), name="late")
    path = tmp_path / "picky.xml"
    ov.serialize(ov.Model([opset13.result(opset13.reduce_sum(bent, np.array([0, 1])))], [x, shape], "picky"), path)
    return path


ONE_THREAD = tuple(DeviceSpec.parse(f"{name}=CPU[INFERENCE_NUM_THREADS=1]") for name in "AB")


def test_an_inference_that_fails_is_no_success_on_one_thread_either(picky: Path) -> None:
    with worker_client(WorkerSetup(picky, (CPU, *ONE_THREAD))) as client:
        runner = CandidateRunner(client, LATENCY)
        for target in ("CPU_A", "HETERO:CPU_A,CPU_B", "CPU"):
            with pytest.raises(CandidateFailed, match=r"^the inference failed: .*; the inputs are random: --input \S+"):
                runner.open("a", Candidate(target))
    assert client.num_starts == 1


def test_given_inputs_that_suit_the_model_run(picky: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((1, 4), np.float32), shape=np.array([2, 2]))
    with worker_client(WorkerSetup(picky, ONE_THREAD, inputs=tmp_path / "in.npz")) as client:
        runner = CandidateRunner(client, LATENCY)
        for name in "AB":
            runner.open(name, Candidate(f"CPU_{name}"))
        assert len(runner.run("A", 3)) == 3
        assert is_close(runner.difference("A", "B")["max_relative"])


def test_a_defect_of_ours_is_no_candidates_failure(tiny_resnet: Path) -> None:
    runner = runner_for(tiny_resnet, faulty("defect", 1))
    with runner.client:
        with pytest.raises(WorkerDefect, match=r"in the worker process: KeyError in mistake, line \d+: 'b'"):
            runner.open("a", ALONE)
        assert "" not in runner.client.call(ask(Worker.choices, "CPU"), 60.0)
    assert runner.client.num_starts == 1


@pytest.mark.slow
def test_after_a_failed_set_up_the_next_call_says_the_same(tmp_path: Path, tiny_resnet: Path) -> None:
    runner = runner_for(tmp_path / "none.xml")
    with runner.client:
        for _ in range(2):
            with pytest.raises(HsdagError, match="no such file"):
                runner.open("a", ALONE)
            assert not runner.client.is_running
    with runner_for(tiny_resnet, faulty("set-up", 1)).client as client:
        for _ in range(2):
            with pytest.raises(WorkerDefect, match="KeyError"):
                client.call(ask(Worker.choices, "CPU"), 60.0)


def test_an_interrupted_call_leaves_no_answer_to_the_next_one(tiny_resnet: Path) -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    runner = runner_for(tiny_resnet, faulty("hang", 1))
    with runner.client:
        assert "" not in runner.client.call(ask(Worker.choices, "CPU"), 60.0)
        runner.client.should_abandon = interrupt
        with pytest.raises(KeyboardInterrupt):
            runner.open("a", ALONE)
        assert not runner.client.is_running


def test_the_worker_dies_with_its_parent(tiny_resnet: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from hsdag.ir.device import DeviceSpec;"
        "from hsdag.runtime.measuring.candidate import Candidate;"
        "from hsdag.runtime.measuring.messages import Call, WorkerSetup, worker_client;"
        f"c = worker_client(WorkerSetup(Path({str(tiny_resnet)!r}), (DeviceSpec('CPU', 'CPU'),)));"
        "c.call(Call('open', ('a', Candidate('CPU'))), 60);"
        "print(c._process.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker_pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    for _ in range(100):
        if not _is_alive(worker_pid):
            return
        time.sleep(0.1)
    pytest.fail("the worker outlived its parent by 10 s")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def test_random_inputs_depend_on_the_seed_alone(tiny_bert: Path) -> None:
    model = ov.Core().read_model(tiny_bert)
    first, again, other = (make_inputs(model, seed, None) for seed in (1, 1, 2))
    assert all(np.array_equal(a.data, b.data) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a.data, b.data) for a, b in zip(first, other, strict=True))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A model with a string and a floating input, which do not meet."""
    text, x = opset13.parameter([2], ov.Type.string, name="text"), opset13.parameter([2, 3], np.float32, name="x")
    ends = [opset13.relu(opset13.tanh(x, name="tanh")), opset15.string_tensor_unpack(text).output(2), text]
    ov.serialize(ov.Model([opset13.result(end) for end in ends], [text, x], "texts"), tmp_path / "texts.xml")
    return tmp_path / "texts.xml"


@pytest.mark.slow
def test_inputs_and_outputs_may_be_strings_in_whatever_order_a_plugin_has_them(texts: Path) -> None:
    specs = (CPU, *(DeviceSpec.parse(f"{name}=CPU[INFERENCE_PRECISION_HINT=f32]") for name in "AB"))
    devices = ["CPU_A" if op_type == "Relu" else "CPU_B" for op_type in read_graph(texts).op_types]
    side_by_side = Candidate.side_by_side(devices, ["CPU_A", "CPU_B"])
    others = (Candidate("HETERO:CPU_A,CPU_B"), Candidate.placed(devices), side_by_side, Candidate("op-by-op"))
    with worker_client(WorkerSetup(texts, specs)) as client:
        runner = CandidateRunner(client, LATENCY)
        runner.open("whole", ALONE)
        for other in others:
            runner.open("other", other)
            assert is_close(runner.difference("other", "whole")["max_relative"])


def test_strings_come_from_a_file_and_numbers_do_not_pass_for_them(texts: Path, tmp_path: Path) -> None:
    model = ov.Core().read_model(texts)
    np.savez(tmp_path / "in.npz", text=np.array(["ab", "c"]), x=np.zeros((2, 3)))
    assert make_inputs(model, 0, tmp_path / "in.npz")[0].str_data.tolist() == ["ab", "c"]
    np.savez(tmp_path / "in.npz", text=np.zeros(2), x=np.zeros((2, 3)))
    with pytest.raises(HsdagError, match="needs an array 'text' of strings, not of float64"):
        make_inputs(model, 0, tmp_path / "in.npz")


def test_packed_integers_get_inputs_too() -> None:
    x = opset13.parameter([1, 8], ov.Type.i4, name="x")
    model = ov.Model([opset13.result(opset13.convert(x, "f32"))], [x], "packed")
    assert make_inputs(model, 0, None)[0].get_byte_size() == 4
