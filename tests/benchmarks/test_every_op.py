"""The command that tries every op of OpenVINO's opsets: its table is whole, and what it tries is right."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

FEW = {"reshape": 2, "random_uniform": 1}
"""How many models of some functions are tried every time."""
MANY = (
    "broadcast concat convolution fake_quantize gather matmul pad scaled_dot_product_attention slice split"
    " strided_slice topk"
).split()
"""Functions of which the first two models are tried by make test-slow; the benchmark tries all."""


@pytest.fixture(scope="module")
def every_op() -> Any:
    """The benchmark as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("every_op")


def counts(every_op: Any, name: str, most: int | None = None) -> dict[str, int]:
    """What comes of a function's first models."""
    found = every_op.Found()
    every_op.check(every_op.entries_of(name, found)[:most], found)
    assert not [line for line in found.told if not line.startswith("not ")]
    return dict(found.counts)


def test_every_function_of_the_opsets_has_rows_or_a_reason_for_none(every_op: Any) -> None:
    table = every_op.table
    assert set(table.versions()) == {row[0] for row in table.TABLE} | set(table.NOT_IN_TABLE)


@pytest.mark.parametrize("name", FEW)
def test_an_op_placed_divided_and_saved_computes_in_both_precisions_what_it_computes(every_op: Any, name: str) -> None:
    found = counts(every_op, name, FEW[name])
    placed = ["hetero f32 right", "hetero bf16 right", "executor f32 right", "executor bf16 right"]
    assert [found[what] for what in placed] == [FEW[name]] * len(placed)
    assert ("divided and saved bf16 right" in found) is (name != "random_uniform")


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_ops_that_rules_know_compute_what_they_compute(every_op: Any, name: str) -> None:
    assert counts(every_op, name, 2)["models"] == 2


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_outputs_that_are_twice_as_large_are_wrong(every_op: Any, precision: str) -> None:
    subject = every_op.Subject(every_op.entries_of("relu", every_op.Found())[:1])
    right = subject.wanted[precision][0]
    for factor in (1, 2):
        ((_, is_right, _),) = subject.judged([factor * array for array in right], precision)
        assert is_right is (factor == 1)
