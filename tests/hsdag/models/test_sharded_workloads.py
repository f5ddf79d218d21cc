"""Sharded workloads: they compute the unsharded formulas, and count what the DOPPLER paper counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import softmax

from hsdag.base.errors import OptionError
from hsdag.models import find_workload
from hsdag.models.sharded_workloads import (
    EPSILON,
    LlamaSizes,
    RandomChain,
    TransformerSizes,
    _grid,
    chainmm,
    ffnn,
    llama_block,
    llama_layer,
    random_chain,
    transformer,
)
from hsdag.models.sharding import Sharder
from tests.hsdag.models.computed import evaluate, execute, random_inputs

Array = NDArray[np.float64]
SMALL = LlamaSizes(tokens=8, width=32, heads=4, hidden=48, vocabulary=32)
LAYER_FLOPS = 2 * 4096 * (4 * 4096**2 + 3 * 4096 * 11008) + 4 * 4096**2 * 4096
"""Of the products of one layer of Llama 7B over 4096 tokens."""


@pytest.mark.parametrize("k", [2, 5])
def test_sharded_chainmm_is_the_chain_of_products(k: int) -> None:
    workload = chainmm(k, size=2 * k)
    x = random_inputs(workload)
    expected = x["A"] @ x["B"] + x["C"] @ (x["D"] @ x["E"])
    np.testing.assert_allclose(execute(workload, x)["result"], expected, rtol=1e-12)


@pytest.mark.parametrize("k", [2, 8])
def test_sharded_ffnn_is_the_network_with_biases(k: int) -> None:
    workload = ffnn(k, batch=8 * k, width=6, hidden=16)
    x = random_inputs(workload)
    hidden = np.maximum(x["X"] @ x["W1"] + x["b1"], 0)
    np.testing.assert_allclose(execute(workload, x)["Y"], softmax(hidden @ x["W2"] + x["b2"], axis=1), rtol=1e-12)


@pytest.mark.parametrize("k", [2, 8])
def test_sharded_llama_block_and_layer_are_the_transformer_block_and_the_logits_of_the_last_token(k: int) -> None:
    block, layer = llama_block(k, SMALL), llama_layer(k, SMALL)
    x, w = random_inputs(block), random_inputs(layer)
    angles = np.random.default_rng(1).uniform(-3, 3, x["frequencies"].shape)
    result = execute(block, {**x, "frequencies": np.exp(1j * angles)})["y"]
    np.testing.assert_allclose(result, _layer(x, angles, masked=False), rtol=1e-10)
    turned = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(SMALL.tokens, -1)
    hidden = _norm(_layer(w, angles, masked=True)) * w["norm3.gamma"]
    results = execute(layer, {**w, "frequencies": turned})
    np.testing.assert_allclose(results["hidden"], hidden, rtol=1e-10)
    np.testing.assert_allclose(results["logits"], hidden[-1] @ w["head.weight"], rtol=1e-10)


@pytest.mark.parametrize(("k", "groups", "rows"), [(2, 2, 1), (3, 3, 3), (8, 4, 2)])
def test_a_sharded_transformer_is_the_unsharded_one_and_has_as_many_nodes_as_the_formula_says(
    k: int, groups: int, rows: int
) -> None:
    sizes = TransformerSizes(2, 12 if k % 3 == 0 else 16, 2 * groups, 3, 4 * groups, groups, rows)
    workload = transformer(k, sizes)
    assert workload.graph.num_ops == rows + 2 * (14 * rows + 22 * k + 2 * (k // groups) + 6 * groups)
    inputs = random_inputs(workload)
    x = inputs["x"]
    for layer in range(sizes.layers):
        w = {name: inputs[f"{layer}.{name}.weight"] for name in ("Q", "K", "V", "O", "W1", "W2")}
        normed = _norm(x)
        for head in range(sizes.heads):
            query, key, value = (normed @ w[part][:, head] for part in "QKV")
            x = x + softmax(query @ key.T, axis=1) @ value @ w["O"][head]
        x = x + _silu(_norm(x) @ w["W1"]) @ w["W2"]
    np.testing.assert_allclose(execute(workload, inputs)["y"], x, rtol=1e-10)


@pytest.mark.parametrize("k", [2, 7, 8])
def test_drawn_sizes_fit_the_devices_and_stay_within_400_nodes(k: int) -> None:
    drawn = [TransformerSizes.drawn(seed, k) for seed in range(6)]
    assert all(transformer(k, sizes).graph.num_ops <= 400 for sizes in drawn)
    assert len(set(drawn)) == 6


@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(2, 8))
def test_a_random_chain_is_its_formula_and_no_operation_has_more_shards_than_there_are_devices(
    seed: int, matrices: int, k: int
) -> None:
    drawn = RandomChain(matrices, 1, 2, seed)
    workload = random_chain(k, drawn)
    inputs = random_inputs(workload, seed)
    formula, shapes = drawn.formula()
    assert [inputs[f"M{i}"].shape for i in range(matrices)] == list(shapes)
    expected = evaluate(formula, [inputs[f"M{i}"] for i in range(matrices)])
    np.testing.assert_allclose(execute(workload, inputs)["result"], expected, rtol=1e-9, atol=1e-12)
    counts = Counter(zip(workload.meta_ops, workload.roles, strict=True))
    assert all(count <= k for (_, role), count in counts.items() if role)


def _norm(x: Array) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + EPSILON))


def _silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def _rotated(x: Array, angles: Array) -> Array:
    """[tokens, heads, head size]: the pairs along the last axis turned by the angles [tokens, head size / 2]."""
    turned, cos, sin = np.empty_like(x), np.cos(angles)[:, None], np.sin(angles)[:, None]
    turned[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    turned[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return turned


def _layer(w: dict[str, Array], angles: Array, masked: bool) -> Array:
    """One Llama layer, head by head, without sharding."""
    t, d = w["x"].shape
    normed = _norm(w["x"]) * w["norm1.gamma"]
    query, key, value = ((normed @ w[f"{n}.weight"].reshape(d, d)).reshape(t, SMALL.heads, -1) for n in "QKV")
    query, key = _rotated(query, angles), _rotated(key, angles)
    heads = []
    for i in range(SMALL.heads):
        scores = query[:, i] @ key[:, i].T / np.sqrt(key.shape[-1])
        scores = np.where(np.tri(t, dtype=bool), scores, -np.inf) if masked else scores
        heads.append(softmax(scores, axis=1) @ value[:, i])
    added = w["x"] + np.concatenate(heads, axis=1) @ w["O.weight"].reshape(d, d)
    normed = _norm(added) * w["norm2.gamma"]
    return np.asarray(added + (_silu(normed @ w["W1.weight"]) * (normed @ w["W3.weight"])) @ w["W2.weight"])


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "flops"),
    [
        ("chainmm", 112, 80, 6 * 10_000**3),
        ("ffnn", 192, 208, 4 * 2**36),
        ("llama-block", 215, 234, LAYER_FLOPS),
        ("llama-layer", 261, 284, LAYER_FLOPS + 2 * 4096 * 32000),
    ],
)
def test_four_devices_give_the_papers_nodes_its_published_edges_between_ops_and_operations_of_products(
    name: str, nodes: int, edges: int, flops: float
) -> None:
    workload = find_workload(name).build(4)
    graph = workload.graph
    biases = sum(text.startswith("input:b") for text in workload.expressions)  # in the paper's text, not in its graph
    assert graph.num_ops - biases == nodes
    assert sum(graph.op_types[u] != "Parameter" for u in graph.edge_src) == edges
    assert graph.flops[np.array(graph.op_types) == "MatMul"].sum() == flops


@pytest.mark.parametrize(("name", "k"), [("chainmm", 2), ("ffnn", 8), ("llama-block", 8), ("llama-layer", 4)])
def test_meta_ops_have_a_shard_per_device_at_most_and_stand_in_order_shards_before_aggregations(
    name: str, k: int
) -> None:
    workload = find_workload(name).build(k)
    graph, metas, roles = workload.graph, workload.meta_ops, workload.roles
    assert all(metas)
    assert all(count <= k for (_, role), count in Counter(zip(metas, roles, strict=True)).items() if role)
    assert {t for t, role in zip(graph.op_types, roles, strict=True) if not role} == {"Parameter"}
    order = {meta: i for i, meta in enumerate(dict.fromkeys(metas))}
    for u, v in zip(graph.edge_src, graph.edge_dst, strict=True):
        same = order[metas[u]] == order[metas[v]] and (roles[u], roles[v]) == ("shard", "reduce")
        assert order[metas[u]] < order[metas[v]] or same


@pytest.mark.parametrize(("name", "k"), [("chainmm", 3), ("ffnn", 3), ("llama-block", 6), ("llama-layer", 7)])
def test_an_axis_that_cannot_be_cut_equally_is_named(name: str, k: int) -> None:
    with pytest.raises(OptionError, match=rf"{name} over {k} devices: axis \d of \S+ has \d+ elements"):
        find_workload(name).build(k)


@given(st.integers(0, 7), st.integers(1, 8), st.integers(0, 11), st.integers(1, 12))
def test_a_region_of_a_sharded_tensor_is_the_slice_of_the_whole(row: int, rows: int, column: int, columns: int) -> None:
    ranges = ((row, min(row + rows, 8)), (column, min(column + columns, 12)))
    sharder = Sharder("region", 2)
    workload = sharder.build({"y": sharder.part("y", sharder.input("x", (8, 12), (4, 3)), ranges)})
    inputs = random_inputs(workload)
    expected = inputs["x"][slice(*ranges[0]), slice(*ranges[1])]
    np.testing.assert_array_equal(execute(workload, inputs)["y"], expected)


def test_blocks_in_a_row_are_each_a_block_that_reads_the_one_before() -> None:
    one, three = llama_block(4, SMALL), llama_block(4, SMALL, SMALL, SMALL)
    shared = sum(meta in ("x", "frequencies") for meta in one.meta_ops)
    assert three.graph.num_ops == 3 * one.graph.num_ops - 2 * shared
    assert [_grid(k) for k in (2, 4, 6, 8, 12)] == [(1, 2), (2, 2), (1, 6), (2, 4), (2, 6)]
    names = {name: v for v, name in enumerate(three.graph.op_names)}
    assert len(names) == three.graph.num_ops
    sources = three.graph.edge_src[three.graph.edge_dst == names["1.norm1.f32[0,0]"]]
    assert {three.meta_ops[u] for u in sources} == {"residual2"}
