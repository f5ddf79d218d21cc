"""Partition: its laws, and the split into convex groups against brute force."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir import ComputationGraph, Partition, convex_split, graph_from_edges

Drawn = tuple[ComputationGraph, Partition, Partition]


def draw_split(data: st.DataObject, dags: st.SearchStrategy[ComputationGraph]) -> Drawn:
    graph = data.draw(dags)
    labels = data.draw(st.lists(st.integers(0, 3), min_size=graph.num_ops, max_size=graph.num_ops))
    partition = Partition.from_labels(np.asarray(labels, dtype=np.int64))
    return graph, partition, convex_split(partition, graph.topological_order, graph.edge_src, graph.edge_dst)


def quotient(graph: ComputationGraph, partition: Partition) -> nx.DiGraph:
    pairs = zip(partition.labels[graph.edge_src].tolist(), partition.labels[graph.edge_dst].tolist(), strict=True)
    return nx.DiGraph((a, b) for a, b in pairs if a != b)


@given(data=st.data())
def test_no_path_leaves_a_part_and_returns(dags: st.SearchStrategy[ComputationGraph], data: st.DataObject) -> None:
    graph, _, parts = draw_split(data, dags)
    closure = nx.transitive_closure_dag(nx.DiGraph(graph.to_networkx()))
    label = parts.labels.tolist()
    for u, w in closure.edges:
        if label[u] == label[w]:
            between = set(closure.successors(u)) & set(closure.predecessors(w))
            assert {label[v] for v in between} <= {label[u]}


@given(data=st.data())
def test_the_quotient_of_the_split_is_acyclic(dags: st.SearchStrategy[ComputationGraph], data: st.DataObject) -> None:
    graph, _, parts = draw_split(data, dags)
    assert nx.is_directed_acyclic_graph(quotient(graph, parts))
    assert parts.is_acyclic(graph.edge_src, graph.edge_dst)


@given(data=st.data())
def test_every_part_lies_in_one_group(dags: st.SearchStrategy[ComputationGraph], data: st.DataObject) -> None:
    _, partition, parts = draw_split(data, dags)
    pairs = set(zip(parts.labels.tolist(), partition.labels.tolist(), strict=True))
    assert len(pairs) == parts.num_groups


@given(data=st.data())
def test_groups_on_no_cycle_stay_whole(dags: st.SearchStrategy[ComputationGraph], data: st.DataObject) -> None:
    graph, partition, parts = draw_split(data, dags)
    cyclic: set[int] = set()
    for component in nx.strongly_connected_components(quotient(graph, partition)):
        cyclic |= component if len(component) > 1 else set()
    for g in set(range(partition.num_groups)) - cyclic:
        assert len(set(parts.labels[partition.labels == g].tolist())) == 1


def test_a_group_beside_a_cycle_stays_whole_though_its_ops_lie_at_different_depths() -> None:
    graph = graph_from_edges(["Op"] * 6, [(0, 1), (1, 2), (3, 5)])
    partition = Partition.from_labels(np.asarray([0, 1, 0, 2, 3, 3]))
    parts = convex_split(partition, graph.topological_order, graph.edge_src, graph.edge_dst)
    assert parts.labels.tolist() == [0, 1, 2, 3, 4, 4]


@given(data=st.data())
def test_acyclicity_agrees_with_networkx(dags: st.SearchStrategy[ComputationGraph], data: st.DataObject) -> None:
    graph, partition, _ = draw_split(data, dags)
    expected = nx.is_directed_acyclic_graph(quotient(graph, partition))
    assert partition.is_acyclic(graph.edge_src, graph.edge_dst) is expected


@given(labels=st.lists(st.integers(-5, 5), max_size=20))
def test_from_labels_keeps_the_grouping_and_numbers_by_first_member(labels: list[int]) -> None:
    partition = Partition.from_labels(np.asarray(labels, dtype=np.int64))
    assert partition.num_groups == len(set(labels))
    first_seen = list(dict.fromkeys(labels))
    assert [first_seen[g] for g in partition.labels.tolist()] == labels


@given(pairs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_from_pairs_gives_connected_components(pairs: list[tuple[int, int]]) -> None:
    other = nx.Graph(pairs)
    other.add_nodes_from(range(10))
    table = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    partition = Partition.from_pairs(10, table[:, 0], table[:, 1])
    found = {frozenset(partition.members.of(g).tolist()) for g in range(partition.num_groups)}
    assert found == {frozenset(component) for component in nx.connected_components(other)}


@given(data=st.data())
def test_refine_composes_and_identity_is_neutral(data: st.DataObject) -> None:
    fine = Partition.from_labels(np.asarray(data.draw(st.lists(st.integers(0, 5), min_size=1)), dtype=np.int64))
    size = fine.num_groups
    coarse = Partition.from_labels(
        np.asarray(data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)), dtype=np.int64)
    )
    composed = coarse.refine(fine)
    assert composed.labels.tolist() == [int(coarse.labels[g]) for g in fine.labels]
    assert Partition.identity(size).refine(fine).labels.tolist() == fine.labels.tolist()


def test_refine_refuses_sizes_that_do_not_match() -> None:
    with pytest.raises(ValueError, match="cannot compose: 2 fine groups, but 3 items"):
        Partition.identity(3).refine(Partition.identity(2))


@pytest.mark.parametrize(("labels", "groups", "complaint"), [([0, 2], 2, "outside"), ([0, 0], 2, "empty")])
def test_labels_that_are_no_partition_are_refused(labels: list[int], groups: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Partition(np.asarray(labels, dtype=np.int64), groups)
