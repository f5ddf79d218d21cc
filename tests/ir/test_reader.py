"""Reading models: every way a file can be wrong, shapes, ONNX and torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import openvino as ov
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from openvino import opset13 as op

from hsdag.ir import ModelError, OptionError, fingerprint, load_model, parse_shapes, read_graph


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


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.xml").startswith(f"no such file: {tmp_path / 'no.xml'}")


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)


def test_a_truncated_xml_is_called_truncated(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-200])
    assert f"{saved} is truncated" in refusal(saved)


def test_an_xml_of_something_else_is_no_ir(tmp_path: Path) -> None:
    (tmp_path / "page.xml").write_text("<html></html>")
    assert "is not an OpenVINO IR" in refusal(tmp_path / "page.xml")


@pytest.mark.parametrize("change", [-1, 1, -100, 100])
def test_a_bin_of_another_size_is_refused(saved: Path, change: int) -> None:
    weights = saved.with_suffix(".bin")
    content = weights.read_bytes()
    weights.write_bytes(content[:change] if change < 0 else content + bytes(change))
    assert f"has {len(content) + change} bytes, but m.xml needs {len(content)}" in refusal(saved)


def test_a_missing_bin_is_named(saved: Path) -> None:
    saved.with_suffix(".bin").unlink()
    assert "m.bin is missing" in refusal(saved)


def test_a_model_without_weights_needs_no_bin(tmp_path: Path) -> None:
    x = op.parameter([2], np.float32, name="x")
    ov.save_model(ov.Model([op.relu(x)], [x], "m"), tmp_path / "m.xml")
    (tmp_path / "m.bin").unlink(missing_ok=True)
    assert read_graph(tmp_path / "m.xml").num_ops == 3


@pytest.mark.parametrize("name", ["notes.txt", "broken.onnx", "broken.xml"])
def test_a_file_that_is_no_model_is_refused_with_the_choices(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"<net" + bytes(range(256)) + b"</net>")
    assert "expected one of .xml, .onnx" in refusal(tmp_path / name)


def test_dynamic_inputs_need_shapes_and_are_all_named() -> None:
    with pytest.raises(
        ModelError, match=r"dynamic shapes \(x \[\?,3\], y \[\?,3\]\): fix .* --shape 'x\[...\],y\[...\]'"
    ):
        load_model(dynamic_model())


def test_given_shapes_fix_the_inputs() -> None:
    graph = read_graph(dynamic_model(), {"x": (2, 3), "y": (2, 3)})
    assert graph.shape_of(graph.index_of["x"]) == (2, 3)


@pytest.mark.parametrize(
    ("shapes", "complaint"),
    [
        ({"z": (2, 3)}, "a shape is given for input 'z', but the model's inputs are x, y"),
        ({"": (2, 3)}, r"the model has 2 inputs \(x, y\): name them"),
        ({"x": (2, 3), "y": (4, 3)}, "does not take the given shapes of its inputs"),
        ({"x": (2, 3)}, r"dynamic shapes \(y "),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: dict[str, tuple[int, ...]], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        load_model(dynamic_model(), shapes)


def test_an_onnx_file_is_read_and_always_alike(tmp_path: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 2], [1.0] * 6)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm"), helper.make_node("Relu", ["y"], ["z"], name="r")],
        "tiny",
        [value("x", TensorProto.FLOAT, ["batch", 3])],
        [value("z", TensorProto.FLOAT, ["batch", 2])],
        [weight],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "tiny.onnx")
    first, second = (read_graph(tmp_path / "tiny.onnx", {"x": (4, 3)}) for _ in range(2))
    assert sorted(first.op_types) == ["Constant", "MatMul", "Parameter", "Relu", "Result"]
    assert first.flops[first.op_types.index("MatMul")] == 2 * 4 * 3 * 2
    assert fingerprint(first) == fingerprint(second)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit inside the converter
def test_a_torch_module_is_converted() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()).eval()
    graph = read_graph(module, {"": (5, 3)}, example_input=torch.zeros(5, 3))
    assert graph.flops[graph.op_types.index("MatMul")] == 2 * 5 * 3 * 2


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("1,3,224,224", {"": (1, 3, 224, 224)}),
        ("[1, 8]", {"": (1, 8)}),
        ("7", {"": (7,)}),
        ("ids[1,8],mask[1, 8]", {"ids": (1, 8), "mask": (1, 8)}),
        ("x:0[2] , scalar[]", {"x:0": (2,), "scalar": ()}),
    ],
)
def test_shapes_are_parsed(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    assert parse_shapes(text) == shapes


@pytest.mark.parametrize("text", ["", "x", "x[1", "x[a]", "x[-1]", "x[1] y[2]", "x[0]", "0,3", "x[1,]", "x[1],x[2]"])
def test_other_texts_are_no_shapes(text: str) -> None:
    with pytest.raises(OptionError, match="--shape"):
        parse_shapes(text)


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.:/]{0,8}", fullmatch=True)
sizes = st.lists(st.integers(1, 5000), max_size=4).map(tuple)


@given(shapes=st.dictionaries(names, sizes, min_size=1, max_size=4))
def test_shapes_written_out_are_read_back(shapes: dict[str, tuple[int, ...]]) -> None:
    text = ",".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in shapes.items())
    assert parse_shapes(text) == shapes
