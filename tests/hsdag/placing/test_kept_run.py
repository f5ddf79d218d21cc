"""Kept runs: what a search leaves on disk is what it had in memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import hsdag
from hsdag.ir.errors import FileFormatError, SearchError
from hsdag.placing.kept_run import KeptRun
from hsdag.placing.result import PlaceResult, read_result
from hsdag.runtime.costs.hetero_costs import HeteroCosts

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
    assert run.result == placed
    for row in placed.rows:
        assert sum(len(r) for r in run.result.samples[row.name]) == row.runs


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


def test_a_result_of_version_1_is_read_as_one_of_today(run: KeptRun, tmp_path: Path) -> None:
    """Version 1 had the unit in the names of its figures, and the answer apart from the rest."""
    now = run.result
    assert now is not None
    same = ("sentence", "objective", "failures", "turned_down", "search_s", "interrupted", "warnings", "run_folder")
    whole = json.loads(now.model_dump_json())
    rows = [
        {
            **{name: row[name] for name in ("name", "runs", "ci95", "rounds", "submodels", "ops")},
            "median_s": row["median"],
            "p95_s": row["p95"],
            "ratio_to_best_single": row["ratio"],
            "answer": row["is_answer"],
        }
        for row in whole["rows"]
    ]
    old_answer = {
        **{name: whole[name] for name in same},
        "rows": rows,
        "speedup": whole["placement"]["speedup"],
        "difference": whole["verdict"]["difference"],
        "reference": whole["verdict"]["versus"],
        "tolerance": whole["verdict"]["tolerance"],
        "objection": whole["verdict"]["reason"],
        "evaluations": now.tally.tried,
        "failed_evaluations": now.tally.num_failed,
        "evaluation_failures": now.tally.failures,
        "evaluations_by_box": {},
        "simulated_evaluations": now.tally.simulated,
        "held_bytes": whole["weight_bytes"],
        "members": whole["members"],
    }
    kept = ("placement", "model_path", "costs", "timeline", "environment", "budget_s", "finished")
    old = {"format": "hsdag-result", "version": 1, "answer": old_answer, "samples_s": whole["samples"]}
    old |= {name: whole[name] for name in kept}
    path = tmp_path / "result.json"
    path.write_text(json.dumps(old))
    assert read_result(path) == now.model_copy(update={"finalists": {}, "placement_file": None})
    path.write_text(json.dumps({**old, "answer": {**old_answer, "rows": [{**rows[0], "median_s": None}]}}))
    with pytest.raises(FileFormatError, match="value: Input should be a valid number"):
        read_result(path)
    path.write_text(json.dumps({**old, "answer": {"sentence": "x"}}))
    with pytest.raises(FileFormatError, match="answer: not that of a search"):
        read_result(path)
