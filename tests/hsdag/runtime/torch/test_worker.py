"""The worker of the CUDA engine on logical devices of the CPU, and expressions of workloads in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
from numpy.typing import NDArray
from openvino import opset13 as ops

from hsdag.base.errors import FileFormatError, HsdagError
from hsdag.commands.place.loaded_model import read_workload
from hsdag.commands.sources import first_devices, workload_problem
from hsdag.ir.device import DeviceSpec
from hsdag.models import Workload
from hsdag.models.sharded_workloads import LlamaSizes, chainmm, ffnn, llama_block, llama_layer
from hsdag.runtime.measuring.messages import Candidate, Probe, WorkerSetup, plain_targets
from hsdag.runtime.platforms.platform import load_platform
from hsdag.runtime.problem.problem_file import problem_from_json, problem_to_json
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.torch.devices import LogicalDevice, logical_devices
from hsdag.runtime.torch.executor import TorchExecutor
from hsdag.runtime.torch.program import build_program
from hsdag.runtime.torch.worker import MemoryTaken, TorchWorker, probe_program
from hsdag.runtime.torch.workload_graph import build_expression, double_values, problem_graph, random_inputs

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


def test_devices_without_the_engine_are_targets_and_gpus_as_cuda_graphs_too() -> None:
    assert plain_targets((A, DeviceSpec("cuda:0", "cuda:0"))) == (f"EAGER:{NAMES[0]}", "EAGER:cuda:0", "GRAPH:cuda:0")


def test_a_device_without_the_engine_is_a_baseline_and_its_outputs_are_the_same(worker: TorchWorker) -> None:
    opened = worker.open("eager", Candidate(f"EAGER:{NAMES[0]}"))
    worker.open("A", Candidate(NAMES[0]))
    assert (opened.devices, opened.submodels > 10) == (NAMES[:1], True)
    assert worker.difference("eager", "A")["max_relative"] == 0.0
    assert len(worker.run("eager", 3, 10.0)) == 3
    assert worker.throughput("eager", 2, 4) > 0
    worker.close("eager")


def test_memory_of_a_gpu_to_plan_with_is_what_is_free_without_what_ops_take_beyond_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 100 bytes, contexts have 40; torch holds 50 for 10 in use; at the peak there were 35, and 20 were planned."""
    found = {"memory_allocated": 10, "max_memory_allocated": 45, "memory_reserved": 50, "mem_get_info": (10, 100)}
    for name, answer in found.items():
        monkeypatch.setattr(torch.cuda, name, lambda _, answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    taken = MemoryTaken(LogicalDevice("d"))
    assert taken.left_bytes(20) == 10 + 50 - (45 - 10 - 20)
    assert taken.left_bytes(50) == 10 + 50  # the plan may be too careful


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
    for priority in (range(count), range(count, 0, -1)):
        candidate = Candidate(NAMES[0], (NAMES[0],) * count, priority=tuple(priority))
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


Array = NDArray[np.float64]
K = 4
LLAMA = LlamaSizes(tokens=16, width=64, heads=4, hidden=96, vocabulary=64)
WORKLOADS: dict[str, Callable[[], Workload]] = {
    "chainmm": lambda: chainmm(K, size=64),
    "ffnn": lambda: ffnn(K, batch=64, width=8, hidden=64),
    "llama-block": lambda: llama_block(K, LLAMA),
    "llama-layer": lambda: llama_layer(K, LLAMA),
}


@cache
def problem_of(name: str) -> ScheduleProblem:
    """A workload as it is read back from its file, in f32 where the workload computes in f16."""
    written = problem_to_json(workload_problem(WORKLOADS[name](), first_devices(load_platform("p100x4"), K)))
    problem = problem_from_json(written)
    texts = tuple(text.replace("convert:f16", "convert:f32") for text in problem.labels.expressions)
    return replace(problem, labels=replace(problem.labels, expressions=texts))


@cache
def expected(name: str) -> dict[str, Array]:
    """In double precision, op by op."""
    problem, graph = problem_of(name), problem_graph(problem_of(name))
    sources, order = [[u for u, _ in node.reads] for node in graph.nodes], problem.topological_order.tolist()
    values = double_values(problem.labels.expressions, sources, order, random_inputs(graph))
    wanted = {v for v, _ in graph.outputs.values()}
    some = double_values(problem.labels.expressions, sources, order, random_inputs(graph), wanted)
    for v, value in enumerate(some):  # what was not wanted is let go
        assert torch.equal(value, values[v] if v in wanted else torch.zeros(()))
    return {key: values[v].numpy() for key, (v, _) in graph.outputs.items()}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_randomly_placed_workload_equals_what_its_ops_give_in_double_precision(name: str, seed: int) -> None:
    graph = problem_graph(problem_of(name))
    placement = np.random.default_rng(seed).integers(0, K, graph.num_nodes)
    with TorchExecutor(build_program(graph, placement, logical_devices(K))) as executor:
        got = executor.infer(random_inputs(graph))
    assert got.keys() == expected(name).keys()
    for key, value in expected(name).items():
        assert np.abs(got[key].numpy() - value).max() < 1e-4 * np.abs(value).max()


def test_causal_mask_hides_what_comes_later_and_lies_where_the_inputs_do() -> None:
    masked = build_expression("add(%0,causal:rows=2,columns=4,first_row=1)", 1)
    assert masked([torch.zeros(2, 4, device="meta")]).device.type == "meta"
    hidden = torch.isneginf(masked([torch.zeros(2, 4)])).tolist()
    assert hidden == [[False, False, True, True], [False, False, False, True]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("affine:factor=2.0,offset=1.0", [[3.0, 5.0], [7.0, 9.0]]),
        ("sub(%0,relu(affine:factor=1.0,offset=-2.0(%0)))", [[1.0, 2.0], [2.0, 2.0]]),
        ("maximum(%0,max:axis=1(%0))", [[2.0, 2.0], [4.0, 4.0]]),
        ("div(%0,sum:axis=0(%0))", [[0.25, 2 / 6], [0.75, 4 / 6]]),
        ("concat:axis=1(slice:0:1,1:2(%0),reshape:1x4(%0))", [[2.0, 1.0, 2.0, 3.0, 4.0]]),
        ("real(mul(complex(%0),complex(%0)))", [[-3.0, 4.0], [-7.0, 24.0]]),
        ("rsqrt(square(%0))", [[1.0, 0.5], [1 / 3, 0.25]]),
    ],
)
def test_nested_expression_gives(text: str, expected: list[list[float]]) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    torch.testing.assert_close(build_expression(text, 1)([x]), torch.tensor(expected))


def test_product_of_half_and_single_precision_is_in_single() -> None:
    product = build_expression("einsum:ij,jk->ik", 2)
    assert product([torch.ones(2, 3, dtype=torch.float16), torch.ones(3, 2)]).dtype is torch.float32


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max(%0)", "'axis' is missing"),
        ("input:A[0:2]", "'input' is an input, not computed"),
        ("convert:f64(%0)", "'f64' is missing"),
    ],
)
def test_text_that_cannot_be_run_is_refused(text: str, words: str) -> None:
    with pytest.raises(FileFormatError, match=rf"cannot run the expression .*{words}"):
        build_expression(text, 1)
