"""Graphs built from ov.Models: edges, sizes and fingerprints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.ir.graph.build import fingerprint, graph_of, read_graph
from hsdag.ir.graph.reader import load_model


def two_layers(weight: float = 1.0, width: int = 4, last: str = "relu", *, swapped: bool = False) -> ov.Model:
    x = op.parameter([2, 3], np.float32, name="x")
    y = op.matmul(x, op.constant(np.full((3, width), weight, np.float32), name="w"), False, False, name="mm")
    z = op.constant(np.full((1, width), weight, np.float32), name="z")
    y = op.subtract(z, y, name="sub") if swapped else op.subtract(y, z, name="sub")
    return ov.Model([op.result(op.relu(y, name=last), name="out")], [x], "two")


def test_every_connected_input_port_is_an_edge(model: ov.Model) -> None:
    graph = graph_of(model)
    expected = [
        (
            port.get_source_output().get_node().get_friendly_name(),
            port.get_source_output().get_index(),
            node.get_friendly_name(),
            port.get_index(),
            int(np.prod(port.get_shape())) * port.get_element_type().size,
        )
        for node in model.get_ops()
        for port in node.inputs()
    ]
    names, columns = graph.op_names, (graph.edge_src, graph.edge_src_port, graph.edge_dst, graph.edge_dst_port)
    rows = zip(*(c.tolist() for c in columns), graph.edge_bytes.tolist(), strict=True)
    assert sorted((names[s], sp, names[d], dp, b) for s, sp, d, dp, b in rows) == sorted(expected)


def test_an_edge_from_a_split_carries_one_of_its_outputs() -> None:
    x = op.parameter([2, 6], np.float32, name="x")
    parts = op.variadic_split(x, op.constant(1), op.constant([2, 4]), name="split")
    graph = graph_of(ov.Model([op.relu(parts.output(1), name="relu")], [x], "m"))
    split, relu = graph.index_of["split"], graph.index_of["relu"]
    edge = int(np.flatnonzero((graph.edge_src == split) & (graph.edge_dst == relu))[0])
    assert (graph.edge_src_port[edge], graph.edge_bytes[edge]) == (1, 2 * 4 * 4)
    assert graph.output_bytes[split] == 2 * 6 * 4


@pytest.mark.parametrize(("dtype", "size_bytes"), [("f32", 24), ("f16", 12), ("i8", 6), ("u4", 3), ("i64", 48)])
def test_weight_bytes_follow_the_element_type(dtype: str, size_bytes: int) -> None:
    weights = op.constant(ov.Tensor(getattr(ov.Type, dtype), [6]), name="w")
    x = op.parameter([6], np.float32, name="x")
    model = ov.Model([op.add(x, op.convert(weights, "f32"))], [x], "m")
    assert graph_of(model).weight_bytes.sum() == size_bytes


def test_repeated_names_are_told_apart() -> None:
    x = op.parameter([2], np.float32, name="x")
    model = ov.Model([op.relu(op.relu(op.relu(x, name="r"), name="r#2"), name="r")], [x], "m")
    assert set(graph_of(model).op_names) >= {"x", "r", "r#2", "r#3"}


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [({"weight": 2.0}, True), ({"last": "other"}, True), ({"width": 5}, False), ({"swapped": True}, False)],
)
def test_the_fingerprint_is_of_types_shapes_and_edges_alone(changed: dict[str, Any], is_same: bool) -> None:
    assert (fingerprint(graph_of(two_layers())) == fingerprint(graph_of(two_layers(**changed)))) is is_same


def test_the_fingerprint_survives_a_clone_and_a_file(tmp_path: Path, model: ov.Model) -> None:
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    before = fingerprint(graph_of(model))
    assert fingerprint(graph_of(model.clone())) == before
    assert fingerprint(read_graph(tmp_path / "m.xml")) == before
    assert fingerprint(graph_of(load_model(tmp_path / "m.xml"))) == before


def test_a_dimension_that_depends_on_the_data_counts_with_its_bound() -> None:
    x = op.parameter([2, 3], np.float32, name="x")
    graph = graph_of(ov.Model([op.non_zero(x, name="where")], [x], "m"))
    assert graph.shape_of(graph.index_of["where"]) == (2, 6)
