"""Kept runs: what a search leaves on disk is what it had in memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import hsdag
from hsdag.commands.outcome import PlaceResult
from hsdag.ir import FileFormatError, SearchError
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.search.kept_run import KeptRun

pytestmark = pytest.mark.usefixtures("short_comparisons")


@pytest.fixture(scope="module")
def placed(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory, short_comparisons: None) -> PlaceResult:
    """A search that measured a few placements, its run beside the placement file."""
    folder = tmp_path_factory.mktemp("kept")
    result = hsdag.place(
        tiny_bert,
        partition_cpu=2,
        method="mincut",
        budget="8s",
        max_evaluations=5,
        run_folder=folder / "bert.placement.run",
    )
    result.save(folder / "bert.placement.json")
    return result


@pytest.fixture
def run(placed: PlaceResult) -> KeptRun:
    assert placed.run_folder is not None
    return KeptRun.load(placed.run_folder)


@pytest.mark.slow
def test_the_answer_and_its_samples_are_kept(run: KeptRun, placed: PlaceResult) -> None:
    assert run.result is not None
    assert run.placement == placed.placement
    assert run.answer == json.loads(json.dumps(placed.document()))
    for row in placed.rows:
        assert sum(len(r) for r in run.result.samples_s[row.name]) == row.runs


def test_the_problem_is_rebuilt_without_devices(run: KeptRun) -> None:
    assert run.problem.num_units == run.record.num_units
    assert run.problem.devices == ("CPU_0", "CPU_1")
    measured = [event for event in run.events if event.score.failure is None]
    assert all(run.problem.is_legal(event.plan.placement) for event in measured)


def test_costs_are_those_that_measurements_made_of_the_profile(run: KeptRun) -> None:
    assert isinstance(run.costs, HeteroCosts)
    assert run.profile is not None
    assert run.result is not None
    assert run.result.costs is not None
    np.testing.assert_array_equal(run.costs.costs.launch_s, run.result.costs.launch_s)
    assert run.costs.costs.time_s.shape == (run.graph.num_ops, 2)


def test_a_measured_plan_is_the_plan_of_its_placement(run: KeptRun) -> None:
    plan, problem = run.events[-1].plan, run.problem
    assert run.placement is not None
    devices = [problem.devices[d] for d in problem.expand(plan.placement).tolist()]
    written = run.placement.model_copy(update={"affinity": dict(zip(run.graph.canonical_names, devices, strict=True))})
    assert run.plan_of(written) == plan.unordered


def test_the_run_beside_a_placement_is_found(run: KeptRun, tmp_path: Path) -> None:
    assert KeptRun.beside(run.path.with_suffix(".json")).path == run.path
    with pytest.raises(SearchError, match=r"no run folder .* lies beside"):
        KeptRun.beside(tmp_path / "other.placement.json")


def test_a_run_that_did_not_end_is_read_and_left_as_it_is(run: KeptRun, tmp_path: Path) -> None:
    copy = shutil.copytree(run.path, tmp_path / "copy")
    (copy / "result.json").unlink()
    events = copy / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-3])
    content = events.read_bytes()
    found = KeptRun.load(copy)
    assert (found.result, len(found.events)) == (None, len(run.events) - 1)
    assert events.read_bytes() == content


def test_a_folder_that_holds_no_search_and_one_of_another_model_are_named(run: KeptRun, tmp_path: Path) -> None:
    with pytest.raises(SearchError, match="is no run folder"):
        KeptRun.load(tmp_path)
    copy = shutil.copytree(run.path, tmp_path / "copy")
    text = (copy / "run.json").read_text()
    (copy / "run.json").write_text(text.replace(f'"num_units": {run.record.num_units}', '"num_units": 1'))
    (copy / "events.jsonl").unlink()
    with pytest.raises(FileFormatError, match=r"placement units, but run\.json was about 1"):
        _ = KeptRun.load(copy).problem
