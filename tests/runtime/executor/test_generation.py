"""Greedy generation by language models that are split over two CPU devices, for every precision of their weights."""

from __future__ import annotations

import openvino as ov
import pytest

import hsdag
from hsdag.ir.graph.build import graph_of
from hsdag.models import StatefulSpec, list_language_models
from tests.stateful import generate, placement_of, split_after, unsplit

TINY = [spec for spec in list_language_models() if spec.is_tiny]


@pytest.mark.slow
@pytest.mark.parametrize("spec", TINY, ids=lambda spec: spec.name)
def test_a_split_between_layers_generates_64_tokens_as_the_whole_model_does(spec: StatefulSpec) -> None:
    model, core = spec.build(), ov.Core()
    placement = placement_of(model, split_after(graph_of(model), "model.layers.1/output"))
    expected = unsplit(model)
    assert len(set(expected.tokens)) > 20
    under_hetero = placement.compile(core, model)
    assert under_hetero.get_property("HETERO_NUMBER_OF_SUBMODELS") == 2
    request = under_hetero.create_infer_request()
    assert generate(request) == expected
    assert len(request.query_state()) == 2 * spec.sizes.layers
    with hsdag.compile_work_conserving(model, placement, core) as side_by_side:
        assert generate(side_by_side.create_infer_request()) == expected
