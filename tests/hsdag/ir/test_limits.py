"""Limits of documents: their size, and how deep they nest."""

from __future__ import annotations

from pathlib import Path

import pytest

from hsdag.ir.errors import FileFormatError
from hsdag.ir.files import DEEPEST_NESTING, parse_json, read_text


@pytest.mark.parametrize("ends", [("[", "]"), ('{"a":', "}")])
def test_a_document_may_nest_to_the_limit_and_no_deeper(ends: tuple[str, str]) -> None:
    first, last = ends
    assert parse_json(first * DEEPEST_NESTING + "1" + last * DEEPEST_NESTING, "it")
    with pytest.raises(FileFormatError, match=f"it: objects and lists are nested more than {DEEPEST_NESTING} deep"):
        parse_json(first * (DEEPEST_NESTING + 1) + "1" + last * (DEEPEST_NESTING + 1), "it")


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.ir.files.LARGEST_TEXT_BYTES", 10)
    (tmp_path / "fits").write_text("x" * 10)
    (tmp_path / "large").write_text("x" * 11)
    assert read_text(tmp_path / "fits") == "x" * 10
    with pytest.raises(FileFormatError, match="large is larger than 10 bytes"):
        read_text(tmp_path / "large")


def test_a_file_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.ir.files.LARGEST_TEXT_BYTES", 10_000)
    with pytest.raises(FileFormatError, match="/dev/zero is larger than 10000 bytes"):
        read_text(Path("/dev/zero"))


def test_half_of_a_character_is_refused_and_a_whole_one_read() -> None:
    assert parse_json(r'["\ud83d\ude00"]', "it") == ["😀"]
    with pytest.raises(FileFormatError, match=r"it: \\ud83d is half of a character"):
        parse_json(r'{"a": ["\ud83d"]}', "it")


def test_a_message_is_one_line_whatever_names_are_in_it() -> None:
    assert str(FileFormatError("a\nb\u2028c: is missing")) == "a b c: is missing"
