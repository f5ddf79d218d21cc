"""The worker of the CUDA engine on logical devices of the CPU, in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import HsdagError
from hsdag.models.sharded_workloads import chainmm
from hsdag.placing.subject import read_workload
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.messages import Probe, WorkerSetup
from hsdag.runtime.torch.devices import logical_devices
from hsdag.scoring.torch_worker import TorchWorker, probe_program

ONE = {"threads": "1"}
A, B = DeviceSpec("A", "cpu", ONE), DeviceSpec("B", "cpu", ONE)
NAMES = (A.openvino_name, B.openvino_name)


@pytest.fixture(scope="module")
def workload_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return read_workload(chainmm(2, 16), 2, tmp_path_factory.mktemp("workload")).path


@pytest.fixture(scope="module")
def worker(workload_file: Path) -> TorchWorker:
    return TorchWorker(WorkerSetup(workload_file, (A, B)))


def split(worker: TorchWorker, **changes: object) -> Candidate:
    count = worker._source.graph.num_nodes
    placed = Candidate.side_by_side([NAMES[v % 2] for v in range(count)], NAMES, executor="cuda")
    return replace(placed, **changes)  # type: ignore[arg-type]


def test_a_split_workload_computes_what_numpy_computes(worker: TorchWorker) -> None:
    opened = worker.open("split", split(worker))
    worker.open("reference", Candidate("numpy"))
    difference = worker.difference("split", "reference")
    assert opened.devices == NAMES
    assert opened.submodels > 40  # ops that compute, and copies
    assert difference["max_relative"] < 1e-5  # type: ignore[operator]


@pytest.mark.parametrize("model", ["tiny_resnet", "tiny_bert"])
def test_a_split_model_computes_what_openvino_computes(model: str, request: pytest.FixtureRequest) -> None:
    of_model = TorchWorker(WorkerSetup(request.getfixturevalue(model), (A, B)))
    of_model.open("split", split(of_model))
    for reference in (Candidate("CPU", properties={"INFERENCE_PRECISION_HINT": "f32"}), Candidate("op-by-op")):
        of_model.open("reference", reference)
        assert of_model.difference("split", "reference")["max_relative"] < 1e-4  # type: ignore[operator]


def test_a_reference_computes_by_itself(worker: TorchWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.open("A", Candidate(NAMES[0]))
    twice = {name: 2 * x for name, x in worker._source.inputs.items()}
    monkeypatch.setattr(worker, "_source", replace(worker._source, inputs=twice))
    worker.open("reference", Candidate("numpy"))
    assert worker.difference("A", "reference")["max_relative"] > 0.1  # type: ignore[operator]


def test_ops_are_timed_and_those_that_compute_nothing_are_not(worker: TorchWorker) -> None:
    found = worker.op_times(Candidate(NAMES[0]), NAMES[0], 3, 0.1)
    nodes = worker._source.graph.nodes
    assert [ops for ops, *_ in found["primitives"]] == [[v] for v, node in enumerate(nodes) if node.run is not None]
    assert 0 < sum(seconds for _, seconds, *_ in found["primitives"]) < 10 * found["latency_s"]
    assert found["runs"] == 3
    assert found["resident_bytes"] == 5 * 16 * 16 * 4  # five matrices
    assert found["memory_bytes"] is None


def test_a_probe_sends_as_many_tensors_as_it_is_asked_for(worker: TorchWorker) -> None:
    sent = probe_program(logical_devices(2), 4, 4096)
    kept = probe_program(logical_devices(1), 4, 4096)
    assert sent.tasks.num_tasks == 2 + 4
    assert sent.tasks.size_bytes.sum() == 4 * 4096
    assert kept.tasks.num_tasks == 2
    found = worker.probe(Probe(NAMES, "matrix", 4, 1 << 20, 5, 0.05))
    assert (found.tensor_bytes, found.rest_s > 0) == (1 << 20, True)


def test_the_order_of_a_candidate_is_the_one_that_ops_run_in(worker: TorchWorker) -> None:
    names = [node.name for node in worker._source.graph.nodes]
    count, firsts = len(names), []
    for ranks in (range(count), range(count, 0, -1)):
        candidate = Candidate(NAMES[0], (NAMES[0],) * count, priority=tuple(ranks))
        found = worker.timeline(candidate, 3)
        firsts.append(names.index(found.op_names[found.ops.op[np.argmin(found.ops.end_s)]]))
    assert firsts[0] < firsts[1]


def test_an_op_that_torch_lacks_is_listed_and_computed_by_openvino(tmp_path: Path) -> None:
    x = ops.parameter([4], np.float32)
    path = tmp_path / "sorted.xml"
    ov.save_model(ov.Model([ops.topk(ops.tanh(x), np.int32(2), 0, "max", "value").output(0)], [x], "sorted"), path)
    worker = TorchWorker(WorkerSetup(path, (A, B)))
    assert worker.left_to_openvino() == ["TopK"]
    worker.open("split", split(worker))
    worker.open("reference", Candidate("CPU", properties={"INFERENCE_PRECISION_HINT": "f32"}))
    assert worker.difference("split", "reference")["max_relative"] < 1e-6  # type: ignore[operator]


def test_a_file_of_inputs_that_lacks_one_is_refused(workload_file: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", A=np.ones((16, 16)))
    with pytest.raises(HsdagError, match="needs an array 'B'; the inputs are A, B, C, D, E"):
        TorchWorker(WorkerSetup(workload_file, (A,), inputs=tmp_path / "x.npz"))
