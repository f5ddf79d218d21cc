"""Expressions in torch: sharded workloads compute what the NumPy interpreter computes, op by op and as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hsdag.evaluators.torch.workload_graph import TORCH_ELEMENTS, build_expression, input_part
from hsdag.ir.errors import FileFormatError
from hsdag.models import Expression, Workload
from hsdag.models.sharded_workloads import (
    ChainSizes,
    FeedForwardSizes,
    LlamaSizes,
    chainmm,
    ffnn,
    llama_block,
    llama_layer,
)
from hsdag.models.workload_numpy import execute, random_inputs

SMALL = LlamaSizes(tokens=8, width=32, heads=4, hidden=48, vocabulary=32)
WORKLOADS: dict[str, tuple[Workload, float]] = {  # with a tolerance: Llama runs in f16
    "chainmm": (chainmm(4, ChainSizes(size=8)), 1e-5),
    "ffnn": (ffnn(4, FeedForwardSizes(batch=32, width=6, hidden=16)), 1e-5),
    "llama-block": (llama_block(4, SMALL), 1e-2),
    "llama-layer": (llama_layer(4, SMALL), 1e-2),
}


def _run(workload: Workload, inputs: dict[str, NDArray[Any]], device: str = "cpu") -> list[torch.Tensor]:
    """Every op's value; each must have the declared shape and element type."""
    graph = workload.graph
    values = [torch.zeros(())] * graph.num_ops
    for v in graph.topological_order.tolist():
        part, sources = input_part(workload.expressions[v]), graph.predecessors.of(v).tolist()
        dtype = TORCH_ELEMENTS[graph.element_types[v]]
        if part is not None:
            values[v] = (
                torch.from_numpy(inputs[part.tensor][tuple(slice(*ends) for ends in part.ranges)]).to(dtype).to(device)
            )
        else:
            build = build_expression(workload.expressions[v], len(sources), device)
            values[v] = build([values[u] for u in sources])
        assert (tuple(values[v].shape), values[v].dtype) == (graph.shape_of(v), dtype), workload.expressions[v]
    return values


def _joined(x: Expression | int, values: list[torch.Tensor]) -> torch.Tensor:
    if isinstance(x, int):
        return values[x]
    places = x.leaves
    text = str(x.relabelled({op: port for port, op in enumerate(places)}))
    return build_expression(text, len(places))([values[op] for op in places])


def _inputs(name: str) -> dict[str, NDArray[Any]]:
    inputs = random_inputs(WORKLOADS[name][0])
    if name == "llama-block":
        inputs["frequencies"] = np.exp(1j * inputs["frequencies"])
    return inputs


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_computes_what_numpy_computes(name: str) -> None:
    workload, tolerance = WORKLOADS[name]
    values, expected = _run(workload, _inputs(name)), execute(workload, _inputs(name))
    for output, x in workload.outputs.items():
        got = _joined(x, values).double().numpy()
        assert np.abs(got - expected[output]).max() <= tolerance * np.abs(expected[output]).max()


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_runs_without_ever_reading_a_value(name: str) -> None:
    """Meta tensors have shapes and no contents."""
    assert {x.device.type for x in _run(WORKLOADS[name][0], _inputs(name), "meta")} == {"meta"}


def test_causal_mask_hides_what_comes_later() -> None:
    mask = build_expression("causal:rows=2,columns=4,first_row=1", 0)([])
    assert torch.isneginf(mask).tolist() == [[False, False, True, True], [False, False, False, True]]


def test_causal_mask_inside_an_expression_lies_where_the_inputs_do() -> None:
    masked = build_expression("add(%0,causal:rows=2,columns=2,first_row=0)", 1)
    assert masked([torch.zeros(2, 2, device="meta")]).device.type == "meta"
    assert torch.isneginf(masked([torch.zeros(2, 2)])).tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("affine:factor=2.0,offset=1.0", [[3.0, 5.0], [7.0, 9.0]]),
        ("sub(%0,relu(affine:factor=1.0,offset=-2.0(%0)))", [[1.0, 2.0], [2.0, 2.0]]),
        ("maximum(%0,max:axis=1(%0))", [[2.0, 2.0], [4.0, 4.0]]),
        ("div(%0,sum:axis=0(%0))", [[0.25, 2 / 6], [0.75, 4 / 6]]),
        ("concat:axis=1(slice:0:1,1:2(%0),reshape:1x4(%0))", [[2.0, 1.0, 2.0, 3.0, 4.0]]),
        ("real(mul(complex(%0),complex(%0)))", [[-3.0, 4.0], [-7.0, 24.0]]),
        ("rsqrt(square(%0))", [[1.0, 0.5], [1 / 3, 0.25]]),
    ],
)
def test_nested_expression_gives(text: str, expected: list[list[float]]) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    torch.testing.assert_close(build_expression(text, 1)([x]), torch.tensor(expected))


def test_product_of_half_and_single_precision_is_in_single() -> None:
    product = build_expression("einsum:ij,jk->ik", 2)
    assert product([torch.ones(2, 3, dtype=torch.float16), torch.ones(3, 2)]).dtype is torch.float32


def test_part_of_an_input_is_told_apart() -> None:
    assert input_part("input:W1.weight[2:4,0:3]") == ("W1.weight", ((2, 4), (0, 3)))
    assert input_part("einsum:ij,jk->ik") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cosine(%0)", "the name of an operation is expected at character 0"),
        ("add(%0,%1)", "reads port 1, but there are 1 inputs"),
        ("max(%0)", "'axis' is missing"),
        ("input:A[0:2]", "'input' is an input, not computed"),
        ("convert:f64(%0)", "'f64' is missing"),
    ],
)
def test_text_that_cannot_be_run_is_refused(text: str, words: str) -> None:
    with pytest.raises(FileFormatError, match=rf"cannot run the expression .*{words}"):
        build_expression(text, 1)
