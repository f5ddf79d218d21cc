"""Usable processors: affinity within the quotas of control groups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hsdag.runtime.platforms.usable import usable_cpus


def groups(folder: Path, membership: str, files: dict[str, str]) -> int:
    """The processors that are usable under a control group file system of these files."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    (folder / "cgroup").write_text(membership + "\n")
    return usable_cpus(folder / "cgroup", folder)


@pytest.fixture(autouse=True)
def _eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path / "none", tmp_path) == 8
    assert groups(tmp_path, "0::/job", {"job/cpu.max": "max 100000"}) == 8


@pytest.mark.parametrize(("quota", "expected"), [("300000 100000", 3), ("250000 100000", 2), ("50000 100000", 1)])
def test_a_quota_of_version_2_counts_in_whole_processors(tmp_path: Path, quota: str, expected: int) -> None:
    assert groups(tmp_path, "0::/job", {"job/cpu.max": quota}) == expected


def test_the_tightest_group_around_counts(tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "600000 100000"}) == 2


def test_a_container_that_sees_only_its_root_group_is_limited_by_it(tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/not/visible/here", {"cpu.max": "400000 100000"}) == 4


def test_a_quota_of_version_1_counts_for_the_cpu_controller_alone(tmp_path: Path) -> None:
    files = {"cpu,cpuacct/job/cpu.cfs_quota_us": "500000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"}
    assert groups(tmp_path, "3:cpu,cpuacct:/job\n2:memory:/job", files) == 5
    assert groups(tmp_path, "3:cpu,cpuacct:/job", {**files, "cpu,cpuacct/job/cpu.cfs_quota_us": "-1"}) == 8
