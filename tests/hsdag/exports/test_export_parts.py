"""Export to parts and to Model Server's pipelines: the files compute what our executor computes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import hsdag
from hsdag.exports.parts import PartsManifest
from hsdag.ir.errors import FileFormatError, OptionError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import colocate
from hsdag.models import build_model
from tests.exported import Alternating, Place, are_equal, random_inputs, run_parts
from tests.model_server import Pipeline
from tests.stateful import EXACT, placement_of, split_after

DYNAMIC = {"data_shapes": ()}
"""In a placement of a model whose inputs stay dynamic."""


def awkward() -> ov.Model:
    """Two outputs of one tensor, inputs that go straight to outputs, one that nobody reads, names with marks."""
    x, y = (op.parameter([1, 4, 6, 6], np.float32, name=name) for name in ("x", "y<&>"))
    unread = op.parameter([3], np.float32, name="unread")
    for parameter in (x, y, unread):
        parameter.output(0).get_tensor().set_names({parameter.get_friendly_name()})
    halves = op.split(op.tanh(x, name="t/1;2,3"), op.constant(1), 2)
    left, right = op.relu(halves.output(0), name="r"), op.sin(halves.output(1), name="s")
    join = op.add(op.concat([left, right], 1, name="c"), y, name="a")
    results = [op.result(join), op.result(join), op.result(y), op.result(op.cos(left))]
    return ov.Model(results, [x, y, unread], 'awkward "model"')


@pytest.mark.parametrize(("is_awkward", "group"), [(False, 1), (True, 1), (True, 2)])  # sets of each device in a row
def test_parts_and_pipelines_compute_what_our_executor_computes(
    tmp_path: Path, model: ov.Model, place: Place, group: int, is_awkward: bool
) -> None:
    network = awkward() if is_awkward else model
    placement = place(network, lambda s: ("FAST", "SLOW")[s // group % 2])
    inputs = random_inputs(network)
    with hsdag.compile_work_conserving(network, placement) as compiled:
        expected = list(compiled(inputs).to_tuple())
    manifest, config = (hsdag.export(placement, kind, tmp_path / kind, network).files[0] for kind in ("parts", "ovms"))
    assert are_equal(run_parts(manifest, inputs), expected)
    pipeline = Pipeline(config)
    found = pipeline.infer({name: inputs[name] for name in pipeline.pipeline["inputs"]})
    assert are_equal(list(found.values()), expected)


def test_a_manifest_says_what_lies_in_its_folder(tmp_path: Path, model: ov.Model, alternating: Alternating) -> None:
    placement = alternating(model)
    (manifest_file, *files) = hsdag.export(placement, "parts", tmp_path / "out", model).files
    manifest = PartsManifest.load(tmp_path / "out")
    assert sorted([manifest_file, *files]) == sorted((tmp_path / "out").iterdir())
    assert manifest.placement == placement
    assert {name: digest for part in manifest.parts for name, digest in part.sha256.items()} == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }
    assert {(part.device, part.plugin) for part in manifest.parts} == {("FAST", "CPU"), ("SLOW", "CPU")}
    assert [tensor.model_dump() for tensor in manifest.inputs] == [
        {"name": model.inputs[0].get_any_name(), "shape": (1, 3, 8, 8), "type": "f32"}
    ]
    ports = [(k, port) for k, part in enumerate(manifest.parts) for port in part.inputs]
    assert all((port.source.part or 0) < (k or 1) and port.name == port.source.name for k, port in ports)
    ops = [op for part in manifest.parts for op in ov.Core().read_model(tmp_path / "out" / part.xml).get_ordered_ops()]
    named = {op.get_friendly_name() for op in ops if op.get_type_name() == "Constant"}
    assert set() < named <= set(graph_of(model).op_names)


def test_an_input_that_goes_straight_to_an_output_needs_no_part(tmp_path: Path, alternating: Alternating) -> None:
    model = awkward()
    config = json.loads(hsdag.export(alternating(model), "ovms", tmp_path / "out", model).files[0].read_text())
    (pipeline,) = config["pipeline_config_list"]
    assert [entry for entry in pipeline["outputs"] if "y<&>" in str(entry)] == [
        {"y<&>": {"node_name": "request", "data_item": "y<&>"}}
    ]
    assert pipeline["inputs"] == ["x", "y<&>"]
    assert pipeline["name"] == "awkward__model_"


def test_a_part_that_would_only_pass_its_input_on_is_not_written(tmp_path: Path, place: Place) -> None:
    """The CPU plugin (2026.4.1) gives zeros for it once its input has shrunk."""
    x = op.parameter([-1], np.float32, name="x")
    y = op.tanh(x, name="y")
    model = ov.Model([op.result(op.convert(y, "f32", name="same")), op.result(op.exp(y, name="e"))], [x], "passing")
    names = graph_of(model).op_names
    labels = colocate(graph_of(model)).sets.labels.tolist()
    apart = {labels[names.index(name)] for name in ("same", "e")}
    placement = place(model, lambda s: ("FAST", "SLOW")[s in apart]).model_copy(update=DYNAMIC)
    manifest_file = hsdag.export(placement, "parts", tmp_path / "parts", model).files[0]
    manifest = PartsManifest.load(manifest_file)
    assert [part.device for part in manifest.parts] == ["FAST", "SLOW"]
    assert "same" not in {op for part in manifest.parts for op in (*part.ops, *part.copies)}
    for size in (72, 48):
        inputs = {"x": np.linspace(1.0, 2.0, size, dtype=np.float32)}
        found = run_parts(manifest_file, inputs)
        np.testing.assert_allclose(found[0], np.tanh(inputs["x"]), atol=1e-5)


def test_parts_keep_state_and_pipelines_of_model_server_refuse_it(tmp_path: Path) -> None:
    model = build_model("tiny_stateful_llama_fp16")
    graph = graph_of(model)
    placement = placement_of(model, split_after(graph, "model.layers.1/output")).model_copy(update=DYNAMIC)
    manifest = PartsManifest.load(hsdag.export(placement, "parts", tmp_path / "parts", model).files[0])
    assert [part.has_state for part in manifest.parts].count(True) == 2
    assert dict(manifest.parts[0].properties).items() >= EXACT.items()
    with pytest.raises(OptionError, match="keeps state between inferences, and Model Server's pipelines do not"):
        hsdag.export(placement, "ovms", tmp_path / "ovms", model)


def test_pipelines_refuse_a_tensor_without_a_rank_which_parts_take_and_a_model_without_inputs(
    tmp_path: Path, alternating: Alternating
) -> None:
    x = op.parameter(ov.PartialShape.dynamic(), np.float32, name="x")
    model = ov.Model([op.tanh(op.relu(x))], [x], "any")
    placement = alternating(model).model_copy(update=DYNAMIC)
    with pytest.raises(OptionError, match="has a dynamic rank, and Model Server takes none"):
        hsdag.export(placement, "ovms", tmp_path / "ovms", model)
    manifest = PartsManifest.load(hsdag.export(placement, "parts", tmp_path / "parts", model).files[0])
    assert manifest.inputs[0].shape is None
    low, high = (op.constant(np.float32(value)) for value in (0, 1))
    model = ov.Model([op.random_uniform(op.constant([4]), low, high, "f32")], [], "noise")
    with pytest.raises(OptionError, match="reads no input, and Model Server's pipelines begin with a request"):
        hsdag.export(alternating(model), "ovms", tmp_path / "ovms", model)


def test_a_manifest_that_names_files_of_other_folders_is_refused(tmp_path: Path) -> None:
    seed = Path(__file__).parents[2] / "fuzz" / "seeds" / "parts" / "two" / "manifest.json"
    document = json.loads(seed.read_text())
    for name in ("../part_000.xml", "/etc/passwd", "..", "", "a/../b", "a\\b", "a\0"):
        document["parts"][0]["xml"] = name
        (tmp_path / "manifest.json").write_text(json.dumps(document))
        with pytest.raises(FileFormatError, match=r"parts\[0\]\.xml: String should match pattern"):
            PartsManifest.load(tmp_path)
