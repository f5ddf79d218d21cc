"""File locks: one holder at a time, and none that outlives its process."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from hsdag.ir.errors import SearchError
from hsdag.ir.files import FileLock


def test_the_second_holder_is_told_until_the_first_one_lets_go(tmp_path: Path) -> None:
    first = FileLock(tmp_path / "lock", "busy")
    with pytest.raises(SearchError, match="busy"):
        FileLock(tmp_path / "lock", "busy")
    first.release()
    FileLock(tmp_path / "lock", "busy")


def test_a_lock_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from hsdag.ir.files import FileLock;"
        "kept = FileLock(Path(sys.argv[1]), 'busy'); print(flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(SearchError, match="busy"):
            FileLock(tmp_path / "lock", "busy")
        process.kill()
    FileLock(tmp_path / "lock", "busy")


def test_a_lock_that_is_over_leaves_no_file(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock", "busy"):
        assert (tmp_path / "lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_its_holder_has_just_removed_gives_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(descriptor: int, how: int) -> None:
        (tmp_path / "lock").unlink()
        flock(descriptor, how)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(SearchError, match="busy"):
        FileLock(tmp_path / "lock", "busy")


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, __: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with FileLock(tmp_path / "lock", "busy"), FileLock(tmp_path / "lock", "busy"):
        pass
