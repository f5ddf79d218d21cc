"""Reports of kept searches: whole, unfinished, and damaged ones."""

from __future__ import annotations

import itertools
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import hsdag
from hsdag.commands.advice import command_of
from hsdag.commands.explorer import how_to_open
from hsdag.commands.report import content_of
from hsdag.commands.simulated_trace import simulated_timeline
from hsdag.ir import SearchError
from hsdag.search.kept_run import KeptRun
from hsdag.search.options import parse_memory
from hsdag.search.result import PlaceResult


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


@pytest.mark.slow
def test_a_report_has_the_figures_of_the_answer(folder: Path, kept_search: PlaceResult) -> None:
    content = content_of(KeptRun.load(folder))
    assert content.sentence == kept_search.sentence
    assert [each.name for each in content.compared] == [row.name for row in kept_search.rows]
    assert [each.median for each in content.compared] == [1e3 * row.median for row in kept_search.rows]
    assert len(content.trials) == kept_search.tally.tried


def test_ops_are_where_the_placement_has_them(folder: Path, kept_search: PlaceResult) -> None:
    placed = content_of(KeptRun.load(folder)).placed
    assert placed is not None
    found = {placed.graph.canonical_names[v]: placed.devices[d] for v, d in enumerate(placed.device.tolist())}
    assert found == kept_search.placement.affinity


@pytest.mark.slow
def test_the_placement_file_stands_for_the_run_beside_it(folder: Path, tmp_path: Path) -> None:
    result = hsdag.report(folder.with_suffix(".json"), tmp_path / "report.html")
    assert result.files == (tmp_path / "report.html",)
    assert result.sentence in result.files[0].read_text().replace("&#39;", "'")


def test_a_search_that_was_killed_still_gives_what_there_is(unfinished: Path, tmp_path: Path) -> None:
    result = hsdag.report(unfinished, tmp_path / "report.html")
    assert "has not come to its end" in result.sentence
    content = content_of(KeptRun.load(unfinished))
    assert content.trials
    assert content.placed is not None
    assert "--resume" in str(content.advice[0].code)


def test_the_advice_to_search_on_keeps_the_limits(unfinished: Path) -> None:
    run = KeptRun.load(unfinished)
    limits = {"pins": (".*=CPU_0",), "memory_bytes": {"CPU_0": 1e9}, "max_difference": 1e-3}
    limited = replace(run, record=run.record.model_copy(update=limits))
    words = shlex.split(str(content_of(limited).advice[0].code))
    given = dict(itertools.pairwise(words))
    assert (given["--pin"], given["--memory"], given["--max-difference"]) == (".*=CPU_0", "CPU_0=1000000000", "0.001")


def test_the_command_that_goes_on_has_the_limits_of_the_search(unfinished: Path) -> None:
    record = KeptRun.load(unfinished).record
    limits = {"memory_bytes": {"CPU_0": 62914560.0}, "pins": ("a b.*=CPU_1",), "max_difference": 0.001}
    more = {"changes": {"chains": "2"}, "reward": "simulated", "data_shapes": ("x[1,8]",)}
    command = command_of(record.model_copy(update=limits | more), "m.xml")
    for option in (
        "--memory CPU_0=62914560",
        "--pin 'a b.*=CPU_1'",
        "--max-difference 0.001",
        "--set chains=2",
        "--reward simulated",
        "--data-shape 'x[1,8]'",
    ):
        assert option in command
    assert parse_memory("CPU_0=62914560") == limits["memory_bytes"]


def test_the_environment_has_the_limits_of_the_search(unfinished: Path) -> None:
    run = KeptRun.load(unfinished)
    limited = replace(run, record=run.record.model_copy(update={"data_shapes": ("x[1,8]", "x[1,9]")}))
    assert content_of(limited).environment["data shape"] == "x[1,8], x[1,9]"


def test_without_data_of_nodes_model_explorer_is_told_of_the_graph_alone() -> None:
    assert how_to_open([Path("m.json")]) == "Open it with model-explorer m.json (pip install hsdag[explorer])."


def test_a_folder_that_is_no_run_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SearchError, match="is no run folder"):
        hsdag.report(tmp_path, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("executor", ["hetero", "work-conserving"])
def test_the_simulated_timeline_ends_when_the_costs_say(folder: Path, tmp_path: Path, executor: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy.run"))
    (copy / "result.json").unlink()
    record = (copy / "run.json").read_text().replace('"executor": "hetero"', f'"executor": "{executor}"')
    (copy / "run.json").write_text(record)
    run, placement = KeptRun.load(copy), KeptRun.load(folder).placement
    assert placement is not None
    assert run.costs is not None
    order = run.graph.position
    names = ["CPU_0" if order[v] < run.graph.num_ops // 2 else "CPU_1" for v in range(run.graph.num_ops)]
    split: dict[str, str] = {}
    for unit in range(run.problem.num_units):  # a unit is where its first op is
        ops = [v for v in range(run.graph.num_ops) if run.problem.units.partition.labels[v] == unit]
        split |= {run.graph.canonical_names[v]: names[min(ops)] for v in ops}
    placement = placement.model_copy(update={"affinity": split, "executor": executor})
    plan = run.plan_of(placement)
    assert plan is not None
    timeline = simulated_timeline(run, placement)
    assert timeline is not None
    assert timeline.simulated
    expected_s = run.costs.latency_s(run.problem.expand(plan.placement)[None])[0]
    assert timeline.end_s == pytest.approx(expected_s, rel=0.25 if executor == "hetero" else 1e-9)
