"""Models with dynamic shapes from end to end: placed, profiled and measured on the shapes of typical data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hsdag import place
from hsdag.benchmarking import bench
from hsdag.ir.placement.placement import Placement
from tests.hsdag.commands import answer
from tests.hsdag.ir.growing import chain_model, saved

SHAPES = ("64,32", "1,32@3")


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(chain_model(), tmp_path_factory.mktemp("chain"))


@pytest.fixture(scope="module")
def placement(chain: Path) -> Placement:
    found = place(
        chain, partition_cpu=2, method="sa", reward="measured", budget="1s", max_evaluations=3, data_shape=SHAPES
    )
    return found.placement


def test_a_placement_of_a_dynamic_model_holds_its_scenarios_and_fits_the_model_as_it_is(placement: Placement) -> None:
    assert placement.data_shapes == ("x[64,32]", "x[1,32]@3")
    assert placement.model.input_shapes == {}
    assert Placement.from_json(placement.to_json()) == placement
    placement.apply(chain_model())


def test_bench_measures_a_placement_on_its_scenarios_each_by_itself(chain: Path, placement: Placement) -> None:
    found = bench(chain, {"placed": placement}, ["CPU"], time="0.4s")
    assert [each.data_shape for each in found.scenarios] == list(placement.data_shapes or ())
    for row in found.rows:
        assert len(row.scenario_medians_s) == 2
        assert None not in row.scenario_medians_s
    assert found.scenarios[1].weight == 3.0


def test_profile_writes_costs_of_a_model_with_dynamic_shapes(
    chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = tmp_path / "costs.json"
    words = ("profile", chain, "-o", costs, "-d", "CPU", "--data-shape", SHAPES[0], "--data-shape", SHAPES[1])
    assert answer(capsys, *words)["devices"][0]["latency_s"] > 0
    products = [op for op in json.loads(costs.read_text())["ops"] if op["type"] == "MatMul"]
    assert {op["output_bytes"] for op in products} == {4 * 32 * 64}
