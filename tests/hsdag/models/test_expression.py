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


@pytest.mark.parametrize(
    ("text", "shapes", "shape", "flops"),
    [
        ("einsum:ij,jk->ik(concat:axis=0(%0,%2),slice:0:3,1:5(%1))", [(2, 3), (4, 6), (5, 3)], (7, 4), 2 * 7 * 3 * 4),
        ("einsum:ij,jk->ik", [(2, 3), (3, 5)], (2, 5), 2 * 2 * 3 * 5),
        ("einsum:i,k->ik", [(2,), (5,)], (2, 5), 2 * 5),  # adds nothing up
        ("add", [(2, 3)] * 4, (2, 3), 3 * 6),
        ("maximum", [(2, 3), (3,), (1,)], (2, 3), 2 * 6),
        ("affine:factor=2.0,offset=1.0", [(2, 3)], (2, 3), 2 * 6),
        ("mul", [(2, 3), (2, 3)], (2, 3), 6),
        ("mul(complex(%0),complex(%1))", [(3, 8), (3, 8)], (3, 4), 6 * 12),
        ("real(complex(%0))", [(3, 8)], (3, 8), 0),
        ("sum:axis=1", [(2, 3)], (2, 1), 6),
        ("reshape:6", [(2, 3)], (6,), 0),
    ],
)
def test_shapes_are_those_of_numpy_and_operations_those_of_the_outermost_one(
    text: str, shapes: list[tuple[int, ...]], shape: tuple[int, ...], flops: float
) -> None:
    kinds, expression = [_f32(*each) for each in shapes], parse_expression(text, len(shapes))
    assert (expression.result(kinds).shape, expression.flops(kinds)) == (shape, flops)


def test_complex_numbers_keep_the_bytes_and_the_widest_operand_gives_the_type() -> None:
    kinds = [_f32(3, 8), TensorType((3, 1), "f16")]
    found = [parse_expression(text, 2).result(kinds) for text in ("complex(%0)", "mul", "mul(complex(%0),%1)")]
    assert [x.element_type for x in found] == ["c64", "f32", "c64"]
    assert found[0].size_bytes == kinds[0].size_bytes


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("adds", "name of an operation is expected at character 0"),
        ("add(%0", "',' or '\\)' is expected at character 6"),
        ("add(%0))", "nothing is expected after character 7"),
        ("add(%0,%2)", "reads port 2, but there are 2 inputs"),
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
        ("slice:-1:2(%0)", [(3,)]),
        ("slice:2:2(%0)", [(3,)]),
        ("complex", [(2, 3)]),
        ("convert:f8", [(2, 3)]),
        ("einsum:ij,jk", [(2, 3), (3, 5)]),
        ("einsum:ij,jk->ik", [(2, 3), (3,)]),
        ("input:x[0:2]", []),
    ],
)
def test_operands_that_do_not_fit_are_refused(text: str, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="cannot be applied to"):
        parse_expression(text, len(shapes)).result([TensorType(shape, "f32") for shape in shapes])
