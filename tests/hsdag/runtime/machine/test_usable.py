"""What the process may use: processors and memory, within the limits of control groups of both versions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hsdag.runtime.machine import usable
from hsdag.runtime.machine.usable import OtherPrograms, Seconds, in_parts, usable_cpus, usable_memory_bytes

WIDE = {"a/b/memory.max": "9000", "a/b/memory.current": "600", "a/b/memory.stat": "anon 600"}
TIGHT = {"a/memory.max": "900", "a/memory.current": "700", "a/memory.stat": "anon 600\ninactive_file 100"}
OLD = "memory/job/memory"
FIRST = {f"{OLD}.limit_in_bytes": "800", f"{OLD}.usage_in_bytes": "300", f"{OLD}.stat": "inactive_file 0"}
CFS = {"cpu,cpuacct/job/cpu.cfs_quota_us": "500000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"}


@pytest.fixture(autouse=True)
def _a_small_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight processors, 1,000 bytes available, and the control groups of a folder."""
    monkeypatch.setattr(usable, "OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(usable, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))


def write(folder: Path, membership: str, files: Mapping[str, str]) -> None:
    """Write a file of memberships, and a control group file system of these files."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    (folder / "cgroup").write_text(membership + "\n")


def test_without_control_groups_the_machine_counts() -> None:
    assert usable_cpus() == 8
    assert usable_memory_bytes() == 1000


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/job", {"job/cpu.max": "max 100000"}, 8),
        ("0::/job", {"job/cpu.max": "300000 100000"}, 3),
        ("0::/job", {"job/cpu.max": "250000 100000"}, 2),  # whole processors
        ("0::/job", {"job/cpu.max": "50000 100000"}, 1),
        ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "600000 100000"}, 2),  # the tightest group around
        ("0::/not/visible/here", {"cpu.max": "400000 100000"}, 4),  # a container that sees only its root group
        ("3:cpu,cpuacct:/job\n2:memory:/job", CFS, 5),
        ("3:cpu,cpuacct:/job", {**CFS, "cpu,cpuacct/job/cpu.cfs_quota_us": "-1"}, 8),
    ],
)
def test_processors_are_limited_by_quotas(
    membership: str, files: dict[str, str], expected: int, tmp_path: Path
) -> None:
    write(tmp_path, membership, files)
    assert usable_cpus() == expected


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/job", {"job/memory.max": "max", "job/memory.current": "7"}, 1000),
        ("0::/a/b", {**TIGHT, **WIDE}, 300),  # less what is used, but for pages that can go
        ("3:memory:/job\n2:cpu:/job", FIRST, 500),
        ("3:cpu:/job", FIRST, 1000),
        ("3:memory:/job", {**FIRST, f"{OLD}.usage_in_bytes": "900"}, 0),
    ],
)
def test_memory_is_limited_by_what_groups_leave(
    membership: str, files: dict[str, str], expected: float, tmp_path: Path
) -> None:
    write(tmp_path, membership, files)
    assert usable_memory_bytes() == expected


@pytest.mark.parametrize(("num", "parts"), [(0, [(0, 5)]), (1, [(0, 5)]), (2, [(0, 2), (2, 5)])])
def test_work_is_done_in_consecutive_parts(num: int, parts: list[tuple[int, int]]) -> None:
    found = list[tuple[int, int]]()
    in_parts(lambda part: found.append((part.start, part.stop)), 5, num)
    assert sorted(found) == parts


@pytest.mark.parametrize(
    ("passed", "worked", "own", "share"), [(8, 6, 2, 0.5), (8, 6, 7, 0), (8, 20, 0, 1), (0.5, 0.5, 0, 0)]
)
def test_other_programs_take_what_is_worked_beyond_ones_own(
    passed: float, worked: float, own: float, share: float
) -> None:
    seconds = iter([Seconds(100, 50, 25), Seconds(100 + passed, 50 + worked, 25 + own)])
    assert OtherPrograms(lambda: next(seconds)).share() == share


def test_processes_below_this_one_work_for_it_also_once_they_have_ended() -> None:
    """Half a second of one that waits then, and ends."""
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    before, pipe = Seconds.now(), subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        passed, worked, own = (now - begun for now, begun in zip(Seconds.now(), before, strict=True))
        process.communicate(b"\n")
    assert 0.45 < own < passed
    assert 0.45 < worked < passed + 0.1  # in ticks
    assert Seconds.now().own - before.own > 0.45
