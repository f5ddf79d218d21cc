"""Names, memory and compile times of GPUs, as bench shows them; what they compiled is kept between processes."""

from __future__ import annotations

from pathlib import Path

import pytest

import hsdag
from hsdag.ir.device import parse_devices
from hsdag.ir.graph.build import read_graph
from hsdag.ir.placement.placement import Placement
from hsdag.runtime.machine.devices import resolve_devices
from hsdag.runtime.measuring.measurer import Measurer
from hsdag.runtime.measuring.messages import Candidate, WorkerSetup, ask, worker_client
from hsdag.runtime.measuring.runner import CandidateRunner
from hsdag.runtime.objectives import LATENCY
from tests.placements import by_hand

F32 = "INFERENCE_PRECISION_HINT=f32"
DEVICES = f"A=GPU.0[{F32}],B=GPU.1[{F32}],CPU"


@pytest.fixture(scope="module")
def split(tiny_resnet: Path) -> Placement:
    """The first half of tiny_resnet on A, the second on B; C is described but not used."""
    graph = read_graph(tiny_resnet)
    devices = parse_devices(DEVICES)
    return by_hand(graph, devices, ["AB"[2 * k // graph.num_ops] for k in range(graph.num_ops)])


def test_bench_takes_gpus_by_the_names_of_a_placement_and_tells_what_they_hold(
    tiny_resnet: Path, split: Placement
) -> None:
    result = hsdag.bench(tiny_resnet, {"p": split}, ["A", "CPU"], time="0.2s")
    added_bytes = {row.name: row.device_bytes or 0 for row in result.rows}
    assert set(added_bytes) == {"p", "A", "CPU"}
    assert min(added_bytes["p"], added_bytes["A"]) > 0
    assert added_bytes["CPU"] == 0
    assert not result.failures
    assert not result.in_flight_failures


def test_a_whole_gpu_has_one_name_whatever_the_process_loaded_it_as_first(tiny_resnet: Path) -> None:
    found = resolve_devices(f"A=GPU[{F32}],CPU", None)
    assert [spec.name for spec in found.all] == ["A", "CPU", "GPU.0"]
    with worker_client(WorkerSetup(tiny_resnet, found.all)) as client:
        for spec in found.all:
            assert client.call(ask(Measurer.open, "k", Candidate(spec.openvino_name)), 300.0).devices == (
                spec.openvino_name,
            )


PAIR = parse_devices(f"GPU.0[{F32}],CPU")


def test_a_second_process_finds_what_the_first_one_compiled(
    tiny_resnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HSDAG_CACHE_DIR", str(tmp_path))
    graph = read_graph(tiny_resnet)
    halves = [PAIR[int(2 * place > graph.num_ops)].name for place in graph.position.tolist()]
    found: list[dict[str, int]] = []
    for _ in range(2):
        with worker_client(WorkerSetup(tiny_resnet, PAIR)) as client:
            runner = CandidateRunner(client, LATENCY)
            for name, candidate in {"split": Candidate.placed(halves), "cpu": Candidate("CPU")}.items():
                runner.open(name, candidate)
            runner.open("gpu", Candidate("GPU.0"))
            assert (runner.difference("split", "cpu")["max_relative"] or 0.0) < 0.05
        found.append({path.name: path.stat().st_mtime_ns for path in (tmp_path / "compiled").glob("*.*")})
    assert len(found[0]) == 2  # the GPU's, and HETERO's; the CPU keeps nothing
    assert found[0] == found[1]
