"""Export to an IR that carries its placement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

import hsdag
from hsdag.exports.base import export_placement
from hsdag.ir.graph.reader import load_model
from hsdag.ir.placement.placement import Placement
from hsdag.models import save_model_files
from hsdag.placing.by_hand import divide
from tests.stateful import EXACT, generate, unsplit

Alternating = Callable[[ov.Model], Placement]
Run = Callable[[Any, ov.Model], list[NDArray[np.float32]]]


def test_an_exported_ir_is_the_model_as_it_was_given_and_runs_as_it_was_placed(
    tmp_path: Path, core: ov.Core, model: ov.Model, alternating: Alternating, run: Run
) -> None:
    placement = alternating(model)
    xml, weights = export_placement(placement, "ir", tmp_path / "placed.xml", model)
    assert weights == tmp_path / "placed.bin"
    back = load_model(xml)
    ops = [[(n.get_friendly_name(), n.get_type_name()) for n in m.get_ordered_ops()] for m in (model, back)]
    assert ops[0] == ops[1]
    assert Placement.from_model(back) == placement
    compiled, original = Placement.from_model(back).compile(core, back), placement.compile(core, model)
    number = int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
    assert number == int(original.get_property("HETERO_NUMBER_OF_SUBMODELS")) > 1
    for found, expected in zip(run(compiled, back), run(original, model), strict=True):
        assert np.array_equal(found, expected)
    back.reshape([1, 3, 16, 8])
    assert back.outputs[0].get_shape() == [1, 512]


def test_a_divided_model_whose_variables_have_computed_initial_values_generates_the_same_from_an_ir(
    tmp_path: Path,
) -> None:
    path = save_model_files("tiny_stateful_llama_fp16", tmp_path / "llama.xml")
    devices = ",".join(f"{name}=CPU[{';'.join(f'{key}={value}' for key, value in EXACT.items())}]" for name in "AB")
    model, placement = divide(path, devices, None, None, [], {})
    xml, _ = hsdag.export(placement, "ir", tmp_path / "placed.xml", path).files
    back = load_model(xml, dynamic=True)
    variables = [node for node in back.get_ops() if node.get_type_name() == "ReadValue"]
    assert {node.input_value(0).get_node().get_type_name() for node in variables} == {"Broadcast", "Slice"}
    assert {node.get_variable_id()[-2:] for node in variables} == {"@A", "@B"}
    with hsdag.compile_work_conserving(xml, Placement.from_model(back)) as compiled:
        assert generate(compiled.create_infer_request(), 8).tokens == unsplit(model, 8).tokens


def test_copies_take_no_room_in_the_weights_of_a_program(
    tmp_path: Path, model: ov.Model, alternating: Alternating
) -> None:
    ov.serialize(model, tmp_path / "plain.xml", tmp_path / "plain.bin")
    export_placement(alternating(model), "python", tmp_path / "placed.py", model)
    shape_constants_bytes = 64
    plain_bytes = (tmp_path / "plain.bin").stat().st_size
    assert (tmp_path / "placed.bin").stat().st_size <= plain_bytes + shape_constants_bytes
