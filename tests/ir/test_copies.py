"""Private instances: who gets a copy, and that merging takes all of them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.ir import Placement, fingerprint, graph_of
from hsdag.ir.copies import COPY_MARK, make_private, merge_copies

Alternating = Callable[[ov.Model], Placement]


def sources(node: ov.Node) -> list[ov.Node]:
    return [port.get_source_output().get_node() for port in node.inputs()]


def named(model: ov.Model, name: str) -> ov.Node:
    return next(node for node in model.get_ops() if node.get_friendly_name() == name)


def test_no_floating_op_is_read_on_two_devices(model: ov.Model, alternating: Alternating) -> None:
    placed = alternating(model).apply(model)
    floating = ("Constant", "ShapeOf", "Gather", "Concat")
    for node in placed.get_ops():
        for source in sources(node):
            if source.get_type_name() in floating:
                assert source.get_rt_info()["affinity"].astype(str) == node.get_rt_info()["affinity"].astype(str)


def test_every_reader_of_a_shared_weight_has_an_instance_with_its_value(model: ov.Model) -> None:
    expected = named(model, "shared").get_data()
    make_private(model, graph_of(model))
    first, second = sources(named(model, "conv2"))[1], sources(named(model, "conv3"))[1]
    assert (first.get_friendly_name(), second.get_friendly_name()) == ("shared", f"shared{COPY_MARK}conv3")
    assert np.array_equal(second.get_data(), expected)


@pytest.mark.parametrize("reader", ["flat2", "flat3"])
def test_a_computed_shape_becomes_a_constant_under_each_readers_arithmetic(model: ov.Model, reader: str) -> None:
    make_private(model, graph_of(model))
    target = sources(named(model, reader))[1]
    assert target.get_type_name() == "Concat"
    shape = sources(sources(target)[0])[0]
    assert shape.get_friendly_name() == f"shape{COPY_MARK}{reader}"
    assert shape.get_data().tolist() == [1, 4, 8, 8]


def test_a_shape_that_depends_on_the_data_is_computed_once() -> None:
    x = op.parameter([2, 3], np.float32, name="x")
    where = op.non_zero(x, name="where")
    count = op.shape_of(where, name="count")
    first, second = op.add(count, op.constant([1, 1]), name="a"), op.relu(x, name="b")
    ends = [op.add(op.reduce_sum(where, op.constant([0, 1])), first), op.tile(second, count, name="c")]
    model = ov.Model([op.result(end) for end in ends], [x], "m")
    make_private(model, graph_of(model))
    assert [node.get_type_name() for node in model.get_ops() if "count" in node.get_friendly_name()] == ["ShapeOf"]
    values = np.asarray([[1, 0, 2], [0, 0, 3]], dtype=np.float32)
    assert ov.Core().compile_model(model, "CPU")([values])[1].shape == (4, 9)


def test_merging_gives_the_graph_from_before(model: ov.Model) -> None:
    before = fingerprint(graph_of(model))
    make_private(model, graph_of(model))
    assert fingerprint(graph_of(model)) != before
    merge_copies(model)
    assert fingerprint(graph_of(model)) == before


def test_a_placement_leaves_no_copies_behind_when_another_comes(model: ov.Model, alternating: Alternating) -> None:
    placement = alternating(model)
    counts = [Counter(node.get_type_name() for node in placement.apply(model).get_ops()) for _ in range(3)]
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("rounds", [1, 2])
def test_constants_that_share_a_name_are_not_mixed_up(rounds: int) -> None:
    x = op.parameter([2], np.float32, name="x")
    one, ten, hundred = (op.constant(np.full(2, value, np.float32), name="k") for value in (1, 10, 100))
    a0, a1 = op.add(one, x, name="a0"), op.add(ten, x, name="a1")
    model = ov.Model([op.concat([ten, one, a1, hundred, a0], 0, name="all")], [x], "m")
    for _ in range(rounds):
        make_private(model, graph_of(model))
        merge_copies(model)
    found = ov.Core().compile_model(model, "CPU")([np.asarray([2, 3], np.float32)])[0]
    assert found.tolist() == [10, 10, 1, 1, 12, 13, 100, 100, 3, 4]
