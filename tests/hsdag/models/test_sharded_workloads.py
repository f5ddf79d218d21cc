"""Sharded workloads: they compute the unsharded formulas, and count what the DOPPLER paper counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import softmax

from hsdag.ir.errors import OptionError
from hsdag.models import Workload, find_workload
from hsdag.models.sharded_workloads import (
    LlamaSizes,
    chainmm,
    ffnn,
    llama_block,
    llama_layer,
)
from hsdag.models.sharding import Sharder
from tests.hsdag.models.computed import execute, random_inputs

Array = NDArray[np.float64]
SMALL = LlamaSizes(tokens=8, width=32, heads=4, hidden=48, vocabulary=32)


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
def test_sharded_llama_block_is_the_transformer_block(k: int) -> None:
    workload = llama_block(k, SMALL)
    x = random_inputs(workload)
    angles = np.random.default_rng(1).uniform(-3, 3, x["frequencies"].shape)
    result = execute(workload, {**x, "frequencies": np.exp(1j * angles)})["y"]
    np.testing.assert_allclose(result, _layer(x, angles, masked=False), rtol=1e-10)


@pytest.mark.parametrize("k", [2, 16])
def test_sharded_llama_layer_gives_the_logits_of_the_last_token(k: int) -> None:
    workload = llama_layer(k, SMALL)
    x = random_inputs(workload)
    pairs = (SMALL.tokens, SMALL.width // SMALL.heads // 2)
    angles = np.random.default_rng(1).uniform(-3, 3, pairs)
    turned = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(SMALL.tokens, -1)
    hidden = _norm(_layer(x, angles, masked=True), x["norm3.gamma"])
    results = execute(workload, {**x, "frequencies": turned})
    np.testing.assert_allclose(results["hidden"], hidden, rtol=1e-10)
    np.testing.assert_allclose(results["logits"], hidden[-1] @ x["head.weight"], rtol=1e-10)


def _norm(x: Array, gamma: Array) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + SMALL.epsilon) * gamma)


def _rotated(x: Array, angles: Array) -> Array:
    """[tokens, heads, head size]: the pairs along the last axis turned by the angles [tokens, head size / 2]."""
    turned, cos, sin = np.empty_like(x), np.cos(angles)[:, None], np.sin(angles)[:, None]
    turned[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    turned[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return turned


def _layer(w: dict[str, Array], angles: Array, masked: bool) -> Array:
    """One Llama layer, head by head, without sharding."""
    t, d = w["x"].shape
    normed = _norm(w["x"], w["norm1.gamma"])
    query, key, value = ((normed @ w[f"{n}.weight"].reshape(d, d)).reshape(t, SMALL.heads, -1) for n in "QKV")
    query, key = _rotated(query, angles), _rotated(key, angles)
    heads = []
    for i in range(SMALL.heads):
        scores = query[:, i] @ key[:, i].T / np.sqrt(key.shape[-1])
        scores = np.where(np.tri(t, dtype=bool), scores, -np.inf) if masked else scores
        heads.append(softmax(scores, axis=1) @ value[:, i])
    added = w["x"] + np.concatenate(heads, axis=1) @ w["O.weight"].reshape(d, d)
    normed = _norm(added, w["norm2.gamma"])
    gate = normed @ w["W1.weight"]
    return np.asarray(added + (gate / (1 + np.exp(-gate)) * (normed @ w["W3.weight"])) @ w["W2.weight"])


@pytest.mark.parametrize(
    ("name", "nodes", "edges"),
    [("chainmm", 112, 80), ("ffnn", 192, 208), ("llama-block", 215, 234), ("llama-layer", 261, 284)],
)
def test_four_devices_give_the_papers_nodes_and_its_published_edges_between_ops(
    name: str, nodes: int, edges: int
) -> None:
    workload = find_workload(name).build(4)
    graph = workload.graph
    biases = sum(text.startswith("input:b") for text in workload.expressions)  # in the paper's text, not in its graph
    assert graph.num_ops - biases == nodes
    assert sum(graph.op_types[u] != "Parameter" for u in graph.edge_src) == edges


def _flops_of(workload: Workload, op_type: str) -> float:
    graph = workload.graph
    return float(sum(f for f, t in zip(graph.flops, graph.op_types, strict=True) if t == op_type))


def test_products_take_the_operations_of_the_unsharded_ones() -> None:
    k = 8
    t, d, f, v = 4096, 4096, 11008, 32000
    layer = 2 * t * (4 * d * d + 3 * d * f) + 4 * t * t * d
    assert _flops_of(chainmm(k), "MatMul") == 6 * 10_000**3
    assert _flops_of(ffnn(k), "MatMul") == 2 * 2 * 2**36
    assert _flops_of(llama_block(k), "MatMul") == layer
    assert _flops_of(llama_layer(k), "MatMul") == layer + 2 * d * v


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


@pytest.mark.parametrize("k", [1, 65])
def test_one_device_or_very_many_are_refused(k: int) -> None:
    with pytest.raises(OptionError, match=f"sharded over 2 to 64 devices, not {k}"):
        find_workload("chainmm").build(k)


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
    assert _flops_of(three, "MatMul") == 3 * _flops_of(one, "MatMul")
    names = {name: v for v, name in enumerate(three.graph.op_names)}
    assert len(names) == three.graph.num_ops
    sources = three.graph.edge_src[three.graph.edge_dst == names["1.norm1.f32[0,0]"]]
    assert {three.meta_ops[u] for u in sources} == {"residual2"}
