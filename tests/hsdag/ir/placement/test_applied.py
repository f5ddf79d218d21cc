"""Placements applied to models, and compiled for the real HETERO over two added CPU devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13 as op

from hsdag.base.errors import PlacementError
from hsdag.ir.graph.build import fingerprint, read_graph
from hsdag.ir.graph.reader import load_model
from hsdag.ir.placement.placement import Placement
from tests.exported import Place

Run = Callable[[Any, ov.Model], list[NDArray[np.float32]]]


def test_one_device_for_all_compiles_plainly(core: ov.Core, model: ov.Model, place: Place) -> None:
    placement = place(model, lambda _: "SLOW")
    assert placement.compile(core, model).get_property("EXECUTION_DEVICES") == ["CPU_SLOW"]
    nodes = placement.apply(model).get_ops()
    assert {node.get_rt_info()["affinity"].astype(str) for node in nodes} == {"CPU_SLOW"}


@pytest.mark.parametrize("seed", range(3))
def test_computed_shapes_and_axes_are_no_inputs_of_submodels(core: ov.Core, place: Place, run: Run, seed: int) -> None:
    """They come from the shape of an op that is read for nothing else."""
    x = op.parameter([2, 3, 4], np.float32, name="x")
    first = op.relu(x)
    last = op.gather(op.shape_of(op.transpose(first, op.constant([2, 0, 1]))), op.constant([0]), op.constant(0))
    target = op.concat([op.constant([-1]), last], 0)
    flat = op.sigmoid(op.reshape(op.tanh(first), target, False))
    total = op.add(flat, op.reshape(first, target, False))
    model = ov.Model([op.result(op.reduce_max(total, op.subtract(last, op.constant([3])), True))], [x], "m")
    drawn = np.random.default_rng(seed).choice(["FAST", "SLOW"], 20)
    expected = run(core.compile_model(model.clone(), "CPU"), model)
    found = run(place(model, lambda s: str(drawn[s % 20])).compile(core, model), model)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_map_that_is_not_the_models_or_parts_what_belongs_together_is_refused(model: ov.Model, place: Place) -> None:
    placement = place(model, lambda _: "FAST")
    whole = placement.affinity
    for affinity, complaint in (
        (
            {name: device for name, device in whole.items() if name != "Relu:0"},
            "disagree on 1 ops, the first is 'Relu:0'",
        ),
        ({**whole, "stranger": "FAST"}, "disagree on 1 ops, the first is 'stranger'"),
        ({**whole, "Parameter:0": "SLOW"}, r"ops 'x' and 'conv1' must share a device, .* on SLOW and FAST"),
    ):
        with pytest.raises(PlacementError, match=complaint):
            placement.model_copy(update={"affinity": affinity}).apply(model)


def read(path: Path, batch: int = 2) -> ov.Model:
    model = ov.Core().read_model(path)
    model.reshape([batch, 3, 8, 8])
    return model


def test_a_model_whose_pad_has_no_value_is_the_model_that_its_ir_is(
    tmp_path: Path, core: ov.Core, place: Place
) -> None:
    """OpenVINO's files and clones have a constant more than such a model."""
    x = op.parameter([2, 3], np.float32, name="x")
    padded = op.pad(op.relu(x), op.constant([0, 1]), op.constant([0, 1]), "constant")
    model = ov.Model([op.result(op.tanh(padded))], [x], "m")
    ov.serialize(model, tmp_path / "m.xml")
    assert fingerprint(read_graph(model)) == fingerprint(read_graph(tmp_path / "m.xml"))
    place(load_model(tmp_path / "m.xml"), lambda s: ("FAST", "SLOW")[s % 2]).compile(core, model)


def test_a_placement_of_one_read_compiles_on_the_next_and_fixes_its_shapes(
    onnx_file: Path, core: ov.Core, place: Place
) -> None:
    text = place(read(onnx_file), lambda s: ("FAST", "SLOW")[s % 2]).to_json()
    model = core.read_model(onnx_file)
    compiled = Placement.from_json(text).compile(core, model)
    assert int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")) > 1
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    expected = core.compile_model(core.read_model(onnx_file), "CPU")([x])
    for one, other in zip(compiled([x]).values(), expected.values(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert model.inputs[0].get_partial_shape().is_dynamic


def test_applying_to_other_shapes_is_refused_with_the_shapes(onnx_file: Path, place: Place) -> None:
    placement = place(read(onnx_file), lambda _: "FAST")
    model = ov.Core().read_model(onnx_file)
    model.reshape([5, 3, 8, 8])
    complaint = r"with the input shapes x\[2,3,8,8\], and this model has x\[5,3,8,8\]: reshape"
    with pytest.raises(PlacementError, match=complaint):
        placement.apply(model)
