"""Explaining what a search kept, by its run folder, its model, and at the command line; divided and copied models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hsdag import explain
from hsdag.base.errors import OptionError, SearchError
from hsdag.cli.app import run
from hsdag.commands.place.result import PlaceResult
from hsdag.commands.shard import divide
from hsdag.ir.graph.build import read_graph
from hsdag.ir.placement.placement import CopyRecord, Placement
from tests.placements import halves


@pytest.fixture(scope="module")
def kept(kept_search: PlaceResult) -> Path:
    """The placement file of a short search, its run beside it."""
    assert kept_search.run_folder is not None
    return kept_search.run_folder.with_suffix(".json")


@pytest.fixture(scope="module")
def split(kept: Path, tiny_resnet: Path) -> Placement:
    """The same model in two halves."""
    return halves(read_graph(tiny_resnet), Placement.load(kept).devices)


def test_the_run_beside_a_placement_explains_it_in_the_words_of_the_search(
    kept: Path, kept_search: PlaceResult, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", str(kept), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    answer = Placement.load(kept)
    assert document["value"]["measured"] == (answer.latency and answer.latency.median_s)
    assert document["ops"][answer.used_devices[0]] > 0
    has_measured = any(row.name.startswith("placement") for row in kept_search.rows)  # if there was time
    assert document["next_best"]["measured"] or not has_measured
    assert document["sentences"][:2] == list(kept_search.lines[:2])


@pytest.mark.slow
def test_a_model_is_profiled_where_there_is_no_run(split: Placement, tiny_resnet: Path) -> None:
    found = explain(split, model=tiny_resnet)
    assert found.value.simulated is not None
    assert not found.value.calibrated
    assert sum(len(gain.ops) for gain in found.gains) == read_graph(tiny_resnet).num_ops


def test_a_model_is_profiled_with_the_sizes_that_the_placement_is_for(split: Placement, tiny_resnet: Path) -> None:
    with pytest.raises(OptionError, match="a weight is a number above 0"):
        explain(split.model_copy(update={"data_shapes": ("[1,3,32,32]@0",)}), model=tiny_resnet)


def test_any_placement_of_the_model_is_explained_by_the_costs_of_a_run_in_tables_and_sentences(
    kept: Path, split: Placement, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = explain(split, run=kept.with_suffix(".run"))
    assert sum(count > 0 for count in found.ops.values()) == 2
    assert {limit.kind for limit in found.limits} >= {"work", "transfers"}
    assert sum(len(gain.ops) for gain in found.gains) > 3
    assert found.bound is not None
    split.save(tmp_path / "split.json")
    assert run(["explain", str(tmp_path / "split.json"), "--run", str(kept.with_suffix(".run")), "--top", "2"]) == 0
    text = capsys.readouterr().out
    assert "SIMULATED: what ops gain from where they are" in text
    assert "would cost most" in text


def test_a_placement_without_a_run_or_a_model_is_a_users_error(
    kept: Path, split: Placement, kept_search: PlaceResult, tmp_path: Path
) -> None:
    with pytest.raises(SearchError, match="is no run folder"):
        explain(kept_search, run=tmp_path)
    with pytest.raises(OptionError, match="a run or a model"):
        explain(split)
    with pytest.raises(OptionError, match="not from both"):
        explain(kept, run=tmp_path, model=kept)
    with pytest.raises(OptionError, match="shape is for the model"):
        explain(kept, shape="1,3,64,64")
    split.save(tmp_path / "alone.json")
    with pytest.raises(SearchError, match=r"there is no run folder .*alone.run beside .*alone.json: .* takes --model"):
        explain(tmp_path / "alone.json")


@pytest.fixture(scope="module")
def sharded(tiny_resnet: Path) -> Placement:
    return divide(tiny_resnet, None, 2, "3,1", ["rows"], {})[1]


def test_regions_are_told_with_their_shares_and_what_they_take_whole_and_divided(
    tiny_resnet: Path, sharded: Placement, kept_search: PlaceResult
) -> None:
    found, graph = explain(sharded, run=kept_search.run_folder), read_graph(tiny_resnet)
    assert sum(each.num_ops for each in found.regions) == sum(len(each.ops) for each in sharded.shards or ())
    assert found.ops["CPU_0"] == graph.num_ops  # by hand all that is whole is on the first device
    assert 0 < found.ops["CPU_1"] < graph.num_ops
    taken = [each.whole_s or 0.0 for each in found.regions]
    assert taken == sorted(taken, reverse=True)
    assert f"ops in {len(taken)} regions are divided." in found.sentences[1]


def test_copies_and_a_divided_one_are_told_with_their_requests(sharded: Placement, kept_search: PlaceResult) -> None:
    divided = CopyRecord(affinity=sharded.affinity, shards=sharded.shards, requests=3)
    copies = (CopyRecord(device="CPU", requests=1), divided)
    changes: dict[str, object] = {"shards": None, "affinity": {}, "copies": copies, "objective": "throughput"}
    found = explain(sharded.model_copy(update=changes), run=kept_search.run_folder)
    assert found.copies == {"CPU": 1, "CPU_0 and CPU_1": 3}
    assert found.ops == explain(sharded, run=kept_search.run_folder).ops
    assert "on CPU, 1 at a time, and on CPU_0 and CPU_1, 3 at a time" in found.sentences[1]
    assert len(found.regions) == len(sharded.shards or ())
