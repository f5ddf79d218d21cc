"""Numeric bisection: the op it names, on random graphs and on two devices that treat denormal numbers unlike.

One CPU device flushes numbers below 1.2e-38 to zero and the other does not: an op that gives such numbers differs.
"""

from __future__ import annotations

import sys
from collections.abc import Container
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openvino import opset13

from hsdag.base.errors import HsdagError, OptionError, SearchError
from hsdag.commands.bisect import Bisection, Bisector, OpComparison, bisect
from hsdag.ir.device import parse_devices
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges

DEVICES = "FLUSHED=CPU[CPU_DENORMALS_OPTIMIZATION=YES],EXACT=CPU[CPU_DENORMALS_OPTIMIZATION=NO]"
SMALL = np.float32(1e-39)


def bisector_of(graph: ComputationGraph, differs: set[int], failing: Container[int] = ()) -> Bisector:
    def look(v: int) -> OpComparison:
        failure = "crashed" if v in failing else None
        return OpComparison(str(v), "MatMul", 1.0, v in differs and failure is None, failure)

    return Bisector(graph, look)


@st.composite
def graphs(draw: st.DrawFn) -> ComputationGraph:
    num = draw(st.integers(2, 24))
    edges = {(draw(st.integers(0, v - 1)), v) for v in range(1, num) for _ in range(draw(st.integers(1, 3)))}
    return graph_from_edges(["MatMul"] * num, sorted(edges))


@given(graphs(), st.data())
def test_whatever_differs_all_that_the_named_op_reads_agrees_or_fails(
    graph: ComputationGraph, data: st.DataObject
) -> None:
    ops = st.sets(st.integers(0, graph.num_ops - 1))
    differs, failing = data.draw(ops), data.draw(ops)
    ends = [v for v in range(graph.num_ops) if not len(graph.successors.of(v))]
    first = bisector_of(graph, differs, failing).first(ends)
    if first is None:
        assert not (differs - failing) & set(ends)
    else:
        assert first in differs - failing
        assert not (differs - failing) & set(graph.predecessors.of(first).tolist())


def test_a_chain_takes_about_as_many_probes_as_its_length_has_bits() -> None:
    graph = graph_from_edges(["MatMul"] * 1000, [(v, v + 1) for v in range(999)])
    bisector = bisector_of(graph, set(range(617, 1000)))
    assert bisector.first([999]) == 617
    assert len(bisector.probes) <= 13


def small_model(*, hidden: bool) -> ov.Model:
    """Products, then one that makes numbers denormal; ``hidden`` ones are beside ordinary ones until a slice."""
    rng = np.random.default_rng(0)
    x, scale = opset13.parameter([1, 8], np.float32, name="x"), opset13.parameter([1, 8], np.float32, name="scale")
    node = x
    for k in range(3):
        weight = opset13.constant(rng.standard_normal((8, 8)).astype(np.float32))
        node = opset13.tanh(opset13.matmul(node, weight, False, False), name=f"before{k}")
    node = opset13.multiply(node, scale, name="planted")
    if hidden:
        cut = [opset13.constant(np.array(ends)) for ends in ([0, 0], [1, 4], [1, 1])]
        node = opset13.slice(node, *cut, name="shown")
    for k in range(3):
        node = opset13.abs(opset13.negative(node), name=f"after{k}")
    return ov.Model([opset13.result(node)], [x, scale], "small")


def bisected(tmp_path: Path, scale: np.ndarray, *, hidden: bool = False) -> Bisection:
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, x=np.linspace(-1, 1, 8, dtype=np.float32)[None], scale=scale.astype(np.float32)[None])
    return bisect(small_model(hidden=hidden), parse_devices(DEVICES), inputs=inputs)


def test_the_op_that_two_devices_compute_unlike_is_named_as_the_cause(tmp_path: Path) -> None:
    found = bisected(tmp_path, np.full(8, SMALL))
    assert found.first is not None
    assert found.first.op == "planted"
    assert found.is_own
    assert [(read.op, read.differs) for read in found.reads] == [("before2", False)]
    assert "planted (Multiply) is the first op that differs" in " ".join(found.sentences)


@pytest.mark.slow
def test_an_op_that_only_shows_what_came_before_is_told_from_the_cause(tmp_path: Path) -> None:
    found = bisected(tmp_path, np.array([SMALL] * 4 + [1.0] * 4), hidden=True)
    assert found.first is not None
    assert found.first.op == "shown"
    assert found.is_own is False
    assert "The difference is not its own" in " ".join(found.sentences)


def test_where_nothing_differs_there_is_nothing_to_look_for(tmp_path: Path) -> None:
    found = bisected(tmp_path, np.ones(8))
    assert (found.first, found.probes, found.whole.differs) == (None, (), False)
    assert "nothing to look for" in found.sentences[0]


def test_numbers_that_are_not_finite_on_one_device_alone_differ(tmp_path: Path) -> None:
    x, y = opset13.parameter([4], np.float32, name="x"), opset13.parameter([4], np.float32, name="y")
    both = opset13.add(x, y, name="sum")
    model = ov.Model([opset13.result(opset13.relu(opset13.divide(x, y, name="ratio"))), opset13.result(both)], [x, y])
    np.savez(tmp_path / "i.npz", x=np.full(4, SMALL), y=np.full(4, SMALL))  # 0 / 0 where they are flushed
    found = bisect(model, parse_devices(DEVICES), inputs=tmp_path / "i.npz")
    assert found.whole.difference is None
    assert found.first is not None
    assert found.first.op in ("ratio", "sum")
    found.model_dump_json()


DIES = """
import os
from hsdag.base.processes import main

class Dies:
    def handle(self, request): os._exit(3)

main(lambda setup, channel: Dies())
"""


def test_a_process_that_ends_and_mistakes_of_the_user_are_said(tmp_path: Path) -> None:
    with pytest.raises(SearchError, match="do not both run the model: the worker exited with code 3"):
        bisect(small_model(hidden=False), parse_devices(DEVICES), command=(sys.executable, "-c", DIES))
    with pytest.raises(OptionError, match="compares two devices, not 1"):
        bisect(small_model(hidden=False), parse_devices("CPU"))
    with pytest.raises(HsdagError, match=r"no such file: .*absent\.npz"):
        bisect(small_model(hidden=False), parse_devices(DEVICES), inputs=tmp_path / "absent.npz")
