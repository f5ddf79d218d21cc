"""The cache of compiled models: which devices have one, and what is kept in it."""

from __future__ import annotations

import os
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


def test_the_files_unused_for_longest_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "MOST_BYTES", 2)
    for name, read_and_written_s in {"a": (1.0, 1.0), "b": (3.0, 0.5), "c": (2.0, 2.0)}.items():
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, read_and_written_s)
    CompiledModels(Plugins(), [GPU], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]


def test_a_gpu_keeps_what_it_compiled_and_so_does_hetero_with_it(tmp_path: Path) -> None:
    core, kept = Plugins(), {"CACHE_DIR": str(tmp_path / "kept")}
    cache = CompiledModels(core, [GPU, CPU], tmp_path / "kept")
    assert core.told == {"GPU.0": kept}
    assert cache.properties("HETERO:CPU,GPU.0") == kept
    assert cache.properties("HETERO:CPU") == cache.properties("GPU.0") == {}


def test_the_cpu_and_a_device_with_a_folder_of_its_own_are_left_alone(tmp_path: Path) -> None:
    core = Plugins()
    CompiledModels(core, [CPU, DeviceSpec("GPU.0", "GPU.0", {"CACHE_DIR": "own"})], tmp_path)
    assert not core.told


def test_where_nobody_may_write_nothing_is_kept(tmp_path: Path) -> None:
    core = Plugins()
    (tmp_path / "file").write_text("")
    assert CompiledModels(core, [GPU], tmp_path / "file" / "below").properties("HETERO:GPU.0") == {}
    assert core.told == {}
