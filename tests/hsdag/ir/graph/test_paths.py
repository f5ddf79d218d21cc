"""Longest paths, and orders by rank."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import Csr, ranked_order
from hsdag.ir.kernels import longest_before


@given(st.integers(0, 1000))
def test_the_longest_path_before_each_op_is_the_longest_of_all_paths_that_lead_there(seed: int) -> None:
    rng = np.random.default_rng(seed)
    src, dst = np.nonzero(np.triu(rng.random((7, 7)) < 0.4, 1))
    ops, edges = rng.integers(0, 9, 7).astype(float), rng.integers(0, 9, len(src)).astype(float)
    found = longest_before(np.arange(7), Csr.build(7, dst, src), ops, edges)
    graph = nx.DiGraph(list(zip(src.tolist(), dst.tolist(), strict=True)))
    cost = dict(zip(zip(src.tolist(), dst.tolist(), strict=True), edges.tolist(), strict=True))
    graph.add_nodes_from(range(7))
    for v in range(7):
        paths = [path for u in range(v) for path in nx.all_simple_paths(graph, u, v)]
        lengths = [sum(ops[u] + cost[u, w] for u, w in itertools.pairwise(path)) for path in paths]
        assert found[v] == max(lengths, default=0.0)


@given(st.integers(0, 1000))
def test_an_order_by_rank_is_the_lexicographic_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    src, dst = np.nonzero(np.triu(rng.random((9, 9)) < 0.3, 1))
    name, rank = rng.permutation(9), rng.integers(0, 4, 9)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(9))
    graph.add_edges_from(zip(name[src].tolist(), name[dst].tolist(), strict=True))
    wanted = nx.lexicographical_topological_sort(graph, key=lambda v: rank[v])
    assert ranked_order(9, name[src], name[dst], rank).tolist() == list(wanted)
