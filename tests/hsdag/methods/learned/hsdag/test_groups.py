"""The parsing network groups nodes as the paper's Eq. 9 says, with our rules for ties and collapse."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.learned.hsdag.groups import Groups, Parse, Topology
from hsdag.methods.learned.hsdag.network import nominate, parse_of, pool


def path(num_nodes: int) -> Topology:
    nodes = np.arange(num_nodes, dtype=np.int64)
    return Topology.from_edges(num_nodes, nodes[:-1], nodes[1:])


def all_kept(topology: Topology, scores: FloatArray) -> Parse:
    nominated = nominate(topology, scores)
    return parse_of(topology, nominated, scores, np.ones(len(nominated), dtype=np.bool_))


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 25), st.integers(0, 10_000))
def test_groups_are_the_components_of_every_nodes_best_edge(num_nodes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = Topology.from_edges(num_nodes, *rng.integers(0, num_nodes, (2, 2 * num_nodes)))
    scores = 0.5 + 0.5 * rng.permutation(topology.num_edges) / max(topology.num_edges, 1) + 1e-9
    expected = nx.Graph()
    expected.add_nodes_from(range(num_nodes))
    for v in range(num_nodes):
        incident = [e for e in range(topology.num_edges) if v in (topology.left[e], topology.right[e])]
        if incident:
            best = max(incident, key=lambda e: scores[e])
            expected.add_edge(int(topology.left[best]), int(topology.right[best]))
    groups = all_kept(topology, scores).partition
    found = {frozenset(np.flatnonzero(groups.labels == g).tolist()) for g in range(groups.num_groups)}
    assert found == {frozenset(c) for c in nx.connected_components(expected)}
    edges = nominate(topology, np.full(topology.num_edges, 0.5))  # ties go by rank, so that no circle is nominated
    assert not len(edges) or nx.is_forest(nx.Graph(list(zip(topology.left[edges], topology.right[edges], strict=True))))


def test_parallel_and_opposite_edges_and_loops_count_once() -> None:
    topology = Topology.from_edges(3, np.array([0, 1, 0, 2, 1]), np.array([1, 0, 1, 2, 2]))
    assert list(zip(topology.left.tolist(), topology.right.tolist(), strict=True)) == [(0, 1), (1, 2)]


def test_equal_scores_leave_about_a_third_of_a_chain_cut() -> None:
    topology = path(3001)
    level = all_kept(topology, np.full(topology.num_edges, 0.5))
    assert abs(level.partition.num_groups / 3001 - 1 / 3) < 0.03  # an edge is cut when both neighbours outrank it


@pytest.mark.parametrize(
    ("scores", "labels"),
    [((0.4, 0.3), [0, 0, 1]), ((0.3, 0.4), [0, 1, 1]), ((0.6, 0.5), [0, 0, 1]), ((0.6, 0.51), [0, 0, 0])],
)
def test_of_edges_that_join_all_the_weakest_is_dropped_unless_it_exceeds_a_half(
    scores: tuple[float, float], labels: list[int]
) -> None:
    topology = path(3)
    by_edge = np.where(topology.left == 0, *scores)
    assert all_kept(topology, by_edge).partition.labels.tolist() == labels


def test_pooled_embedding_is_the_mean_times_the_mean_kept_score() -> None:
    topology = path(4)  # edges 0-1, 1-2, 2-3
    groups = Groups.of([all_kept(topology, np.array([0.9, 0.1, 0.7]))])
    z = torch.tensor([[1.0], [3.0], [10.0], [20.0]])
    pooled = pool(z, torch.tensor([0.9, 0.1, 0.7]), groups)
    assert torch.allclose(pooled[groups.distinct], torch.tensor([[2.0 * 0.9], [15.0 * 0.7]]))


def test_groups_with_the_same_members_and_kept_edges_are_one() -> None:
    triangle = Topology.from_edges(3, np.array([0, 0, 1]), np.array([1, 2, 2]))
    both, pair = np.ones(2, dtype=np.bool_), np.array([True, False])
    alike = [Parse(triangle, np.array(edges), both) for edges in ([0, 1], [0, 1], [0, 2])]
    groups = Groups.of([*alike, Parse(triangle, np.array([0, 1]), pair), Parse(triangle, np.array([0, 2]), pair)])
    whole, again, otherwise, first, last, also_first, also_last = groups.distinct.tolist()
    assert whole == again != otherwise
    assert (first, last) == (also_first, also_last)
    assert groups.num_distinct == 4
    z = torch.tensor([[1.0], [3.0], [8.0]])
    pooled = pool(z, torch.tensor([0.9, 0.1, 0.5]), groups)[groups.distinct].flatten()
    assert pooled.tolist() == pytest.approx([2.0, 2.0, 2.8, 1.8, 4.0, 1.8, 4.0])


def test_gradients_of_pooled_embeddings_reach_the_scores() -> None:
    topology = path(4)
    scores = torch.tensor([0.9, 0.1, 0.7], requires_grad=True)
    pooled = pool(torch.ones(4, 2), scores, Groups.of([all_kept(topology, scores.detach().numpy())]))
    pooled.sum().backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert scores.grad.tolist() == [2.0, 0.0, 2.0]  # two columns each; the cut edge has no part
