"""Randomly wired networks: laws of the random graphs, of modules and of channels."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.base.errors import OptionError
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.models.diviml import RandomWiring, random_wired
from tests.networks import as_networkx


@pytest.mark.parametrize(("family", "least", "most"), [("ws", 64, 64), ("ba", 135, 135), ("er", 60, 140)])
@given(st.integers(0, 300))
def test_a_module_is_a_connected_graph_of_its_family(family: str, least: int, most: int, seed: int) -> None:
    graph = _graph(RandomWiring(family, 32, 1, seed=seed))
    nodes = [v for v, name in enumerate(graph.op_names) if ".n" in name]
    module = as_networkx(graph).subgraph(nodes)
    assert nx.is_weakly_connected(module)
    assert least <= module.number_of_edges() <= most  # WS: 2 a node, BA: 5 a node after the first 5


def _graph(wiring: RandomWiring) -> ComputationGraph:
    return random_wired(wiring).graph


@pytest.mark.parametrize(("family", "channels"), [("ws", 1), ("er", 2), ("ba", 3)])
def test_ops_are_those_of_modules_channels_stem_and_head(family: str, channels: int) -> None:
    graph = _graph(RandomWiring(family, nodes=10, modules=5, channels=channels))
    assert graph.num_ops == 10 * 5 + 2 * channels * 5 + 2


@pytest.mark.parametrize(("dependence", "channels"), [("weak", 1), ("weak", 3), ("strong", 3)])
def test_so_many_edges_lead_from_module_to_module_as_there_are_channels(dependence: str, channels: int) -> None:
    graph = _graph(RandomWiring("er", 10, 4, channels, dependence, seed=7))
    home = [name.split(".")[0] for name in graph.op_names]
    crossing = Counter((home[u], home[v]) for u, v in zip(graph.edge_src, graph.edge_dst, strict=True))
    assert [crossing[f"m{t}", f"m{t + 1}"] for t in range(3)] == [channels] * 3
    assert all(a == b or (a, b) in {("stem", "m0"), ("m0", "m1"), ("m1", "m2"), ("m2", "m3"), ("m3", "head")}
               for a, b in crossing)  # fmt: skip


@given(st.integers(0, 300))
def test_in_a_strong_module_one_input_reaches_all_nodes_and_all_reach_one_output(seed: int) -> None:
    graph = _graph(RandomWiring("er", 10, 1, 3, "strong", seed))
    net, index = as_networkx(graph), graph.index_of
    nodes = {index[f"m0.n{v}"] for v in range(10)}
    assert nodes <= nx.descendants(net, index["m0.in0"])
    assert nodes <= nx.ancestors(net, index["m0.out0"])


def test_more_modules_leave_the_first_ones_as_they_are() -> None:
    short, long = (_graph(RandomWiring("ws", 10, modules)) for modules in (2, 6))
    assert long.op_names[: short.num_ops - 1] == short.op_names[:-1]
    assert np.array_equal(long.flops[: short.num_ops - 1], short.flops[:-1])


def test_a_node_has_the_operations_and_weights_of_a_separable_convolution_between_a_stem_and_a_head() -> None:
    graph = _graph(RandomWiring("er", 32, 1, batch=2))
    plane, kernels = 2 * 109 * 28 * 28, 109 * 9 + 109 * 109
    for v in range(32):
        op = graph.index_of[f"m0.n{v}"]
        read = len(graph.predecessors.of(op))
        beside = 2 * read + 3  # weighted sum, ReLU, batch norm
        assert graph.flops[op] == 2 * 2 * 28 * 28 * kernels + plane * beside
        assert graph.weight_bytes[op] == 4 * (read + kernels + 2 * 109)
    assert graph.flops[[0, -1]].tolist() == [2 * 9 * 3 * plane, plane + 2 * 2 * 109 * 1000]
    assert graph.weight_bytes[[0, -1]].tolist() == [4 * 9 * 3 * 109, 4 * 109 * 1000]
    out = graph.index_of["m0.out0"]
    assert graph.flops[out] == plane * len(graph.predecessors.of(out))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"family": "xx"}, "unknown family 'xx'; choose one of ws, er, ba"),
        ({"dependence": "some"}, "unknown dependence 'some'; choose one of weak, strong"),
        ({"channels": 0}, r"channels must lie in 1\.\.8, not 0"),
        ({"seed": -1}, r"seed must lie in 0\.\."),
        ({"family": "ws", "nodes": 4}, r"nodes must lie in 5\.\.256"),
        ({"family": "ba", "nodes": 5}, r"nodes must lie in 6\.\.256"),
    ],
)
def test_a_value_out_of_range_is_refused(wrong: dict[str, str | int], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        RandomWiring(**wrong)  # type: ignore[arg-type]  # wrong on purpose
