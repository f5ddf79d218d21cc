"""Export to ONNX Runtime: annotations of nodes that its partitioner reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino as ov
import pytest
from onnx import TensorProto, helper

import hsdag
from hsdag.base.errors import OptionError
from hsdag.exports.ort import layer_assignment
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.reader import load_model
from hsdag.ir.placement.homes import op_devices
from hsdag.ir.placement.placement import Placement
from tests.exported import Place, read_back


@pytest.fixture
def with_dropped_nodes(tmp_path: Path) -> Path:
    """OpenVINO's model has no op for the Identity, nor for the Neg that nobody reads; two nodes have no name."""
    value = helper.make_tensor_value_info
    weight = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], np.ones(4096, np.float32).tobytes(), raw=True)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Identity", ["m"], ["i"], name="same"),
        helper.make_node("Dropout", ["i"], ["d"], name="kept"),
        helper.make_node("Relu", ["d"], ["r"]),
        helper.make_node("Split", ["r"], ["p", "q"], name="two", axis=1, num_outputs=2),
        helper.make_node("Add", ["p", "q"], ["y"]),
        helper.make_node("Neg", ["x"], ["unread"], name="unread"),
    ]
    outputs = [value("y", TensorProto.FLOAT, [1, 32])]
    graph = helper.make_graph(nodes, "dropped", [value("x", TensorProto.FLOAT, [1, 64])], outputs, [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "d.onnx")
    return tmp_path / "d.onnx"


def session(path: Path, settings: dict[str, str]) -> Any:
    options = onnxruntime.SessionOptions()
    for key, value in settings.items():
        options.add_session_config_entry(key, value)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def halves(place: Place, path: Path) -> Placement:
    return place(load_model(path, spare={"x": (1, 3, 8, 8)}), lambda s: ("FAST", "SLOW")[s % 2])


def test_annotations_are_the_devices_of_the_ops_and_onnx_runtime_takes_them_and_the_setting(
    tmp_path: Path, place: Place, onnx_file: Path
) -> None:
    placement = halves(place, onnx_file)
    result = hsdag.export(placement, "ort", tmp_path / "out.onnx", onnx_file)
    assert [path.name for path in result.files] == ["out.onnx", "out.json"]
    assert result.notes == ()
    model = load_model(onnx_file, spare=placement.model.input_shapes)
    ops = zip(model.get_ordered_ops(), op_devices(placement, graph_of(model)), strict=True)
    made = {name: d for node, d in ops if node.get_type_name() != "Result" for p in node.outputs() for name in p.names}
    found = read_back("ort", result.files[0], placement)
    assert set(found) == {"c", "s", "l", "g", "f", "y", "z"}
    assert {tensor: made[tensor] for tensor in found} == found
    assert set(found.values()) == {"FAST", "SLOW"}
    path, document = result.files
    key = "session.layer_assignment_settings"
    settings = {key: json.loads(document.read_text())[key]}
    assert settings == {key: "cpu(=FAST, =SLOW)"}
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    expected = session(onnx_file, {}).run(None, {"x": x})
    for found, wanted in zip(session(path, settings).run(None, {"x": x}), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(Exception, match="Invalid layering config"):  # so it is read at all
        session(path, {key: "cpu"})


def test_nodes_that_openvino_dropped_go_with_their_neighbours_and_are_told(
    tmp_path: Path, place: Place, with_dropped_nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hsdag.exports.ort.MOST_NAMED", 2)
    placement = halves(place, with_dropped_nodes)
    result = hsdag.export(placement, "ort", tmp_path / "out.onnx", with_dropped_nodes)
    assert result.notes == (
        "2 of 7 ONNX nodes have no op in OpenVINO's model ('same', 'unread'): they go with the nodes around them",
    )
    assert json.loads(result.files[1].read_text())["not_mapped"] == ["same", "unread"]
    found = read_back("ort", result.files[0], placement)
    assert found["i"] == found["m"]
    assert {found["m"], found["d"], found["r"]} == {"FAST", "SLOW"}
    assert found["p"] == found["q"]
    assert "unread" not in found


def test_a_model_with_weights_outside_keeps_them_outside(
    tmp_path: Path, place: Place, with_dropped_nodes: Path
) -> None:
    source = tmp_path / "big.onnx"
    onnx.save(onnx.load(with_dropped_nodes), source, save_as_external_data=True, location="big.bin")
    files = hsdag.export(halves(place, source), "ort", tmp_path / "out.onnx", source).files
    assert sorted(path.name for path in files) == ["out.json", "out.onnx", "out.onnx.data"]
    x = np.ones((1, 64), np.float32)
    np.testing.assert_array_equal(session(files[0], {}).run(None, {"x": x})[0], np.full((1, 32), 128, np.float32))


def test_devices_have_the_names_that_onnx_runtime_knows_them_by(place: Place, onnx_file: Path) -> None:
    placement = halves(place, onnx_file)
    for plugins, setting in (
        (("GPU.1", "NPU"), "gpu:1(=FAST); npu(=SLOW)"),
        (("CPU", "GPU"), "cpu(=FAST); gpu(=SLOW)"),
        (("cuda:0", "cpu"), "gpu:0(=FAST); cpu(=SLOW)"),
    ):
        devices = [replace(device, plugin=plugin) for device, plugin in zip(placement.devices, plugins, strict=True)]
        assert layer_assignment(placement.model_copy(update={"devices": devices})) == setting
    odd = [replace(device, plugin="TEMPLATE") for device in placement.devices]
    with pytest.raises(OptionError, match="no name for device 'FAST' over 'TEMPLATE'"):
        layer_assignment(placement.model_copy(update={"devices": odd}))
    devices = [replace(device, name=f"{device.name};1") for device in placement.devices]
    affinity = {op: f"{device};1" for op, device in placement.affinity.items()}
    with pytest.raises(OptionError, match=r"cannot read a device's name .*'FAST;1'"):
        layer_assignment(placement.model_copy(update={"devices": devices, "affinity": affinity}))


def test_other_models_than_onnx_and_other_endings_are_refused(
    tmp_path: Path, model: ov.Model, place: Place, onnx_file: Path
) -> None:
    placement = place(model, lambda s: ("FAST", "SLOW")[s % 2])
    with pytest.raises(OptionError, match=r"annotates an ONNX model: name the .onnx file .*not a model in memory"):
        hsdag.export(placement, "ort", tmp_path / "out.onnx", model)
    with pytest.raises(OptionError, match=r"end the output's name in .onnx, not .*out.xml"):
        hsdag.export(halves(place, onnx_file), "ort", tmp_path / "out.xml", onnx_file)
