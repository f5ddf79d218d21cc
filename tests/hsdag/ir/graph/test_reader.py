"""Reading models: every way a file can be wrong, shapes, ONNX and torch."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset13 as op

from hsdag.base.errors import ModelError, OptionError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.reader import EXTENSIONS_VARIABLE, example_shape, input_shapes, load_model, parse_shapes
from tests.gguf_files import HEADS, HIDDEN, WIDTH, WORDS, llama_file


@pytest.fixture
def saved(tmp_path: Path, model: ov.Model) -> Path:
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    return tmp_path / "m.xml"


def dynamic_model() -> ov.Model:
    x, y = (op.parameter([-1, 3], np.float32, name=name) for name in "xy")
    return ov.Model([op.add(x, y)], [x, y], "dynamic")


def refusal(path: Path) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(ModelError, match=r".+") as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_that_lacks_something_is_named_with_what_it_lacks(saved: Path, tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.xml").startswith(f"no such file: {tmp_path / 'no.xml'}")
    assert "is a folder without saved_model.pb" in refusal(tmp_path)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"")
    assert "saved is not a model that OpenVINO can read: " in refusal(tmp_path / "saved")
    (tmp_path / "page.xml").write_text("<html></html>")
    assert "is not an OpenVINO IR" in refusal(tmp_path / "page.xml")
    saved.with_suffix(".bin").unlink()
    assert "m.bin is missing" in refusal(saved)
    saved.write_bytes(saved.read_bytes()[:-200])
    assert f"{saved} is truncated" in refusal(saved)


def test_a_bin_of_another_size_is_refused(saved: Path) -> None:
    content = saved.with_suffix(".bin").read_bytes()
    assert load_model(saved).inputs
    for other in (content[:-1], content + b"0"):
        saved.with_suffix(".bin").write_bytes(other)
        assert f"has {len(other)} bytes, but m.xml needs {len(content)}" in refusal(saved)


@pytest.mark.parametrize("name", ["notes.txt", "empty.onnx", "broken.onnx", "broken.xml", "broken.pb", "broken.tflite"])
def test_a_file_that_is_no_model_is_refused_with_the_reason_and_nothing_else(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(b"" if name == "empty.onnx" else b"<net" + bytes(range(256)) + b"</net>")
    reasons = {"notes.txt": "expected one of .xml, .onnx", "empty.onnx": "the file is empty"}
    assert reasons.get(name, "damaged or cut short") in refusal(tmp_path / name)
    assert capfd.readouterr() == ("", "")


def test_a_gguf_file_is_read_and_a_damaged_one_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = load_model(llama_file(tmp_path / "m.gguf"), dynamic=True)
    assert model.get_friendly_name() == "m"
    assert [list(port.partial_shape)[-1] for port in model.outputs] == [WORDS, WIDTH // HEADS, WIDTH // HEADS]
    sizes = [value.get_node().data.shape for op in model.get_ops() for value in op.input_values() if _is_weight(value)]
    assert {(HIDDEN, WIDTH), (WIDTH, HIDDEN), (WIDTH, WIDTH)} <= {*sizes}
    content = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(content[: len(content) // 2])
    (tmp_path / "no.gguf").write_bytes(b"no model")
    for name in ("cut.gguf", "no.gguf"):
        assert "is not a model that OpenVINO can read: " in refusal(tmp_path / name)


def _is_weight(value: ov.Output) -> bool:
    return value.get_node().get_type_name() == "Constant" and len(value.get_node().data.shape) == 2


def test_an_unknown_operation_is_named_with_the_option_for_its_library_and_so_is_what_is_no_such_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = op.parameter([2], np.float32, name="x")
    ov.serialize(ov.Model([op.relu(x)], [x], "m"), tmp_path / "m.xml")
    text = (tmp_path / "m.xml").read_text()
    (tmp_path / "m.xml").write_text(text.replace('type="ReLU" version="opset1"', 'type="Magic" version="extension"'))
    reason = (
        "operations that OpenVINO does not know (Magic): give the file that it was converted from, or name the library"
    )
    assert reason in refusal(tmp_path / "m.xml")
    monkeypatch.setenv(EXTENSIONS_VARIABLE, f"{os.pathsep}{tmp_path / 'm.bin'}")
    assert refusal(tmp_path / "m.xml").startswith(f"{tmp_path / 'm.bin'} is not a library of OpenVINO operations: ")


@pytest.mark.parametrize(
    ("shapes", "complaint"),
    [
        ({"z": (2, 3)}, "a shape is given for input 'z', but the model's inputs are x, y"),
        ({"": (2, 3)}, r"the model has 2 inputs \(x, y\): name them"),
        ({"x": (2, 3), "y": (4, 3)}, "does not take the given shapes of its inputs"),
        ({"x": (2, 3)}, r"dynamic shapes \(y "),
        ({}, r"dynamic shapes \(x \[\?,3\], y \[\?,3\]\): fix .* shape 'x\[...\],y\[...\]'"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: dict[str, tuple[int, ...]], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        load_model(dynamic_model(), shapes)


def test_an_example_has_a_size_that_an_open_one_may_have() -> None:
    x = op.parameter(ov.PartialShape("[?,..8,?,100..200,0]"), np.float32, name="x").output(0)
    x.set_names({"b", "a", "c"})
    assert example_shape(x) == "a[1,8,64,100,0]"


def test_inputs_may_stay_dynamic_where_only_the_graph_is_wanted(tmp_path: Path) -> None:
    ov.save_model(dynamic_model(), tmp_path / "open.xml")
    graph = graph_of(load_model(tmp_path / "open.xml", dynamic=True))
    assert (graph.name, graph.shape_of(graph.index_of["x"])) == ("open", (1, 3))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit inside the converter
def test_a_torch_module_is_converted() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()).eval()
    graph = graph_of(load_model(module, {"": (5, 3)}, example_input=torch.zeros(5, 3)))
    assert graph.flops[graph.op_types.index("MatMul")] == 2 * 5 * 3 * 2


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("[1, 8]", {"": (1, 8)}),
        ("7", {"": (7,)}),
        ("x:0[2] , scalar[]", {"x:0": (2,), "scalar": ()}),
    ],
)
def test_shapes_are_parsed(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    assert parse_shapes(text) == shapes


def test_shapes_are_text_or_sizes_by_name_or_left_out() -> None:
    assert input_shapes({"x": [2, 3], "": (1,)}) == input_shapes("x[2,3],[1]") == {"x": (2, 3), "": (1,)}
    assert input_shapes(None) == {}


@pytest.mark.parametrize("text", ["", "x", "x[1", "x[a]", "x[-1]", "x[1] y[2]", "x[0]", "0,3", "x[1,]", "x[1],x[2]"])
def test_other_texts_are_no_shapes(text: str) -> None:
    with pytest.raises(OptionError, match="shape"):
        parse_shapes(text)


def test_a_node_that_cannot_be_converted_is_named_with_its_reason(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    def branch(name: str, kind: int) -> onnx.GraphProto:
        nodes = [helper.make_node("Cast", ["x"], [name], name, to=kind)]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, kind, None)])

    branches = {"then_branch": branch("a", TensorProto.FLOAT), "else_branch": branch("b", TensorProto.INT64)}
    inputs = [helper.make_tensor_value_info("c", TensorProto.BOOL, ()), helper.make_tensor_value_info("x", 1, (2, 3))]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("If", ["c"], ["y"], "pick", **branches)], "m", inputs, [output])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=9), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"m\.onnx: OpenVINO cannot convert its If that makes 'y': type of then_body"):
        load_model(tmp_path / "m.onnx", guarded=False)


@pytest.mark.parametrize(("pattern", "is_right"), [((4, 3, 0, 2), True), ((2, 2, 0, 2), False), ((0, -1), True)])
def test_a_reshape_to_another_number_of_elements_is_refused(pattern: tuple[int, ...], is_right: bool) -> None:
    x = op.parameter([4, 6, 2], name="x")
    model = ov.Model([op.reshape(x, op.constant(list(pattern)), True, name="turned")], [x], "turned")
    if is_right:
        assert load_model(model) is model
        return
    with pytest.raises(ModelError, match=r"'turned' reshapes \[4, 6, 2\] to \[2, 2, 2, 2\].*correct its pattern"):
        load_model(model)
