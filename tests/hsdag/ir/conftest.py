"""Small models, random graphs and placements over two added CPU devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray
from openvino import opset13 as op

from hsdag.ir.device import parse_devices
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.ir.placement.placement import Placement
from tests.placements import by_hand

SINGLE = "INFERENCE_PRECISION_HINT=f32"
DEVICES = (f"FAST=CPU[INFERENCE_NUM_THREADS=2;{SINGLE}]", f"SLOW=CPU[INFERENCE_NUM_THREADS=1;{SINGLE}]")


@pytest.fixture(scope="session")
def place() -> Callable[[ov.Model, Callable[[int], str]], Placement]:
    """A placement from a device per co-location set."""

    def place_sets(model: ov.Model, device_of_set: Callable[[int], str]) -> Placement:
        graph = graph_of(model.clone())
        sets = colocate(graph).sets.labels.tolist()
        names = dict(zip(graph.canonical_names, graph.op_names, strict=True))
        return by_hand(graph, parse_devices(",".join(DEVICES)), [device_of_set(s) for s in sets], names=names)

    return place_sets


@pytest.fixture(scope="session")
def alternating(
    place: Callable[[ov.Model, Callable[[int], str]], Placement],
) -> Callable[[ov.Model], Placement]:
    """Every second co-location set on SLOW."""
    return lambda model: place(model, lambda s: ("FAST", "SLOW")[s % 2])


@pytest.fixture(scope="session")
def run() -> Callable[[Any, ov.Model], list[NDArray[np.float32]]]:
    """Outputs of a compiled model on fixed random inputs."""

    def infer(compiled: Any, model: ov.Model) -> list[NDArray[np.float32]]:
        rng = np.random.default_rng(0)
        inputs = [rng.standard_normal(list(port.get_shape())).astype(np.float32) for port in model.inputs]
        result = compiled(inputs)
        return [np.array(result[port]) for port in compiled.outputs]

    return infer


@pytest.fixture
def model() -> ov.Model:
    """Three convolutions, two of them with one weight; one computed shape read by two reshapes."""
    rng = np.random.default_rng(0)
    x = op.parameter([1, 3, 8, 8], np.float32, name="x")
    first = op.constant(rng.standard_normal((4, 3, 3, 3)).astype(np.float32), name="first")
    shared = op.constant((rng.standard_normal((4, 4, 3, 3)) / 6).astype(np.float32), name="shared")
    same = ([1, 1], [1, 1], [1, 1], [1, 1])
    conv1 = op.convolution(x, first, *same, name="conv1")
    conv2 = op.convolution(op.relu(conv1, name="relu"), shared, *same, name="conv2")
    conv3 = op.convolution(conv2, shared, *same, name="conv3")
    batch = op.gather(op.shape_of(conv3, name="shape"), op.constant([0]), op.constant(0), name="batch")
    target = op.concat([batch, op.constant([-1])], 0, name="target")
    flat2 = op.reshape(conv2, target, special_zero=False, name="flat2")
    flat3 = op.reshape(op.tanh(conv3, name="tanh"), target, special_zero=False, name="flat3")
    return ov.Model([op.add(flat2, flat3, name="sum")], [x], "sample")


@pytest.fixture(scope="session")
def dags() -> st.SearchStrategy[ComputationGraph]:
    """Graphs of up to 14 ops: edges lead from a lower to a higher number, parallel ones among them."""

    def build(pairs: list[tuple[int, int]], flops: list[int]) -> ComputationGraph:
        n = len(flops)
        edges = [(min(a % n, b % n), max(a % n, b % n)) for a, b in pairs if a % n != b % n]
        reads = {d for _, d in edges}
        types = ["Relu" if v in reads else ("Constant", "Parameter")[v % 2] for v in range(n)]
        types = ["MatMul" if t == "Relu" and v % 3 == 0 else t for v, t in enumerate(types)]
        types = ["ShapeOf" if t == "Relu" and v % 5 == 0 else t for v, t in enumerate(types)]
        return graph_from_edges(types, edges, flops=flops, output_bytes=[2**v for v in range(n)])

    node = st.integers(0, 13)
    pairs = st.lists(st.tuples(node, node), max_size=30)
    return st.builds(build, pairs, st.lists(st.integers(0, 9), min_size=1, max_size=14))
