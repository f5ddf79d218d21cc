"""The work-conserving executor inside the worker process: what it runs, and what becomes of it when it fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.ir.device import parse_devices
from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.coarsen import placement_units
from hsdag.ir.graph.scenario import parse_scenarios
from hsdag.ir.processes import CandidateFailed, WorkerClient
from hsdag.models import save_model_files
from hsdag.placing.session import Session
from hsdag.runtime.machine.devices import DeviceSet
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.messages import WorkerSetup, ask, worker_client
from hsdag.runtime.measuring.runner import CandidateRunner, Limits
from hsdag.runtime.measuring.worker import Worker
from hsdag.runtime.objectives import LATENCY, THROUGHPUT
from tests.stateful import CPUS, split_after

ONE = "INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32"
SPECS = parse_devices(f"A=CPU[{ONE}],B=CPU[{ONE}]")
ORDER = ("CPU_A", "CPU_B")


def split(model: Path) -> Candidate:
    """The first half of a model on one device, the second on the other."""
    units = placement_units(read_graph(model))
    late = units.partition.labels >= units.graph.num_ops // 2
    return Candidate.side_by_side([ORDER[int(second)] for second in late], ORDER)


@pytest.fixture(scope="module")
def client(tiny_resnet: Path) -> Iterator[WorkerClient]:
    """A worker over tiny_resnet and two devices of one thread."""
    with worker_client(WorkerSetup(tiny_resnet, SPECS)) as client:
        yield client


def test_a_placement_runs_like_one_device_under_every_verb(tiny_resnet: Path, client: WorkerClient) -> None:
    runner = CandidateRunner(client, LATENCY)
    opened = runner.open("split", split(tiny_resnet))
    runner.open("whole", Candidate("CPU_A"))
    assert opened.submodels == 2
    assert opened.devices == ORDER
    assert runner.difference("split", "whole")["max_relative"] == pytest.approx(0.0, abs=1e-4)
    assert len(runner.run("split", 3)) == 3
    runner.close("split")
    assert min(runner.run("whole", 2)) > 0
    assert client.num_starts == 1


def test_devices_are_not_told_to_share_their_threads_out_for_throughput(client: WorkerClient) -> None:
    assert Candidate.side_by_side(["CPU_B", "CPU_B"], ORDER) == Candidate("CPU_B")
    runner = CandidateRunner(client, THROUGHPUT)
    assert runner.hinted(Candidate("CPU_A", ("CPU_A",))).properties == {"PERFORMANCE_HINT": "THROUGHPUT"}
    assert runner.hinted(Candidate.side_by_side(ORDER, ORDER)).properties == {}


def test_an_inference_past_its_limit_names_op_and_device_and_keeps_the_worker(
    tiny_resnet: Path, client: WorkerClient
) -> None:
    runner = CandidateRunner(client, LATENCY, Limits(run_s=60.0))
    with pytest.raises(CandidateFailed, match="on device A") as failure:
        client.call(ask(Worker.open, "late", split(tiny_resnet), 1e-9), 60.0)
    assert not failure.value.lost_worker
    runner.open("whole", Candidate("CPU_A"))
    assert client.num_starts == 1


def test_a_device_that_cannot_compile_its_part_fails_the_candidate_alone(
    tiny_resnet: Path, client: WorkerClient
) -> None:
    runner = CandidateRunner(client, LATENCY)
    candidate = split(tiny_resnet)
    with pytest.raises(CandidateFailed, match="cannot compile"):
        runner.open("odd", Candidate(candidate.target, candidate.devices, {"NO_SUCH_KEY": "1"}, "work-conserving"))
    assert runner.open("split", candidate).submodels == 2
    assert client.num_starts == 1


def test_a_worker_that_is_lost_while_it_forgets_a_candidate_loses_nothing(client: WorkerClient) -> None:
    def lose(*_: object, **__: object) -> None:
        raise CandidateFailed("took more than 1 s")

    runner = CandidateRunner(client, LATENCY)
    runner.open("whole", Candidate("CPU_A"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "call", lose)
        runner.close("whole")
    assert runner.open("whole", Candidate("CPU_A")).devices == ("CPU_A",)


def test_a_model_with_state_is_split_around_its_variable(stateful: Path) -> None:
    graph = read_graph(stateful)
    late = [ORDER[int(graph.op_names[v].startswith("late"))] for v in range(graph.num_ops)]
    with worker_client(WorkerSetup(stateful, SPECS)) as client:
        runner = CandidateRunner(client, LATENCY)
        runner.open("whole", Candidate("CPU_A"))
        runner.open("split", Candidate.side_by_side(late, ORDER))
        assert len(runner.run("split", 3)) == 3
        assert runner.difference("split", "whole")["max_abs"] == 0.0


@pytest.mark.slow
def test_a_split_with_which_hetero_would_lose_state_is_a_candidate_that_failed(tmp_path: Path) -> None:
    model = save_model_files("tiny_stateful_llama_fp16", tmp_path / "llama.xml")
    with Session(model, DeviceSet(CPUS, ()), scenarios=parse_scenarios((), "4")) as session:
        first, second = (np.array(split_after(session.graph, f"model.layers.{k}/output")) for k in (0, 1))
        there_and_back = [CPUS[d].openvino_name for d in (first & ~second & 1).tolist()]
        with pytest.raises(CandidateFailed, match="HETERO would lose what variable"):
            session.runner.open("split", Candidate.placed(there_and_back))
        order = [spec.openvino_name for spec in CPUS]
        assert session.runner.open("ours", Candidate.side_by_side(there_and_back, order)).submodels == 3


def test_priorities_of_a_placement_reach_the_executor(client: WorkerClient, tiny_resnet: Path) -> None:
    candidate = split(tiny_resnet)
    assert candidate.devices is not None
    ranks = [None, *range(len(candidate.devices) - 1)]
    runner = CandidateRunner(client, LATENCY)
    ranked = Candidate.side_by_side(candidate.devices, ORDER, ranks)
    assert runner.hinted(ranked).priority == tuple(ranks)
    assert runner.open("ranked", ranked).submodels == 2


@pytest.fixture
def stateful(tmp_path: Path) -> Path:
    """A model that adds its input to what it remembers."""
    x = opset13.parameter([1, 4], np.float32, name="x")
    start = opset13.constant(np.zeros((1, 4), dtype=np.float32))
    before = opset13.read_value(start, "memory", np.float32, [1, 4])
    total = opset13.add(x, before, name="total")
    kept = opset13.assign(total, "memory")
    out = opset13.relu(total, name="late")
    path = tmp_path / "stateful.xml"
    ov.serialize(ov.Model([opset13.result(out, name="late_result")], [kept], [x], "stateful"), path)
    return path
