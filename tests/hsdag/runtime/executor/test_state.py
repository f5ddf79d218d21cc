"""Language models with state under the work-conserving executor: each part keeps the variables of its layers."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import hsdag
from hsdag.base.errors import ExecutionError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.placement.placement import Placement
from hsdag.runtime.executor import openvino_backend
from hsdag.runtime.executor.cut import MODEL_INPUT
from hsdag.runtime.executor.merging import plan_cut
from hsdag.runtime.executor.requests import WorkConservingModel
from tests.stateful import Generated, generate, placement_of, split_after, unsplit

AFTER_LAYER_1 = "model.layers.1/output"


@pytest.fixture(scope="module")
def expected(llama: ov.Model) -> Generated:
    return unsplit(llama)


@pytest.fixture(scope="module")
def halves(llama: ov.Model, llama_graph: ComputationGraph) -> WorkConservingModel:
    return compiled(llama, placement_of(llama, split_after(llama_graph, AFTER_LAYER_1), executor="work-conserving"))


def compiled(model: ov.Model, placement: Placement) -> WorkConservingModel:
    return hsdag.compile_work_conserving(model, placement, ov.Core())


def test_of_a_split_between_layers_nothing_but_the_residual_stream_is_handed_on(halves: WorkConservingModel) -> None:
    first, second = halves.cut.subgraphs
    assert {tensor.source for tensor in first.inputs} == {MODEL_INPUT}
    assert [halves.cut.graph.op_names[t.op] for t in second.inputs if t.source != MODEL_INPUT] == [AFTER_LAYER_1]


def test_requests_remember_apart_and_forget_when_told(halves: WorkConservingModel, expected: Generated) -> None:
    first, second = halves.create_infer_request(), halves.create_infer_request()
    assert generate(first, 5).tokens == expected.tokens[:5]
    kept = {state.name: state.state.shape for state in first.query_state()}
    assert generate(second, 9).tokens == expected.tokens[:9]
    assert {state.name: state.state.shape for state in first.query_state()} == kept
    assert len(kept) == 8
    assert set(map(tuple, kept.values())) == {(1, 2, 5 + 4, 16)}
    first.reset_state()
    assert generate(first, 3).tokens == expected.tokens[:3]


def test_calls_share_one_request_whose_state_the_model_resets(halves: WorkConservingModel) -> None:
    inputs = [np.array([[3]]), np.ones((1, 1), np.int64), np.zeros((1, 1), np.int64), np.zeros(1, np.int32)]
    before = halves(inputs)[0]
    assert {state.state.shape[2] for state in halves.query_state()} == {1}
    halves.reset_state()
    np.testing.assert_array_equal(halves(inputs)[0], before)


@pytest.mark.parametrize("seed", range(2))
def test_wherever_sets_lie_no_part_divides_a_variable(llama_graph: ComputationGraph, seed: int) -> None:
    graph, sets = llama_graph, colocate(llama_graph).sets
    device = np.random.default_rng(seed).integers(2, size=sets.num_groups)[sets.labels]
    for part in plan_cut(graph, device, 2).cut.subgraphs:
        kinds = [(graph.variables[v], graph.op_types[v]) for v in part.ops if graph.variables[v]]
        assert {name for name, kind in kinds if kind == "ReadValue"} == {n for n, kind in kinds if kind == "Assign"}


def test_parts_with_state_never_run_a_second_time_where_an_inference_may_have_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What runs in the calling thread is run again where it leaves no mark, which would change state twice."""

    def infer_without_a_mark(request: ov.InferRequest) -> None:
        request.infer()
        request.get_output_tensor(len(request.model_outputs) - 1).data[:] = 0.0

    monkeypatch.setattr(openvino_backend, "infer_unchecked", infer_without_a_mark)
    x = op.parameter([1], np.float32, name="x")
    total = op.add(op.read_value(op.constant(np.zeros(1, np.float32)), "count", np.float32, [1]), x)
    model = ov.Model([op.result(op.relu(total, name="relu"))], [op.assign(total, "count")], [x], "counter")
    devices = [int(kind in ("Relu", "Result")) for kind in graph_of(model).op_types]
    request = compiled(model, placement_of(model, devices)).create_infer_request()
    assert [float(request.infer([np.ones(1, np.float32)])[0][0]) for _ in range(3)] == [1.0, 2.0, 3.0]


def test_after_an_inference_that_failed_half_way_state_must_be_reset(
    halves: WorkConservingModel, expected: Generated
) -> None:
    request = halves.create_infer_request()
    good = [np.array([[3, 4]]), np.ones((1, 2), np.int64), np.arange(2)[None], np.zeros(1, np.int32)]
    with pytest.raises(ExecutionError, match="beam idx batch: 3 is not equal to batch of state: 1"):
        request.infer([*good[:3], np.zeros(3, np.int32)])  # beams of three sequences
    with pytest.raises(ExecutionError, match=r"variables of its parts no longer belong together: call reset_state\(\)"):
        request.infer(good)
    assert generate(request, 4).tokens == expected.tokens[:4]
