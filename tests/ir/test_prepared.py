"""The clone that is compiled: what folds, what is kept compressed, and which op each node stands for."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as op

from hsdag.ir import graph_of
from hsdag.ir.prepared import PreparedModel, prepare


def types(prepared: PreparedModel) -> list[str]:
    return [node.get_type_name() for node in prepared.nodes]


def sources(node: ov.Node) -> list[ov.Node]:
    return [port.get_source_output().get_node() for port in node.inputs()]


def named(model: ov.Model, name: str) -> ov.Node:
    return next(node for node in model.get_ops() if node.get_friendly_name() == name)


def reads_shapes() -> ov.Model:
    """A Reshape whose target is computed from a shape, a ReduceMax whose axes are, and a Pad by a Range."""
    x = op.parameter([2, 3, 4], np.float32, name="x")
    shape = op.shape_of(x, name="shape")
    last = op.gather(shape, op.constant([2]), op.constant(0), name="last")
    flat = op.reshape(x, op.concat([op.constant([-1]), last], 0, name="target"), False, name="flat")
    axes = op.subtract(last, op.constant([4]), name="axes")
    highest = op.reduce_max(flat, axes, True, name="highest")
    ends = op.range(op.constant(0), op.constant(2), op.constant(1), "i64", name="ends")
    padded = op.pad(highest, ends, ends, "constant", name="padded")
    return ov.Model([op.result(padded, name="y")], [x], "reads_shapes")


def test_arithmetic_on_static_shapes_folds_to_constants_of_its_readers() -> None:
    prepared = prepare(reads_shapes())
    assert sorted(types(prepared)) == ["Constant"] * 4 + ["Pad", "Parameter", "ReduceMax", "Reshape", "Result"]
    assert sources(named(prepared.model, "flat"))[1].get_data().tolist() == [-1, 4]


def test_the_model_itself_stays_as_it_was() -> None:
    model = reads_shapes()
    before = [(node.get_friendly_name(), node.get_type_name()) for node in model.get_ordered_ops()]
    prepare(model)
    assert [(node.get_friendly_name(), node.get_type_name()) for node in model.get_ordered_ops()] == before


def test_each_node_names_the_op_it_stands_for_and_the_op_it_is_placed_with() -> None:
    graph = graph_of(reads_shapes())
    prepared = prepare(reads_shapes())
    names = [(graph.op_names[v], graph.op_names[u]) for v, u in zip(prepared.op, prepared.home, strict=True)]
    folded = [("axes", "highest"), ("ends", "padded"), ("target", "flat")]
    added = [("padded", "padded")]  # by cloning: the value of the padding
    own = [(name, name) for name in ("flat", "highest", "padded", "x", "y")]
    assert sorted(names) == sorted(folded + added + own)


def test_a_constant_goes_where_it_is_read() -> None:
    prepared = prepare(reads_shapes())
    devices = ["A"] * prepared.graph.num_ops
    devices[prepared.graph.index_of["flat"]] = "B"
    flat = named(prepared.place(devices), "flat")
    assert [node.get_rt_info()["affinity"].astype(str) for node in (flat, *sources(flat))] == ["B", "A", "B"]
