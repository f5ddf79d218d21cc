"""The cut: instances, the coarsest parts that delay no device, and subgraphs that hand on all that is read."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.base.errors import PlacementError
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.runtime.executor import merging
from hsdag.runtime.executor.cut import MODEL_INPUT, initial_parts, instances_of
from hsdag.runtime.executor.merging import plan_cut
from tests.hsdag.runtime.executor.random_cuts import Placed, crossings, instance_graph, placed_graphs


@given(placed_graphs)
def test_subgraphs_read_what_earlier_ones_hand_out_and_nothing_else_is_handed_out(placed: Placed) -> None:
    cut = plan_cut(placed.graph, placed.device, placed.num_devices).cut
    assert [v for v, _ in cut.results] == [v for v, kind in enumerate(placed.graph.op_types) if kind == "Result"]
    read = {t for part in cut.subgraphs for t in part.inputs if t.source != MODEL_INPUT} | {t for _, t in cut.results}
    assert read == {t for part in cut.subgraphs for t in part.outputs}
    assert all(part.outputs for part in cut.subgraphs)
    edges = {(t.source, s) for s, part in enumerate(cut.subgraphs) for t in part.inputs if t.source != MODEL_INPUT}
    assert all(source < s for source, s in edges)
    assert cut.edges.tolist() == sorted(map(list, edges))


@pytest.mark.parametrize(
    ("a", "c", "e", "is_result", "joins"),
    [
        (1, 10, 10, False, {"c": [1], "e": [1]}),  # to send a alone is less
        (1, 10, 10, True, {"c": [0, 1], "e": [1]}),  # c is also wanted at home
        (10, 10, 10, False, {"c": [0], "e": [0]}),  # as much
        (1, 10, 1, False, {"c": [0], "e": [0]}),  # e is as small as a
        (20, 5, 9, False, {"c": [0], "e": [1]}),  # c is smaller than a
    ],
)
def test_joins_run_where_they_are_read_if_fewer_bytes_are_sent_that_way(
    a: int, c: int, e: int, is_result: bool, joins: dict[str, list[int]]
) -> None:
    """On 0 are a, join c of a and b, join e of c, and join f of the input; on 1 are b, and d, which reads e and f."""
    types = ["Parameter", "MatMul", "MatMul", "Concat", "Relu", "Concat", "MatMul", "Result", "Result"]
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (0, 5), (4, 6), (5, 6), (6, 7), (3 if is_result else 6, 8)]
    graph = graph_from_edges(types, edges, output_bytes=[9, a, 9, c, e, 9, 9, 9, 9])
    instances = instances_of(graph, np.array([0, 0, 1, 0, 0, 0, 1, 1, 1]))
    runs_on: dict[str, list[int]] = {}
    for op, device in zip(instances.op.tolist(), instances.device.tolist(), strict=True):
        runs_on.setdefault("-abcefd"[op], []).append(device)
    assert runs_on == {"a": [0], "b": [1], "f": [0], "d": [1]} | joins


@given(placed_graphs)
def test_parts_are_what_edges_join_whose_ends_wait_for_the_same_and_hold_back_the_same(placed: Placed) -> None:
    instances, parts = placed.initial()
    graph = instance_graph(instances)
    around = crossings(instances, graph)
    joined = nx.Graph((u, v) for u, v in graph.edges if around[u] == around[v])
    joined.add_nodes_from(graph)
    found = {frozenset(parts.members.of(p).tolist()) for p in range(parts.num_groups)}
    assert found == {frozenset(part) for part in nx.connected_components(joined)}


def test_an_op_of_which_only_the_shape_is_read_does_not_run() -> None:
    types = ["Parameter", "MatMul", "MatMul", "ShapeOf", "Reshape", "Result"]
    graph = graph_from_edges(types, [(0, 1), (1, 2), (2, 3), (0, 4), (3, 4), (4, 5)])
    instances = instances_of(graph, np.zeros(6, dtype=np.int64))
    assert [types[v] for v in instances.op.tolist()] == ["Reshape"]


def test_crossings_count_beyond_the_first_64() -> None:
    """A zigzag of 70 ops, behind it a, b and d on the last one's device; b reads x and is read by y, on the other."""
    zigzag, (a, b, d, x, y) = range(1, 71), range(71, 76)
    edges = [*zip(range(70), zigzag, strict=True), (70, a), (a, b), (b, d), (0, x), (x, b), (b, y), (d, 76), (y, 77)]
    graph = graph_from_edges(["Parameter", *["MatMul"] * 75, "Result", "Result"], edges)
    device = np.array([0, *(v % 2 for v in zigzag), 0, 0, 0, 1, 1, 0, 1])
    assert initial_parts(instances_of(graph, device)).num_groups == 75 - 1  # a alone joins another


def test_a_placement_of_too_many_subgraphs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MOST_TRIALS", 0)
    n = 8
    graph = graph_from_edges(["Parameter", *["MatMul"] * n, "Result"], [(v, v + 1) for v in range(n + 1)])
    monkeypatch.setattr(merging, "MOST_SUBGRAPHS", n)
    assert plan_cut(graph, np.arange(n + 2) % 2, 2).parts.num_groups == n
    monkeypatch.setattr(merging, "MOST_SUBGRAPHS", n - 1)
    with pytest.raises(PlacementError, match="has 8 parts, more than 7; place larger parts together"):
        plan_cut(graph, np.arange(n + 2) % 2, 2)


@given(placed_graphs, st.integers(0, 99))
def test_the_order_of_ranks_is_that_of_the_smallest_priority_of_each_subgraph(placed: Placed, seed: int) -> None:
    priority = np.random.default_rng(seed).permutation(placed.graph.num_ops).astype(np.float64)
    plan = plan_cut(placed.graph, placed.device, placed.num_devices, priority=priority)
    assert plan.priority.tolist() == [min(priority[v] for v in part.ops) for part in plan.cut.subgraphs]
