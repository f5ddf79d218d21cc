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


def test_files_for_model_explorer_speak_of_the_same_nodes(
    kept_search: PlaceResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "explorer"
    assert run(["report", str(kept_search.run_folder), "--explorer", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sorted(document["files"]) == sorted(map(str, folder.iterdir()))
    assert f"model-explorer {document['files'][0]} --node_data_paths {folder}/device.json," in document["notes"][0]
    ([graph], *data) = (json.loads(Path(path).read_text()) for path in document["files"])
    ids = {node["id"] for node in graph["nodes"]}
    placement = kept_search.placement
    devices = {placement.name_of(op): device for op, device in placement.affinity.items()}
    assert {key: result["value"] for key, result in data[0]["results"].items()} == devices
    assert set(devices) == ids
    assert all(set(each["results"]) <= ids for each in data)
    assert {path.stem.split("_")[0] for path in folder.iterdir()} >= {"device", "ms", "transfers"}
