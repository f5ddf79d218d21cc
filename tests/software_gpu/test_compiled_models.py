"""What GPUs compiled is kept between processes, unless one was killed over it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import openvino as ov
import pytest

from hsdag.ir import DeviceSpec, parse_devices, read_graph
from hsdag.runtime.measuring import compiled_models
from hsdag.runtime.measuring.candidate import Candidate, CandidateRunner
from hsdag.runtime.measuring.compiled_models import MARK, CompiledModels
from hsdag.runtime.measuring.messages import WorkerSetup
from hsdag.runtime.measuring.worker_client import WorkerClient
from hsdag.runtime.problems.objectives.latency import LATENCY

DEVICES = parse_devices("GPU.0[INFERENCE_PRECISION_HINT=f32],CPU")


def test_a_second_process_finds_what_the_first_one_compiled(
    tiny_resnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HSDAG_CACHE_DIR", str(tmp_path))
    graph = read_graph(tiny_resnet)
    halves = [DEVICES[int(2 * place > graph.num_ops)].name for place in graph.position.tolist()]
    found: list[dict[str, int]] = []
    for _ in range(2):
        with WorkerClient(WorkerSetup(tiny_resnet, DEVICES)) as client:
            runner = CandidateRunner(client, LATENCY)
            for name, candidate in {"split": Candidate.placed(halves), "cpu": Candidate("CPU")}.items():
                runner.open(name, candidate)
            runner.open("gpu", Candidate("GPU.0"))
            assert (runner.difference("split", "cpu")["max_relative"] or 0.0) < 0.05
        found.append({path.name: path.stat().st_mtime_ns for path in (tmp_path / "compiled").iterdir()})
    assert len(found[0]) == 2  # the GPU's, and HETERO's; the CPU keeps nothing
    assert found[0] == found[1]


def kept(folder: Path, *devices: DeviceSpec) -> CompiledModels:
    return CompiledModels(ov.Core(), devices, folder)


def test_what_a_killed_process_was_writing_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "whole.blob").write_bytes(b"whole")
    os.utime(tmp_path / "whole.blob", (1, 1))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f"{MARK}{ended.pid}").touch()
    (tmp_path / "half.blob").write_bytes(b"ha")
    cache = kept(tmp_path, *DEVICES)
    assert [path.name for path in tmp_path.iterdir()] == ["whole.blob"]
    with cache.compiling():
        (tmp_path / "mine.blob").write_bytes(b"mine")
        kept(tmp_path, *DEVICES)  # of another process, while this one is alive
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.blob", "whole.blob"]


def test_the_files_unused_for_longest_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_models, "MOST_BYTES", 20)
    for age in range(3):
        (tmp_path / f"{age}.blob").write_bytes(b"x" * 9)
        os.utime(tmp_path / f"{age}.blob", (100 - age, 100 - age))
    kept(tmp_path, *DEVICES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.blob", "1.blob"]


def test_devices_without_a_cache_and_those_with_their_own_are_left_alone(tmp_path: Path) -> None:
    own = DeviceSpec.parse(f"GPU.0[CACHE_DIR={tmp_path / 'own'}]")
    cache = kept(tmp_path / "ours", own, DEVICES[1])
    assert cache.properties("HETERO:GPU.0,CPU") == {}
    assert not (tmp_path / "ours").exists()
