"""Export to json, csv and dot, and what every format refuses."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag import api
from hsdag.base.errors import OptionError, OutputError, PlacementError
from hsdag.exports import export_formats
from hsdag.exports.base import ModelSource, export_placement
from hsdag.exports.documents import quoted, submodels
from hsdag.ir.graph.build import fingerprint, graph_of
from hsdag.ir.graph.colocation import colocate
from tests.exported import Alternating, Place, placed_by, read_back

SUFFIX = {"json": ".json", "csv": ".csv", "dot": ".dot"}
FORMATS = ("csv", "dot", "json", "openvino", "ort")


def test_an_unknown_format_is_answered_with_the_choices(
    tmp_path: Path, model: ov.Model, alternating: Alternating
) -> None:
    assert export_formats() == FORMATS == tuple(sorted({*SUFFIX, "openvino", "ort"}))
    for name in ("yaml", "base", ""):
        with pytest.raises(OptionError, match="choose one of " + ", ".join(FORMATS)):
            export_placement(alternating(model), name, tmp_path / "f")


@pytest.mark.parametrize("name", list(SUFFIX))
def test_what_cannot_be_written_is_said_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: ov.Model, alternating: Alternating, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    placement, file, x = alternating(model), f"f{SUFFIX[name]}", op.parameter([2], np.float32, name="x")
    with pytest.raises(PlacementError, match="the placement is for model 'sample' and this is another model"):
        export_placement(placement, name, tmp_path / file, ModelSource(ov.Model([op.relu(x)], [x], "other")))
    with pytest.raises(OutputError, match="cannot be written: there is no folder"):
        api.export(placement, name, tmp_path / "absent" / file, model)
    for path in ("", "."):
        with pytest.raises(OutputError, match=r"^\. is a folder; name the file to write"):
            api.export(placement, name, path, model)
    if name == "dot":
        with pytest.raises(OptionError, match=f"format {name} needs the model .*model"):
            export_placement(placement, name, tmp_path / file)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", list(SUFFIX))
def test_every_format_reads_back_to_the_same_placement_and_leaves_the_model_and_no_other_files(
    tmp_path: Path, model: ov.Model, alternating: Alternating, name: str
) -> None:
    placement, before = alternating(model), fingerprint(graph_of(model))
    files = export_placement(placement, name, tmp_path / f"f{SUFFIX[name]}", ModelSource(model))
    assert files[0].is_relative_to(tmp_path / f"f{SUFFIX[name]}")
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(files)
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"f"}
    assert fingerprint(graph_of(model)) == before
    assert not any("affinity" in node.get_rt_info() for node in model.get_ops())
    found, placed = read_back(name, files[0], placement), placed_by(placement)
    assert found.items() <= placed.items()
    runs = {"relu", "conv1", "conv2", "conv3", "tanh", "flat2", "flat3", "sum"}
    assert set(found) >= (runs if name == "dot" else set(placed))  # which copy what floats


@pytest.mark.parametrize("with_model", [True, False])
def test_csv_has_a_row_per_op_whatever_its_name(tmp_path: Path, alternating: Alternating, *, with_model: bool) -> None:
    model = diamond()
    placement = alternating(model)
    (path,) = export_placement(placement, "csv", tmp_path / "p.csv", ModelSource(model if with_model else None))
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["op"]: row["device"] for row in rows} == placed_by(placement)
    assert {row["openvino_device"] for row in rows} == {"CPU_FAST", "CPU_SLOW"}
    types = {node.get_friendly_name(): node.get_type_name() if with_model else "" for node in model.get_ops()}
    assert {row["op"]: row["type"] for row in rows} == types


def test_dot_has_every_op_and_every_edge_once_and_marks_the_tensors_between_submodels(
    tmp_path: Path, model: ov.Model, alternating: Alternating
) -> None:
    placement, graph = alternating(model), graph_of(model)
    text = export_placement(placement, "dot", tmp_path / "g.dot", ModelSource(model))[0].read_text()
    nodes = [int(v) for v in re.findall(r"^n(\d+) \[", text, re.MULTILINE)]
    assert sorted(nodes) == list(range(graph.num_ops))
    edges = [(int(s), int(d)) for s, d in re.findall(r"^n(\d+) -> n(\d+)", text, re.MULTILINE)]
    assert edges == list(zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True))
    label = submodels(placement, graph).labels
    crossing = int(((label[graph.edge_src] != label[graph.edge_dst]) & colocate(graph).edge_kept).sum())
    assert text.count("style=bold") == crossing > 0
    shared, conv2, conv3 = (label[graph.index_of[name]] for name in ("shared", "conv2", "conv3"))
    assert shared == conv2 != conv3  # a constant is drawn beside its first reader


def diamond() -> ov.Model:
    """tanh feeds both branches of a diamond; the branch on its own device has a submodel apart from the join's."""
    x = op.parameter([4], np.float32, name='a,"b"\nc')
    t = op.tanh(x)
    return ov.Model([op.add(op.sin(t), op.multiply(op.cos(op.exp(t)), t))], [x], "diamond")


def test_dot_frames_the_submodels_that_hetero_makes(tmp_path: Path, core: ov.Core, place: Place) -> None:
    model = diamond()
    placement = place(model, lambda s: ("FAST", "SLOW")[s == 1])
    compiled = placement.compile(core, model)
    text = export_placement(placement, "dot", tmp_path / "g.dot", ModelSource(model))[0].read_text()
    assert text.count("subgraph cluster_") == int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")) > 2


@pytest.mark.parametrize(
    ("text", "shown"),
    [('a"b', r'"a\"b"'), ("a\\N", r'"a\\N"'), ("a\nb", r'"a\nb"'), ("&lt;", '"&amp;lt;"'), ("ü", '"ü"')],
)
def test_dot_escapes_names(text: str, shown: str) -> None:
    assert quoted(text) == shown
