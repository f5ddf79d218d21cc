"""What GPUs compiled is kept between processes."""

from __future__ import annotations

from pathlib import Path

import openvino as ov
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


def test_what_was_written_half_is_compiled_again(tiny_resnet: Path, tmp_path: Path) -> None:
    core = ov.Core()
    core.set_property("GPU.0", {"CACHE_DIR": str(tmp_path)})
    core.compile_model(tiny_resnet, "GPU.0")
    (path,) = tmp_path.glob("*.blob")
    whole = path.read_bytes()
    for length in (0, 100, len(whole) // 2):
        path.write_bytes(whole[:length])
        ov.Core().compile_model(tiny_resnet, "GPU.0", {"CACHE_DIR": str(tmp_path)})
        assert path.stat().st_size > 0.9 * len(whole)
