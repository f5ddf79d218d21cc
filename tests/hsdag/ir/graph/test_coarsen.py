"""Coarsening: App. G chains against a plain reading of the rule, and what a quotient graph preserves."""

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


def chains_by_the_rule(graph: ComputationGraph) -> set[frozenset[int]]:
    """App. G read literally: walk the ops in topological order and merge v_j into the set of v_i."""
    other = nx.DiGraph(as_networkx(graph))
    set_of = {v: {v} for v in other}
    for i in nx.topological_sort(other):
        children = list(other.successors(i))
        if len(children) == 1 and list(other.predecessors(children[0])) == [i]:
            set_of[i] |= set_of[children[0]]
            for member in set_of[i]:
                set_of[member] = set_of[i]
    return {frozenset(members) for members in set_of.values()}


@given(data=st.data())
def test_chains_are_those_of_the_papers_rule(dags: st.SearchStrategy[ComputationGraph], data: st.DataObject) -> None:
    graph = data.draw(dags)
    chains = chain_partition(graph)
    found = {frozenset(chains.members.of(g).tolist()) for g in range(chains.num_groups)}
    assert found == chains_by_the_rule(graph)


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


def test_a_chain_of_equal_products_is_cut_into_pieces_of_max_share() -> None:
    line = graph_from_edges(["MatMul"] * 8, [(v, v + 1) for v in range(7)], flops=[10.0] * 8)
    assert placement_units(line, max_share=1.0).graph.num_ops == 1
    assert placement_units(line, max_share=0.25).graph.flops.tolist() == [20.0] * 4


def test_a_chain_is_cut_only_in_front_of_a_product() -> None:
    line = graph_from_edges(["MatMul", "Relu", "MatMul", "Relu"], [(0, 1), (1, 2), (2, 3)], flops=[8.0, 8, 8, 8])
    assert placement_units(line, max_share=0.01).partition.labels.tolist() == [0, 0, 1, 1]


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
