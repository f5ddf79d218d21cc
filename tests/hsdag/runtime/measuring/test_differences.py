"""Outputs op by op are the model's, and how far outputs are apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.base.errors import ExecutionError
from hsdag.models import save_model_files
from hsdag.runtime.measuring.differences import op_by_op, output_difference
from hsdag.runtime.measuring.inferences import make_inputs


@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_bert", "tiny_llama"])
def test_op_by_op_agrees_with_the_cpu_in_single_precision(name: str, tmp_path: Path) -> None:
    core = ov.Core()
    model = core.read_model(save_model_files(name, tmp_path / "model.xml"))
    inputs = make_inputs(model, 0, None)
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    expected = compiled(dict(zip(compiled.inputs, inputs, strict=True)))
    before = [op.get_friendly_name() for op in model.get_ordered_ops()]
    difference = output_difference(op_by_op(core, model, [inputs], 60.0), [expected[k] for k in range(len(expected))])
    assert [op.get_friendly_name() for op in model.get_ordered_ops()] == before
    assert difference["max_relative"] is not None
    assert difference["max_relative"] < 1e-5


def test_constants_are_read_as_they_stand() -> None:
    rng = np.random.default_rng(0)
    given, weight = rng.standard_normal((8, 64)), rng.standard_normal((64, 64)).astype(np.float32)
    x, w = opset13.parameter([8, 64], np.float32), opset13.constant(weight)
    results = [opset13.result(opset13.matmul(x, w, False, transposed)) for transposed in (False, True)]
    data = given.astype(np.float32)
    plain, transposed = op_by_op(ov.Core(), ov.Model(results, [x]), [[ov.Tensor(data)]], 60.0)
    assert plain == pytest.approx(data @ weight, abs=1e-4)
    assert transposed == pytest.approx(data @ weight.T, abs=1e-4)


def test_constants_of_four_bits_keep_their_shape() -> None:
    packed = ov.Tensor(ov.Type.i4, ov.Shape([2, 8]))
    packed.data[...] = np.arange(8).reshape(packed.data.shape) * 17
    weight = opset13.reshape(opset13.convert(opset13.constant(packed), "f32"), np.array([8, 2]), False)
    x = opset13.parameter([3, 8], np.float32)
    model = ov.Model([opset13.result(opset13.matmul(x, weight, False, False))], [x], "m")
    ones = np.ones((3, 8), np.float32)
    [found] = op_by_op(ov.Core(), model, [[ov.Tensor(ones)]], 10.0)
    np.testing.assert_array_equal(found, ones @ np.repeat(np.arange(8), 2).reshape(8, 2))


def test_it_ends_at_its_limit(tiny_resnet: Path) -> None:
    core, ticks = ov.Core(), iter(range(1000))
    model = core.read_model(tiny_resnet)
    with pytest.raises(RuntimeError, match="which is the limit"):
        op_by_op(core, model, [make_inputs(model, 0, None)], 5.0, clock=lambda: float(next(ticks)))


def test_output_difference_in_closed_form() -> None:
    assert output_difference([np.array(["a", "b"])], [np.array(["a", "b"])])["max_relative"] == 0.0
    assert output_difference([np.array(["a", "c"])], [np.array(["a", "b"])])["max_relative"] is None
    figures = output_difference([np.array([1.0, 2.0, 2.0])], [np.array([1.0, 2.0, 4.0])])
    assert figures["max_abs"] == 2.0
    assert figures["max_relative"] == 0.5
    assert figures["mse"] == pytest.approx(4 / 3)
    assert figures["l2"] == 2.0
    assert figures["cosine"] == pytest.approx(13 / (3 * np.sqrt(21)))
    nothing, one = np.zeros(2), np.array([1.0, 0.0])
    for pairs, cosine in (((one, one), 1.0), ((nothing, nothing), 1.0), ((nothing, one), 0.0)):
        assert output_difference([one, pairs[0]], [one, pairs[1]])["cosine"] == cosine  # of the worst output


def test_outputs_of_another_shape_are_a_failure() -> None:
    with pytest.raises(ExecutionError, match=r"output 0 has shape \[2, 3\], and \[3\] is expected"):
        output_difference([np.zeros((2, 3))], [np.zeros(3)])


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_must_be_the_same_on_both_sides(odd: float) -> None:
    here, there = np.array([odd, 1.0, 2.0]), np.array([1.0, 1.0, 2.0])
    assert output_difference([here], [there])["max_relative"] is None
    assert output_difference([there], [here])["max_relative"] is None
    assert output_difference([here], [here])["max_relative"] == 0.0
    assert output_difference([here], [here])["cosine"] == pytest.approx(1.0)
    assert output_difference([here + np.array([0.0, 1.0, 0.0])], [here])["max_relative"] == 0.5
