"""Coarsening: App. G's chains, pieces of them, and what a quotient graph preserves."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.graph.coarsen import chain_partition, coarsen, placement_units
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.ir.graph.partition import Partition
from tests.networks import as_networkx


@given(data=st.data())
def test_chains_are_those_of_the_papers_rule(dags: st.SearchStrategy[ComputationGraph], data: st.DataObject) -> None:
    """App. G: an op is in the set of another that nothing else reads, where it reads nothing else."""
    graph = data.draw(dags)
    other = nx.DiGraph(as_networkx(graph))
    links = nx.Graph([(u, v) for u, v in other.edges if other.out_degree(u) == other.in_degree(v) == 1])
    links.add_nodes_from(other)
    chains = chain_partition(graph)
    found = {frozenset(chains.members.of(g).tolist()) for g in range(chains.num_groups)}
    assert found == {frozenset(chain) for chain in nx.connected_components(links)}


@given(data=st.data())
def test_bytes_between_groups_count_each_tensor_once_per_reading_group(
    dags: st.SearchStrategy[ComputationGraph], data: st.DataObject
) -> None:
    graph = data.draw(dags)
    coarse = coarsen(graph, chain_partition(graph))
    label = coarse.partition.labels.tolist()
    edges = zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True)
    sent = {(s, label[d]) for s, d in edges if label[s] != label[d]}
    assert coarse.graph.edge_bytes.sum() == sum(2**s for s, _ in sent)
    assert coarse.graph.output_bytes.sum() == sum(2**s for s in {s for s, _ in sent})


@pytest.mark.parametrize(
    ("flops", "max_share", "labels"),
    [
        ([10, 10, 10, 10, 10, 10, 10, 10], 1.0, [0] * 8),
        ([10, 10, 10, 10, 10, 10, 10, 10], 0.25, [0, 0, 1, 1, 2, 2, 3, 3]),
        ([0, 8, 1, 8, 1], 0.01, [0, 0, 1, 2, 3]),  # what takes nothing is no piece
    ],
)
def test_a_chain_of_products_is_cut_into_pieces_of_max_share(
    flops: list[float], max_share: float, labels: list[int]
) -> None:
    line = graph_from_edges(["MatMul"] * len(flops), [(v - 1, v) for v in range(1, len(flops))], flops=flops)
    assert placement_units(line, max_share=max_share).partition.labels.tolist() == labels


def test_two_chains_are_cut_apart_from_each_other_and_only_in_front_of_a_product() -> None:
    edges = [(0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7)]
    both = graph_from_edges(["MatMul", "Relu", "MatMul", "Relu"] * 2, edges, flops=[8.0] * 8)
    labels = placement_units(both, max_share=0.01).partition.labels
    assert Partition.from_labels(labels).labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("together", "pinned", "labels"),
    [
        ([], [0, 0, 0, 0], [0, 0, 0, 0]),
        ([], [-1, 0, 0, 1], [0, 1, 1, 2]),
        ([[1, 2]], [-1, -1, 0, -1], [0, 1, 1, 2]),  # a device computes both as one
        ([[1, 2]], [-1, 0, 1, -1], [0, 1, 2, 3]),
        ([[1], [0, 2]], [0, -1, -1, -1], [0, 0, 0, 1]),  # with what lies between
        ([[1, 2], [2, 3]], [1, -1, 2, -1], [0, 1, 1, 1]),
    ],
)
def test_pins_part_chains_and_what_a_device_computes_as_one_stays_together(
    together: list[list[int]], pinned: list[int], labels: list[int]
) -> None:
    line = graph_from_edges(["Relu"] * 4, [(0, 1), (1, 2), (2, 3)])
    units = placement_units(line, together=together, pinned=np.array(pinned))
    assert units.partition.labels.tolist() == labels


def test_a_group_is_named_by_its_first_member_and_typed_by_its_heaviest() -> None:
    line = graph_from_edges(
        ["Relu", "MatMul", "Tanh", "Result"],
        [(0, 1), (1, 2), (2, 3)],
        flops=[1, 9, 2, 0],
        shapes=[(1,), (2,), (3,), (4,)],
    )
    group = coarsen(line, chain_partition(line)).graph
    assert (group.op_names, group.op_types, group.shape_of(0)) == (("op0",), ("MatMul",), (3,))


def test_a_cyclic_quotient_is_refused() -> None:
    line = graph_from_edges(["A", "B", "C"], [(0, 1), (1, 2)])
    with pytest.raises(ValueError, match="cycle"):
        coarsen(line, Partition.from_labels(np.asarray([0, 1, 0])))


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


def test_a_partition_of_groups_is_one_of_their_members_and_of_nothing_else() -> None:
    fine = Partition(np.array([0, 1, 0, 2]), 3)
    assert Partition(np.array([1, 0, 1]), 2).refine(fine).labels.tolist() == [1, 0, 1, 1]
    with pytest.raises(ValueError, match="cannot compose: 2 fine groups, but 3 items"):
        Partition.identity(3).refine(Partition.identity(2))


@pytest.mark.parametrize(
    ("labels", "groups", "complaint"),
    [([0, 2], 2, "outside"), ([-1, 1], 2, "outside"), ([0, 0], 2, "empty"), ([0], 2, "empty")],
)
def test_labels_that_are_no_partition_are_refused(labels: list[int], groups: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Partition(np.asarray(labels, dtype=np.int64), groups)
