"""The JSON schemas of hsdag's files take what hsdag writes and nothing else."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from hsdag.commands.place.result import PlaceResult
from hsdag.commands.place.run_folder import RunFolder, RunRecord
from hsdag.commands.sources import build_problem
from hsdag.runtime.platforms.platform import list_platforms
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem_file import problem_to_json
from hsdag.schemas import FILES, file_schema, write_schemas
from hsdag.search.evaluators.base import Score
from hsdag.search.evaluators.recording import Event

RUN_FILES = ("run", "graph", "profile", "result")


@pytest.fixture(scope="module")
def written(tiny_resnet: Path, kept_search: PlaceResult, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A document of every kind, as hsdag writes it."""
    folder, kept = tmp_path_factory.mktemp("files"), kept_search.run_folder
    assert kept is not None
    kept_search.save(folder / "p")
    documents = {name: json.loads((kept / f"{name}.json").read_text()) for name in RUN_FILES}
    record = RunRecord.model_validate(documents["run"])
    run, plan = RunFolder.create(folder / "b", record), Plan(np.zeros(record.num_units, dtype=np.int64))
    run.append(Event(plan, Score(0.25), 1.5))
    run.keep([plan])
    documents |= {"event": json.loads(run.events_path.read_text())}
    documents |= {"candidate": json.loads(run.candidates_path.read_text())}
    documents["placement"] = json.loads((folder / "p").read_text())
    documents["problem"] = json.loads(problem_to_json(build_problem("ptb[seed=0]")))
    platform = resources.files("hsdag.runtime.platforms").joinpath(f"{list_platforms()[0]}.toml")
    return documents | {"platform": tomllib.loads(platform.read_text())}


def test_the_documentation_links_to_the_schema_of_every_file(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "reference.md").read_text()
    write_schemas(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(re.findall(r"\(schemas/(\w+\.json)\)", page))
    assert json.loads((tmp_path / "placement.json").read_text()) == file_schema("placement")


@pytest.mark.parametrize("kind", FILES)
def test_a_schema_takes_what_hsdag_writes_and_refuses_an_unknown_key(kind: str, written: dict[str, Any]) -> None:
    jsonschema.validate(written[kind], file_schema(kind), jsonschema.Draft202012Validator)
    with pytest.raises(jsonschema.ValidationError, match="'colour' was unexpected"):
        jsonschema.validate({**written[kind], "colour": "red"}, file_schema(kind))
    for mark in {"format", "version"} & set(written[kind]):
        with pytest.raises(jsonschema.ValidationError, match=f"'{mark}' is a required property"):
            jsonschema.validate({k: v for k, v in written[kind].items() if k != mark}, file_schema(kind))
