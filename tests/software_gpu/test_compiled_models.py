"""What GPUs compiled is kept between processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hsdag.ir.device import parse_devices
from hsdag.ir.graph.build import read_graph
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.messages import WorkerSetup, worker_client
from hsdag.runtime.measuring.runner import CandidateRunner
from hsdag.runtime.objectives import LATENCY

DEVICES = parse_devices("GPU.0[INFERENCE_PRECISION_HINT=f32],CPU")


def test_a_second_process_finds_what_the_first_one_compiled(
    tiny_resnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HSDAG_CACHE_DIR", str(tmp_path))
    graph = read_graph(tiny_resnet)
    halves = [DEVICES[int(2 * place > graph.num_ops)].name for place in graph.position.tolist()]
    found: list[dict[str, int]] = []
    for _ in range(2):
        with worker_client(WorkerSetup(tiny_resnet, DEVICES)) as client:
            runner = CandidateRunner(client, LATENCY)
            for name, candidate in {"split": Candidate.placed(halves), "cpu": Candidate("CPU")}.items():
                runner.open(name, candidate)
            runner.open("gpu", Candidate("GPU.0"))
            assert (runner.difference("split", "cpu")["max_relative"] or 0.0) < 0.05
        found.append({path.name: path.stat().st_mtime_ns for path in (tmp_path / "compiled").glob("*.*")})
    assert len(found[0]) == 2  # the GPU's, and HETERO's; the CPU keeps nothing
    assert found[0] == found[1]
