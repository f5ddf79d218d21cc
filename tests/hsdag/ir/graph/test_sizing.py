"""Sizes of a model with dynamic shapes: from shapes that are known by hand, with and without state."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.base.errors import ModelError
from hsdag.ir.graph.build import fingerprint, graph_of
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.scenario import parse_scenarios
from hsdag.ir.graph.sizing import sized
from tests.hsdag.ir.growing import WIDTH, chain_model, growing_model

ROW_BYTES = 4 * WIDTH


def sizes_in(*texts: str) -> ComputationGraph:
    model = growing_model()
    graph = graph_of(model)
    return sized(graph, model, [scenario.of(model) for scenario in parse_scenarios(texts, None)])


def of_type(graph: ComputationGraph, op_type: str) -> list[int]:
    return [v for v in range(graph.num_ops) if graph.op_types[v] == op_type]


def test_a_state_is_as_long_as_all_inferences_together() -> None:
    graph = sizes_in("1,5>1,2>1,1")
    assert [graph.weight_bytes[v] for v in of_type(graph, "ReadValue")] == [8 * ROW_BYTES] * 2
    assert [graph.output_bytes[v] for v in of_type(graph, "ReadValue")] == [7 * ROW_BYTES] * 2


def test_the_largest_state_and_results_of_all_scenarios_count_and_mean_transfers() -> None:
    graph = sizes_in("1,6@3", "1,2>1,1")
    assert graph.weight_bytes[of_type(graph, "ReadValue")[0]] == 6 * ROW_BYTES
    softmax = of_type(graph, "Softmax")[0]
    assert graph.output_bytes[softmax] == 4 * 6 * 6
    (leaving,) = graph.successors.of(softmax).tolist()
    edge = next(e for e in range(graph.num_edges) if (graph.edge_src[e], graph.edge_dst[e]) == (softmax, leaving))
    assert graph.edge_bytes[edge] == round(0.75 * 4 * 6 * 6 + 0.25 * 4 * 1 * 3)
    product = of_type(graph, "MatMul")[0]
    assert graph.flops[product] == pytest.approx(0.75 * 2 * 6 * 6 * WIDTH + 0.25 * 2 * 3 * WIDTH)


def test_sizes_are_those_of_a_model_with_these_shapes() -> None:
    model, fixed = chain_model(), chain_model()
    fixed.reshape([7, 32])
    found = sized(graph_of(model), model, [parse_scenarios(["7,32"], None)[0].of(model)])
    expected = graph_of(fixed)
    for column in ("flops", "output_bytes", "edge_bytes", "weight_bytes"):
        np.testing.assert_array_equal(getattr(found, column), getattr(expected, column))


def test_sizes_leave_the_fingerprint_and_the_model_as_they_are() -> None:
    model = growing_model()
    before = graph_of(model)
    (scenario,) = parse_scenarios(["1,4>1,1"], None)
    assert (
        fingerprint(sized(before, model, [scenario.of(model)])) == fingerprint(before) == fingerprint(graph_of(model))
    )


def test_shapes_that_the_model_does_not_take_are_told_with_the_scenario() -> None:
    model = growing_model()
    (scenario,) = parse_scenarios(["2,4>3,1"], None)
    with pytest.raises(ModelError, match=r"does not take data_shape input_ids\[2,4\]>input_ids\[3,1\]"):
        sized(graph_of(model), model, [scenario.of(model)])
