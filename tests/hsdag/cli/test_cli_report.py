"""``hsdag report`` at the command line: the files it names are there, mistakes are one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hsdag.cli.app import run
from hsdag.commands.outcome import PlaceResult


def test_json_names_every_file_that_was_written(
    kept_search: PlaceResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, figures = tmp_path / "report.html", tmp_path / "figures"
    assert run(["report", str(kept_search.run_folder), "-o", str(page), "--figures", str(figures), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sorted(document["files"]) == sorted(map(str, [page, *figures.iterdir()]))
    assert document["sentence"] == kept_search.sentence


def test_a_file_that_is_no_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(tmp_path / "nothing.placement.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_is_no_file_to_write(
    kept_search: PlaceResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(kept_search.run_folder), "-o", str(tmp_path)]) == 2
    assert "is a folder; name the file to write" in capsys.readouterr().err
