"""Expressions in torch: what they compute, where, in which element type, and what is refused."""

from __future__ import annotations

import pytest
import torch

from hsdag.ir.errors import FileFormatError
from hsdag.scoring.workload_graph import build_expression


def test_causal_mask_hides_what_comes_later_and_lies_where_the_inputs_do() -> None:
    masked = build_expression("add(%0,causal:rows=2,columns=4,first_row=1)", 1)
    assert masked([torch.zeros(2, 4, device="meta")]).device.type == "meta"
    hidden = torch.isneginf(masked([torch.zeros(2, 4)])).tolist()
    assert hidden == [[False, False, True, True], [False, False, False, True]]


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
