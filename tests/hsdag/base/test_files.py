"""Files: limits of what is read, what is written as a whole or not at all, and locks with one holder at a time."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hsdag.base.errors import FileFormatError, OutputError, SearchError
from hsdag.base.files import FileLock, new_files, new_folder, parse_json, read_text, write_atomically


@pytest.mark.parametrize(("first", "last"), [("[", "]"), ('{"a":', "}")])
def test_a_document_may_nest_to_the_limit_and_no_deeper(first: str, last: str) -> None:
    assert parse_json(first * 200 + "1" + last * 200, "it")
    with pytest.raises(FileFormatError, match=r"it: not JSON .recursion limit exceeded"):
        parse_json(first * 201 + "1" + last * 201, "it")


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.base.files.LARGEST_TEXT_BYTES", 10)
    (tmp_path / "file").write_text("x" * 10)
    assert read_text(tmp_path / "file") == "x" * 10
    for large in (tmp_path / "file", Path("/dev/zero")):
        (tmp_path / "file").write_text("x" * 11)
        with pytest.raises(FileFormatError, match=f"{large} is larger than 10 bytes"):
            read_text(large)


def test_half_of_a_character_is_refused_and_a_whole_one_read() -> None:
    assert parse_json(r'["\ud83d\ude00"]', "it") == ["😀"]
    with pytest.raises(FileFormatError, match=r"it: not JSON .*hex escape"):
        parse_json(r'{"a": ["\ud83d"]}', "it")


def test_a_message_is_one_line_whatever_names_are_in_it() -> None:
    assert str(FileFormatError("a\nb\u2028c: is missing")) == "a b c: is missing"


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in (b"first", b"second"):
        write_atomically(tmp_path / "f", content)
        assert [path.read_bytes() for path in tmp_path.iterdir()] == [content]

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutputError, match="f cannot be written: No space left"):
        write_atomically(tmp_path / "f", b"new")
    for make in (new_files, new_folder):
        with pytest.raises(OutputError, match="new cannot be written: No space left"), make(tmp_path / "new") as folder:
            (folder / "inside").write_text("")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"second"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: folder / "absent" / "f",
        lambda folder: (folder / "f").mkdir() or folder / "f",
        lambda folder: (folder / "file").write_text("") * 0 or folder / "file" / "f",
    ],
    ids=["folder-missing", "target-is-folder", "parent-is-file"],
)
def test_a_place_that_cannot_be_written_is_an_output_error(tmp_path: Path, spoil: Callable[[Path], Path]) -> None:
    path = spoil(tmp_path)
    with pytest.raises(OutputError, match="cannot be written: "):
        write_atomically(path, b"x")
    with pytest.raises(OutputError, match="cannot be written: "):
        FileLock(path, "busy")


def test_a_new_folder_may_replace_an_empty_one_and_nothing_else(tmp_path: Path) -> None:
    for name in ("none", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with new_folder(tmp_path / name) as folder:
            (folder / "inside").write_text("")
        assert [path.name for path in (tmp_path / name).iterdir()] == ["inside"]
    (tmp_path / "file").write_text("")
    for name in ("file", "empty"):
        with pytest.raises(OutputError, match="is there already, and is no empty folder"), new_folder(tmp_path / name):
            pass


def test_the_file_that_is_asked_for_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved, real = list[str](), Path.replace

    def replace(path: Path, target: Path) -> Path:
        moved.append(path.name)
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    with new_files(tmp_path / "m.xml") as folder:
        for name in ("m.bin", "m.xml", "z"):
            (folder / name).write_text("")
    assert sorted(moved[:2]) == ["m.bin", "z"]
    assert moved[2] == "m.xml"


def test_the_second_holder_of_a_lock_is_told_until_the_first_one_lets_go(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock", "busy"), pytest.raises(SearchError, match="busy"):
        FileLock(tmp_path / "lock", "busy")
    assert list(tmp_path.iterdir()) == []
    FileLock(tmp_path / "lock", "busy").release()
    FileLock(tmp_path / "lock", "busy")


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
