"""Graphs built from ov.Models: edges, sizes, fingerprints, and names that are the same however a model is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset6
from openvino import opset13 as op

from hsdag.ir.graph.build import canonical_names, fingerprint, graph_of, read_graph
from hsdag.ir.graph.computation_graph import Csr


def two_layers(weight: float = 1.0, width: int = 4, last: str = "relu", *, swapped: bool = False) -> ov.Model:
    x = op.parameter([2, 3], np.float32, name="x")
    y = op.matmul(x, op.constant(np.full((3, width), weight, np.float32), name="w"), False, False, name="mm")
    z = op.constant(np.full((1, width), weight, np.float32), name="z")
    y = op.subtract(z, y, name="sub") if swapped else op.subtract(y, z, name="sub")
    return ov.Model([op.result(op.relu(y, name=last), name="out")], [x], "two")


def test_every_connected_input_port_is_an_edge_that_carries_one_output() -> None:
    x = op.parameter([2, 6], np.float32, name="x")
    parts = op.variadic_split(x, op.constant(1, name="axis"), op.constant([2, 4], name="sizes"), name="split")
    graph = graph_of(ov.Model([op.result(op.concat([x, parts.output(1)], 1, name="both"), name="y")], [x], "m"))
    ends = zip(graph.edge_src, graph.edge_src_port, graph.edge_dst, graph.edge_dst_port, graph.edge_bytes, strict=True)
    assert sorted((graph.op_names[s], sp, graph.op_names[d], dp, b) for s, sp, d, dp, b in ends) == [
        ("axis", 0, "split", 1, 8),
        ("both", 0, "y", 0, 80),
        ("sizes", 0, "split", 2, 16),
        ("split", 1, "both", 1, 32),
        ("x", 0, "both", 0, 48),
        ("x", 0, "split", 0, 48),
    ]
    assert graph.output_bytes[graph.index_of["split"]] == 48


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
def test_the_fingerprint_is_of_types_shapes_and_edges_and_canonical_names_of_types_and_edges_alone(
    changed: dict[str, Any], is_same: bool
) -> None:
    one, other = graph_of(two_layers()), graph_of(two_layers(**changed))
    assert (fingerprint(one) == fingerprint(other)) is is_same
    assert (one.canonical_names == other.canonical_names) is ("swapped" not in changed)


def test_a_dimension_that_depends_on_the_data_counts_with_its_bound() -> None:
    x = op.parameter([2, 3], np.float32, name="x")
    graph = graph_of(ov.Model([op.non_zero(x, name="where")], [x], "m"))
    assert graph.shape_of(graph.index_of["where"]) == (2, 6)


def test_inputs_of_an_op_are_numbered_in_the_order_of_its_ports() -> None:
    """Files hold these names: another order of the walk would give the ops of saved placements other names."""
    reads = Csr.build(4, np.array([2, 2, 3]), np.array([1, 0, 2]))  # the first port of op 2 reads op 1
    assert canonical_names(["Relu", "Relu", "Subtract", "Result"], reads, [3]) == (
        "Relu:1",
        "Relu:0",
        "Subtract:0",
        "Result:0",
    )


def test_state_and_several_outputs_keep_their_names_in_a_file(tmp_path: Path) -> None:
    x = op.parameter([2, 3], np.float32, name="x")
    sum_, stores = x, []
    for variable in "abc":
        old = opset6.read_value(op.constant(np.zeros((2, 3), np.float32)), variable, np.float32, [2, 3])
        sum_ = op.add(sum_, old)
        stores.append(opset6.assign(op.relu(sum_), variable))
    parts = op.split(sum_, op.constant(np.int64(0)), 2)
    model = ov.Model([op.result(o) for o in (parts.output(1), sum_.output(0), parts.output(0))], stores, [x], "m")
    ov.serialize(model, tmp_path / "m.xml")
    before, after = graph_of(model), read_graph(tmp_path / "m.xml")
    assert dict(zip(before.canonical_names, before.variables, strict=True)) == dict(
        zip(after.canonical_names, after.variables, strict=True)
    )
    assert fingerprint(before) == fingerprint(after)
    turned = ov.Model(model.get_results(), stores[::-1], [x], "m")
    assert fingerprint(graph_of(turned)) == fingerprint(before)
