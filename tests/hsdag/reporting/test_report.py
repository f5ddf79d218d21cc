"""Reports of kept searches: whole, unfinished, and damaged ones."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

import hsdag
from hsdag.placing.result import PlaceResult
from hsdag.placing.run_folder import RunFolder
from hsdag.reporting.graph import PlacedGraph
from hsdag.reporting.report import advice_of, environment_of, sentence_of
from hsdag.search.options import command_words


@pytest.fixture
def folder(kept_search: PlaceResult) -> Path:
    assert kept_search.run_folder is not None
    return kept_search.run_folder


@pytest.fixture
def unfinished(folder: Path, tmp_path: Path) -> Path:
    """The same search, had it been killed before the end."""
    copy = Path(shutil.copytree(folder, tmp_path / "killed.run"))
    (copy / "result.json").unlink()
    return copy


def test_ops_are_where_the_placement_has_them(folder: Path, kept_search: PlaceResult) -> None:
    placed = PlacedGraph.of(RunFolder.load(folder))
    found = {placed.graph.canonical_names[v]: placed.devices[d] for v, d in enumerate(placed.device.tolist())}
    assert found == kept_search.placement.affinity


def test_the_placement_file_stands_for_the_run_beside_it(folder: Path, tmp_path: Path) -> None:
    result = hsdag.report(folder.with_suffix(".json"), tmp_path / "report.html")
    assert result.files == (tmp_path / "report.html",)
    assert result.sentence in result.files[0].read_text().replace("&#39;", "'")


def test_a_search_that_was_killed_still_gives_what_there_is(unfinished: Path) -> None:
    kept = RunFolder.load(unfinished)
    assert "has not come to its end" in sentence_of(kept)
    assert "resume" in advice_of(kept)[0].text


def test_arguments_are_written_as_at_the_command_line() -> None:
    given = {
        "devices": ["CPU", "GPU.0"], "settings": {"chains": 2}, "pins": ("a b.*=CPU_1", "c=CPU_0"), "fresh": True,
        "shape": {"x": (1, 8)}, "max_difference": 0.001, "seed": 0, "tokens": None,
    }  # fmt: skip
    defaults = dict.fromkeys(given) | {"pins": (), "fresh": False, "seed": 0}
    assert shlex.join(command_words(given, defaults) or ()) == (
        "--devices CPU,GPU.0 --set chains=2 --pin 'a b.*=CPU_1' --pin c=CPU_0 --fresh --shape 'x[1,8]' "
        "--max-difference 0.001"
    )
    assert command_words({"start": object()}, {"start": None}) is None


def test_the_environment_has_the_limits_of_the_search(unfinished: Path) -> None:
    run = RunFolder.load(unfinished)
    limited = RunFolder(run.path, run.record.model_copy(update={"data_shapes": ("x[1,8]", "x[1,9]")}))
    assert environment_of(limited)["data shapes"] == "x[1,8], x[1,9]"
