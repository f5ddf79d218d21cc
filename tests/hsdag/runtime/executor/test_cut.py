"""The cut: instances, the coarsest parts that delay no device, and subgraphs that hand on all that is read."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.errors import PlacementError
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


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(0, 4)), min_size=2, max_size=7))
def test_on_trees_a_join_is_copied_exactly_where_brute_force_sends_fewer_bytes(
    nodes: list[tuple[int, int, int]],
) -> None:
    """Every op is read once, by a later one; a join that reads inputs of the model alone stays at home."""
    n = len(nodes)
    reader = [v + 1 + parent % (n - 1 - v) for v, (parent, _, _) in enumerate(nodes[:-1])]
    device, size = [d for _, d, _ in nodes], [1 + s for _, _, s in nodes]
    joins = [v for v in range(n - 1) if v in reader and size[v] != 1]
    types = ["Concat" if s != 1 else "Tanh" for s in size] + ["Parameter", "Result"]
    edges = [(n, v) for v in range(n) if v not in reader] + [*enumerate(reader), (n - 1, n + 1)]
    graph = graph_from_edges(types, edges, output_bytes=[*size, 1, 1])
    runs_on = [*device]
    for v in reversed(range(n - 1)):
        choices = [set(c) for k in range(1, n) for c in itertools.combinations(joins, k) if v in c]
        brought = [_brought_bytes(v, runs_on[reader[v]], c, reader, device, size) for c in choices]
        if device[v] != runs_on[reader[v]] and min(brought, default=size[v]) < size[v]:
            runs_on[v] = runs_on[reader[v]]
    instances = instances_of(graph, np.asarray([*device, 0, 0], dtype=np.int64))
    assert dict(zip(instances.op.tolist(), instances.device.tolist(), strict=True)) == dict(enumerate(runs_on))


def _brought_bytes(v: int, to: int, copied: set[int], reader: list[int], device: list[int], size: list[int]) -> int:
    """Bytes sent to a device for op v, where ``copied`` are computed there: what these read and is elsewhere."""
    there = {v}
    for u in reversed(range(v)):
        if reader[u] in there & copied and u in copied:
            there.add(u)
    read = {u for u in range(v) if reader[u] in there}
    return sum(size[u] for u in read - there if device[u] != to)


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
    assert plan.ranks.tolist() == [min(priority[v] for v in part.ops) for part in plan.cut.subgraphs]
