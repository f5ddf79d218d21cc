"""Batches over copies: many rows give what single ones give, and are divided only where rows are independent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.base.errors import OptionError
from hsdag.ir.device import DeviceSpec
from hsdag.ir.placement.batches import TRIALS, is_by_rows
from hsdag.ir.placement.copies import CopiedModel, compile_copies

SPECS = [DeviceSpec.parse(f"{name}=CPU[INFERENCE_NUM_THREADS=1]") for name in ("BATCH_A", "BATCH_B")]
X = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)


def rows_model(rows: int, body: Callable[[Any], Any] = op.tanh) -> ov.Model:
    x = op.parameter([rows, 3], np.float32, name="x")
    return ov.Model([op.result(body(x))], [x], "rows")


@pytest.fixture
def opened(core: ov.Core) -> Iterator[CopiedModel]:
    with compile_copies(core, rows_model(-1), [(spec, 2) for spec in SPECS]) as model:
        yield model


def pieces_of(model: CopiedModel) -> list[int]:
    """The rows of everything that is submitted from now on."""
    found, real = list[int](), model.submit

    def submit(run: Any) -> Any:
        found.append(run.__self__.get_input_tensor().shape[0])
        return real(run)

    model.submit = submit  # type: ignore[method-assign]
    return found


def test_a_multiple_of_a_models_rows_is_so_many_inferences_and_no_other_number_is_taken(core: ov.Core) -> None:
    with compile_copies(core, rows_model(2), [(spec, 1) for spec in SPECS]) as model:
        found = pieces_of(model)
        np.testing.assert_allclose(model({"x": X})[0], np.tanh(X), rtol=1e-5)
        np.testing.assert_allclose(model(ov.Tensor(X[:2]))[0], np.tanh(X[:2]), rtol=1e-5)
        assert found == [2] * 5
        with pytest.raises(OptionError, match="takes an array of shape"):
            model(X[:3])


@pytest.mark.parametrize(("whole_s", "pieces"), [(1.0, [2, 2, 2, 1]), (0.4, [7])])
def test_copies_share_a_batch_where_that_was_measured_to_be_faster(
    opened: CopiedModel, whole_s: float, pieces: list[int]
) -> None:
    assert opened.batches is not None
    opened.batches.tried[7] = [(2.0, 3.0), (whole_s, 9.0), (5.0, 0.5)]
    found = pieces_of(opened)
    np.testing.assert_allclose(opened(X[:7])[0], np.tanh(X[:7]), rtol=1e-5)
    assert found == pieces


def test_the_first_batches_of_a_size_run_both_ways_unless_a_copy_works(opened: CopiedModel) -> None:
    assert opened.batches is not None
    found = pieces_of(opened)
    for _ in range(TRIALS):
        np.testing.assert_allclose(opened([X])[0], np.tanh(X), rtol=1e-5)
    assert found == [8, 2, 2, 2, 2] * TRIALS
    assert np.min(opened.batches.tried[8]) > 0
    assert opened.batches.infer(X[:1], None, is_busy=False) is None
    opened.copies[0].idle.clear()
    opened.copies[0].period_s = 1e9  # so that nothing waits for it
    opened(X[:6])
    assert found == [*[8, 2, 2, 2, 2] * TRIALS, 6]


def share_of_batch(x: Any) -> Any:
    size = op.convert(op.gather(op.shape_of(x), op.constant(0), op.constant(0)), "f32")
    return op.divide(op.tanh(x), size)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda x: op.relu(op.matmul(x, op.constant(np.ones((3, 3), np.float32)), False, False)), True),
        (lambda x: op.softmax(x, 1), True),
        (lambda x: op.softmax(x, 0), False),
        (lambda x: op.subtract(x, op.reduce_mean(x, op.constant([0]), True)), False),
        (lambda x: op.gather(x, op.constant([0]), op.constant(0)), False),
        (lambda x: op.concat([x, x], 0), False),
        (lambda x: op.add(x, op.constant(np.ones((2, 3), np.float32))), False),
        (lambda x: op.reduce_sum(x, op.constant([0, 1]), False), False),
        (share_of_batch, True),  # no rule knows, but its outputs differ
    ],
)
def test_rows_are_independent_where_rules_say_so(body: Callable[[Any], Any], expected: bool) -> None:
    assert is_by_rows(rows_model(-1, body)) is expected


def test_what_depends_on_the_size_of_the_batch_is_seen_by_its_outputs(core: ov.Core) -> None:
    x = op.parameter([-1, 3], np.float32, name="x")
    both = ov.Model([op.result(op.tanh(x)), op.result(share_of_batch(x))], [x], "both")
    with compile_copies(core, both, [(spec, 1) for spec in SPECS]) as model:
        for _ in range(TRIALS + 1):
            np.testing.assert_allclose(model(X)[1], np.tanh(X) / 8, rtol=1e-5)
        assert model.batches is not None
        assert [whole_s for whole_s, _ in model.batches.tried[8]] == [0.0] * TRIALS


def test_an_input_of_other_rows_leaves_a_model_whole(core: ov.Core) -> None:
    x, y = op.parameter([1, 3], np.float32, name="x"), op.parameter([3], np.float32, name="y")
    model = ov.Model([op.result(op.add(x, y))], [x, y], "two")
    assert not is_by_rows(model)
    with compile_copies(core, model, [(SPECS[0], 1)]) as copied, pytest.raises(OptionError, match="takes an array"):
        copied([X, X[0]])
