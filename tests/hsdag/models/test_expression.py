"""Expressions: text and tree agree, shapes are those of NumPy, mistakes are named."""

from __future__ import annotations

import pytest

from hsdag.models import find_workload, parse_expression
from hsdag.models.expression import TensorType


def _f32(*shape: int) -> TensorType:
    return TensorType(shape, "f32")


@pytest.mark.parametrize("name", ["ffnn", "llama-layer"])
def test_text_of_every_op_is_read_back_as_the_same_text(name: str) -> None:
    workload = find_workload(name).build(4)
    inputs = [len(workload.graph.predecessors.of(v)) for v in range(workload.graph.num_ops)]
    for text, count in zip(workload.expressions, inputs, strict=True):
        assert str(parse_expression(text, count)) == text


def test_operands_may_be_put_together_from_parts() -> None:
    expression = parse_expression("einsum:ij,jk->ik(concat:axis=0(%0,%2),slice:0:3,1:5(%1))", 3)
    assert expression.result([_f32(2, 3), _f32(4, 6), _f32(5, 3)]) == _f32(7, 4)


def test_a_contraction_counts_a_multiply_and_an_add_per_term() -> None:
    assert parse_expression("einsum:ij,jk->ik", 2).flops([_f32(2, 3), _f32(3, 5)]) == 2 * 2 * 3 * 5
    assert parse_expression("einsum:i,k->ik", 2).flops([_f32(2), _f32(5)]) == 2 * 5


def test_adding_n_tensors_takes_n_minus_one_additions_per_element() -> None:
    assert parse_expression("add", 4).flops([_f32(2, 3)] * 4) == 3 * 6


def test_complex_numbers_halve_the_last_axis_and_keep_the_bytes() -> None:
    result = parse_expression("complex", 1).result([_f32(3, 8)])
    assert result == TensorType((3, 4), "c64")
    assert result.size_bytes == _f32(3, 8).size_bytes


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("adds", "name of an operation is expected at character 0"),
        ("add(%0", "',' or '\\)' is expected at character 6"),
        ("add(%0))", "nothing is expected after character 7"),
        ("add(%0,%5)", "reads port 5, but there are 2 inputs"),
    ],
)
def test_broken_text_is_refused_with_the_place(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_expression(text, 2)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("einsum:ij,jk->ik", [(2, 3), (4, 5)]),
        ("add", [(2, 3), (2, 4)]),
        ("slice:0:4,0:3(%0)", [(3, 3)]),
        ("concat:axis=0", [(2, 3), (2, 4)]),
        ("reshape:7", [(2, 3)]),
    ],
)
def test_operands_that_do_not_fit_are_refused(text: str, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="cannot be applied to"):
        parse_expression(text, len(shapes)).result([TensorType(shape, "f32") for shape in shapes])
