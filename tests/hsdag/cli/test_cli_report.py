"""``hsdag report`` at the command line: the files it names are there, mistakes are one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hsdag.cli.app import run
from hsdag.placing.result import PlaceResult


@pytest.mark.slow
def test_json_names_every_file_that_was_written(
    kept_search: PlaceResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    assert run(["report", str(kept_search.run_folder), "-o", str(page), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["files"] == [str(page)]
    assert document["sentence"] == kept_search.sentence
