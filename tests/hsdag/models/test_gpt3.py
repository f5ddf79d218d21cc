"""GPT-3 in shape: sizes as published."""

from __future__ import annotations

import networkx as nx
import pytest

from hsdag.models.diviml import GptSizes, gpt3


def test_it_has_the_published_175_billion_weights() -> None:
    graph = gpt3().graph
    copied = 50_257 * 12_288  # the logits' product holds the embedding once more
    assert graph.weight_bytes.sum() / 2 - copied == pytest.approx(174.6e9, rel=1e-3)


def test_a_token_takes_two_operations_per_weight_of_the_layers() -> None:
    graph = gpt3(GptSizes(tokens=1)).graph
    per_layer = 12 * 12_288**2
    assert graph.flops.sum() == pytest.approx(2 * 96 * per_layer, rel=0.01)


def test_layers_are_alike_and_follow_each_other() -> None:
    graph = gpt3(GptSizes(layers=3)).graph
    assert graph.num_ops == 3 * 14 + 3
    layers = [[i for i, name in enumerate(graph.op_names) if name.startswith(f"layer{n}.")] for n in range(3)]
    assert len({tuple(graph.op_types[i] for i in layer) for layer in layers}) == 1
    cut = set(nx.articulation_points(nx.Graph(graph.to_networkx())))
    assert {graph.index_of[f"layer{n}.add2"] for n in range(3)} <= cut
