"""Explaining what a search kept: by its run folder, by its model, and at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hsdag
from hsdag import explain
from hsdag.cli.app import run
from hsdag.ir.errors import OptionError, SearchError
from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.coarsen import placement_units
from hsdag.ir.placement.placement import Placement
from hsdag.placing.by_hand import divide
from hsdag.placing.result import PlaceResult


@pytest.fixture(scope="module")
def kept(kept_search: PlaceResult) -> Path:
    """The placement file of a short search, its run beside it."""
    assert kept_search.run_folder is not None
    return kept_search.run_folder.with_suffix(".json")


@pytest.fixture(scope="module")
def split(kept: Path, tiny_resnet: Path) -> Placement:
    """The same model in two halves."""
    graph, answer = read_graph(tiny_resnet), Placement.load(kept)
    units = placement_units(graph).partition.labels
    devices = [f"CPU_{int(unit > units.max() // 2)}" for unit in units]
    return answer.model_copy(
        update={"affinity": dict(zip(graph.canonical_names, devices, strict=True)), "executor": "hetero"}
    )


def test_the_run_beside_a_placement_explains_it_in_the_words_of_the_search(
    kept: Path, kept_search: PlaceResult, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", str(kept), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    answer = Placement.load(kept)
    assert document["value"]["measured"] == (answer.latency and answer.latency.median_s)
    assert document["ops"][answer.used_devices[0]] > 0
    assert document["next_best"]["measured"] is True
    assert document["sentences"][:2] == list(kept_search.lines[:2])


@pytest.mark.slow
def test_a_model_is_profiled_where_there_is_no_run(split: Placement, tiny_resnet: Path) -> None:
    found = hsdag.explain(split, model=tiny_resnet)
    assert found.value.simulated is not None
    assert not found.value.calibrated
    assert sum(len(gain.ops) for gain in found.gains) == read_graph(tiny_resnet).num_ops


def test_a_model_is_profiled_with_the_sizes_that_the_placement_is_for(split: Placement, tiny_resnet: Path) -> None:
    with pytest.raises(OptionError, match="a weight is a number above 0"):
        hsdag.explain(split.model_copy(update={"data_shapes": ("[1,3,32,32]@0",)}), model=tiny_resnet)


def test_any_placement_of_the_model_is_explained_by_the_costs_of_a_run_in_tables_and_sentences(
    kept: Path, split: Placement, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = hsdag.explain(split, run=kept.with_suffix(".run"))
    assert sum(count > 0 for count in found.ops.values()) == 2
    assert {limit.kind for limit in found.limits} >= {"work", "transfers"}
    assert sum(len(gain.ops) for gain in found.gains) > 3
    assert found.bound is not None
    split.save(tmp_path / "split.json")
    assert run(["explain", str(tmp_path / "split.json"), "--run", str(kept.with_suffix(".run")), "--top", "2"]) == 0
    text = capsys.readouterr().out
    assert "SIMULATED: what units gain from where they are" in text
    assert "gains most from where it is" in text


def test_a_placement_without_a_run_or_a_model_is_a_users_error(kept: Path, split: Placement, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a run or a model"):
        hsdag.explain(split)
    with pytest.raises(OptionError, match="not from both"):
        hsdag.explain(kept, run=tmp_path, model=kept)
    with pytest.raises(OptionError, match="--shape is for the model"):
        hsdag.explain(kept, shape="1,3,64,64")
    split.save(tmp_path / "alone.json")
    with pytest.raises(SearchError, match="no run folder"):
        hsdag.explain(tmp_path / "alone.json")


def test_a_divided_model_is_explained_by_the_costs_of_a_run(tiny_resnet: Path, kept_search: PlaceResult) -> None:
    _, placement = divide(tiny_resnet, None, 2, "0.75,0.25", ["rows"], {})
    found = explain(placement, run=kept_search.run_folder)
    assert len(found.regions) == len(placement.shards or ()) > 0
    assert all(each.shares["CPU_0"] > each.shares["CPU_1"] for each in found.regions if each.scheme == "rows")
    assert all(each.divided_s for each in found.regions)
