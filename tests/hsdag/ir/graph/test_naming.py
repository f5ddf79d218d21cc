"""Canonical names: the same for one structure, however and whenever it is read."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openvino import opset6
from openvino import opset13 as op

from hsdag.ir.errors import PlacementError
from hsdag.ir.graph.build import canonical_names, fingerprint, graph_of, read_graph
from hsdag.ir.graph.computation_graph import Csr
from hsdag.ir.graph.reader import load_model
from hsdag.ir.placement.placement import Placement

Place = Callable[[ov.Model, Callable[[int], str]], Placement]


def read(path: Path, batch: int = 2) -> ov.Model:
    model = ov.Core().read_model(path)
    model.reshape([batch, 3, 8, 8])
    return model


def test_inputs_of_an_op_are_numbered_in_the_order_of_its_ports() -> None:
    """Files hold these names: another order of the walk would give the ops of saved placements other names."""
    reads = Csr.build(4, np.array([2, 2, 3]), np.array([1, 0, 2]))  # the first port of op 2 reads op 1
    assert canonical_names(["Relu", "Relu", "Subtract", "Result"], reads, [3]) == (
        "Relu:1",
        "Relu:0",
        "Subtract:0",
        "Result:0",
    )


def test_reshaping_keeps_canonical_names_and_changes_the_fingerprint(onnx_file: Path) -> None:
    first, second = graph_of(read(onnx_file)), graph_of(read(onnx_file, batch=5))
    assert first.canonical_names == second.canonical_names
    assert fingerprint(first) != fingerprint(second)


def test_a_model_whose_pad_has_no_value_is_the_model_that_its_ir_is(
    tmp_path: Path, core: ov.Core, place: Place
) -> None:
    """OpenVINO's files and clones have a constant more than such a model."""
    x = op.parameter([2, 3], np.float32, name="x")
    padded = op.pad(op.relu(x), op.constant([0, 1]), op.constant([0, 1]), "constant")
    model = ov.Model([op.result(op.tanh(padded))], [x], "m")
    ov.serialize(model, tmp_path / "m.xml")
    assert fingerprint(read_graph(model)) == fingerprint(read_graph(tmp_path / "m.xml"))
    place(load_model(tmp_path / "m.xml"), lambda s: ("FAST", "SLOW")[s % 2]).compile(core, model)


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


def test_a_placement_of_one_read_compiles_on_the_next_and_fixes_its_shapes(
    onnx_file: Path, core: ov.Core, place: Place
) -> None:
    text = place(read(onnx_file), lambda s: ("FAST", "SLOW")[s % 2]).to_json()
    model = core.read_model(onnx_file)
    compiled = Placement.from_json(text).compile(core, model)
    assert int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")) > 1
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    expected = core.compile_model(core.read_model(onnx_file), "CPU")([x])
    for one, other in zip(compiled([x]).values(), expected.values(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert model.inputs[0].get_partial_shape().is_dynamic


def test_applying_to_other_shapes_is_refused_with_the_shapes(onnx_file: Path, place: Place) -> None:
    placement = place(read(onnx_file), lambda _: "FAST")
    model = ov.Core().read_model(onnx_file)
    model.reshape([5, 3, 8, 8])
    complaint = r"with the input shapes x\[2,3,8,8\], and this model has x\[5,3,8,8\]: reshape"
    with pytest.raises(PlacementError, match=complaint):
        placement.apply(model)


def test_a_file_of_version_1_loads_where_its_names_match(model: ov.Model, core: ov.Core, place: Place) -> None:
    new = place(model, lambda s: ("FAST", "SLOW")[s % 2])
    affinity = {new.names[op]: device for op, device in new.affinity.items()}
    record = {"name": "m", "fingerprint": "sha256:" + "0" * 64}
    fields = {"version": 1, "affinity": affinity, "names": {}, "model": record, "priority": {"conv1": 3}}
    old = Placement.from_json(Placement.model_validate({**new.model_dump(), **fields}).to_json())
    graph = graph_of(model)
    assert old.devices_of(graph) == new.devices_of(graph)
    assert (old.priority_of(graph) or [])[graph.index_of["conv1"]] == 3
    old.compile(core, model)
    x = op.parameter([2], np.float32, name="x")
    with pytest.raises(PlacementError, match="disagree on"):
        old.apply(ov.Model([op.relu(x)], [x], "other"))


@st.composite
def rooted_graphs(draw: st.DrawFn) -> tuple[list[str], list[list[int]], list[int]]:
    """Types [N], producers in port order [N], and roots: ops of few types, hence with many symmetries."""
    n = draw(st.integers(1, 12))
    types = draw(st.lists(st.sampled_from(["A", "B"]), min_size=n, max_size=n))
    inputs = [draw(st.lists(st.integers(0, v - 1), max_size=3)) if v else [] for v in range(n)]
    read = {u for producers in inputs for u in producers}
    return types, inputs, draw(st.permutations([v for v in range(n) if v not in read]))


def named_structure(types: list[str], inputs: list[list[int]], roots: list[int]) -> dict[str, list[str]]:
    """By canonical name: the canonical names of an op's producers."""
    edges = [(u, v) for v, producers in enumerate(inputs) for u in producers]
    src, dst = np.asarray(edges, dtype=np.int64).reshape(-1, 2).T
    names = canonical_names(types, Csr.build(len(types), dst, src), roots)
    assert len(set(names)) == len(types)
    return {names[v]: [names[u] for u in producers] for v, producers in enumerate(inputs)}


@given(case=rooted_graphs(), seed=st.integers(0, 2**32))
def test_renumbering_ops_changes_no_name_and_mixes_up_no_symmetric_branches(
    case: tuple[list[str], list[list[int]], list[int]], seed: int
) -> None:
    types, inputs, roots = case
    new = list(range(len(types)))
    random.Random(seed).shuffle(new)
    renumbered_types, renumbered_inputs = [""] * len(types), [list[int]()] * len(types)
    for v, w in enumerate(new):
        renumbered_types[w], renumbered_inputs[w] = types[v], [new[u] for u in inputs[v]]
    again = named_structure(renumbered_types, renumbered_inputs, [new[v] for v in roots])
    assert again == named_structure(types, inputs, roots)
