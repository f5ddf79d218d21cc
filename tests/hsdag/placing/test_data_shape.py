"""Models with dynamic shapes from end to end: placed, profiled and measured on the shapes of typical data."""

from __future__ import annotations

from pathlib import Path

import pytest

from hsdag import place
from hsdag.ir.placement.placement import Placement
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
