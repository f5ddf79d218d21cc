"""The cache of compiled models: what is whole is kept, whoever is killed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hsdag.ir.device import DeviceSpec
from hsdag.runtime.measuring import caches
from hsdag.runtime.measuring.caches import CompiledModels

GPU, CPU = DeviceSpec("GPU.0", "GPU.0"), DeviceSpec("CPU", "CPU")


class Plugins:
    """A core whose every device can write what it has compiled."""

    def __init__(self) -> None:
        self.told: dict[str, dict[str, str]] = {}

    def get_property(self, _: str, __: str) -> list[str]:
        return ["EXPORT_IMPORT"]

    def set_property(self, name: str, properties: dict[str, str]) -> None:
        self.told[name] = properties


@pytest.fixture
def ended() -> str:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return str(process.pid)


def fail_over(path: Path) -> None:
    path.write_bytes(b"x")
    raise RuntimeError("failed")


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_what_was_compiled_to_the_end_is_there_for_the_next_process(tmp_path: Path) -> None:
    core, own = Plugins(), tmp_path / str(os.getpid())
    cache = CompiledModels(core, [GPU], tmp_path)
    with cache.compiling():
        (own / "whole.blob").write_bytes(b"x")
        assert not files_in(tmp_path)
    with pytest.raises(RuntimeError, match="failed"), cache.compiling():
        fail_over(own / "half.blob")
    with cache.compiling():
        pass
    assert files_in(tmp_path) == ["whole.blob"]
    (own / "whole.blob").unlink()
    CompiledModels(Plugins(), [GPU], tmp_path)
    assert files_in(own) == ["whole.blob"]


def test_a_killed_process_leaves_nothing_and_a_live_one_loses_nothing(tmp_path: Path, ended: str) -> None:
    (tmp_path / "whole.blob").write_bytes(b"x")
    for number in (ended, str(os.getppid())):
        (tmp_path / number).mkdir()
        (tmp_path / number / "half.blob").write_bytes(b"x")
    CompiledModels(Plugins(), [GPU], tmp_path)
    assert files_in(tmp_path) == ["whole.blob"]
    assert not (tmp_path / ended).exists()
    assert files_in(tmp_path / str(os.getppid())) == ["half.blob"]


def test_the_files_unused_for_longest_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "MOST_BYTES", 2)
    for name, read_and_written_s in {"a": (1.0, 1.0), "b": (3.0, 0.5), "c": (2.0, 2.0)}.items():
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, read_and_written_s)
    CompiledModels(Plugins(), [GPU], tmp_path)
    assert files_in(tmp_path) == ["b", "c"]


def test_a_gpu_keeps_what_it_compiled_and_so_does_hetero_with_it(tmp_path: Path) -> None:
    core, kept = Plugins(), {"CACHE_DIR": str(tmp_path / "kept" / str(os.getpid()))}
    cache = CompiledModels(core, [GPU, CPU], tmp_path / "kept")
    assert core.told == {"GPU.0": kept}
    assert cache.properties("HETERO:CPU,GPU.0") == kept
    assert cache.properties("HETERO:CPU") == cache.properties("GPU.0") == {}


def test_the_cpu_and_a_device_with_a_folder_of_its_own_are_left_alone(tmp_path: Path) -> None:
    core = Plugins()
    CompiledModels(core, [CPU, DeviceSpec("GPU.0", "GPU.0", {"CACHE_DIR": "own"})], tmp_path / "kept")
    assert not core.told
    assert not (tmp_path / "kept").exists()
