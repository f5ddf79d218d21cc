"""Models with state: what stays together, what every device computes for itself, and which splits lose state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsdag.ir.graph.colocation import colocate, known_ops
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.ir.graph.state import read_by_repeated, repeated_ops


def test_cache_and_attention_of_a_layer_are_one_set_and_layers_are_not(llama_graph: ComputationGraph) -> None:
    labels = colocate(llama_graph).sets.labels
    sets = set()
    for layer in range(4):
        at = f"model.layers.{layer}.self_attn"
        names = [f"{at}.{of}/{what}" for of in ("key", "value") for what in ("read", "past", "all", "wide", "assign")]
        found = {int(labels[llama_graph.index_of[name]]) for name in (*names, f"{at}/attention", f"{at}/key/shape")}
        assert len(found) == 1
        sets |= found
    assert len(sets) == 4


def test_cheap_ops_of_inputs_shapes_and_constants_that_are_no_tables_are_repeated_where_something_reads_them() -> None:
    types = "Parameter Cos Sin ReadValue Add Relu Constant Gather Constant Add ShapeOf ShapeOf Concat Concat".split()
    edges = [(0, 1), (0, 2), (1, 4), (3, 4), (0, 5), (6, 7), (0, 7), (8, 9), (0, 9), (0, 10), (5, 11),
             (10, 12), (7, 12), (10, 13), (11, 13), *((v, 4) for v in (9, 12, 13))]  # fmt: skip
    shapes = [(5, 3) if v == 6 else (1, 3) for v in range(len(types))]
    graph = graph_from_edges(types, edges, shapes=shapes)
    variables, is_dynamic = tuple("v" * (t == "ReadValue") for t in types), np.ones(len(types), np.bool_)
    graph = replace(graph, variables=variables, is_dynamic=is_dynamic)
    repeated = repeated_ops(graph, known_ops(graph))
    assert np.flatnonzero(repeated).tolist() == [1, 9, 10, 13]
    read = enumerate(read_by_repeated(graph, repeated, known_ops(graph)))
    sources = {v: sorted(graph.edge_src[own].tolist()) for v, own in read if own}
    assert sources == {1: [0], 4: [0, 11], 9: [0], 10: [0], 12: [0], 13: [0, 11]}
    assert not repeated_ops(replace(graph, variables=("",) * len(types)), known_ops(graph)).any()
