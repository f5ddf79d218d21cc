"""Usable memory: what is available, within the limits of control groups of both versions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hsdag.runtime.platforms.usable import usable_memory_bytes


def left(folder: Path, membership: str, files: Mapping[str, str]) -> float:
    """What is usable under a control group file system of these files, where the machine has 1,000 bytes available."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    (folder / "cgroup").write_text(membership + "\n")
    return usable_memory_bytes(folder / "cgroup", folder)


@pytest.fixture(autouse=True)
def _a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))


def test_without_a_limit_what_the_machine_has_available_counts(tmp_path: Path) -> None:
    assert usable_memory_bytes(tmp_path / "none", tmp_path) == 1000
    assert left(tmp_path, "0::/job", {"job/memory.max": "max", "job/memory.current": "7"}) == 1000


def test_the_tightest_group_around_counts_less_what_is_used_but_for_pages_that_can_go(tmp_path: Path) -> None:
    files = {"a/memory.max": "900", "a/memory.current": "700", "a/memory.stat": "anon 600\ninactive_file 100"}
    wide = {"a/b/memory.max": "9000", "a/b/memory.current": "600", "a/b/memory.stat": "anon 600"}
    assert left(tmp_path, "0::/a/b", {**files, **wide}) == 300


def test_a_limit_of_version_1_counts_for_the_memory_controller_alone(tmp_path: Path) -> None:
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
    files = {f"memory/job/{name}": text for name, text in zip(names, ("800", "300", "inactive_file 0"), strict=True)}
    assert left(tmp_path, "3:memory:/job\n2:cpu:/job", files) == 500
    assert left(tmp_path, "3:cpu:/job", files) == 1000
    assert left(tmp_path, "3:memory:/job", {**files, "memory/job/memory.usage_in_bytes": "900"}) == 0
