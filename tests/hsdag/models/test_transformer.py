"""Sharded transformers: they compute the unsharded blocks, and have as many nodes as is said."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax

from hsdag.models.sharded_workloads import EPSILON, TransformerSizes, transformer
from tests.hsdag.models.computed import execute, random_inputs

Array = NDArray[np.float64]
GRIDS = [(2, 2, 1), (3, 3, 3), (8, 4, 2)]
"""Devices, head groups and row parts."""


def small(k: int, groups: int, rows: int) -> TransformerSizes:
    sizes = TransformerSizes(2, 12 if k % 3 == 0 else 16, 2 * groups, 3, 4 * groups, groups, rows)
    assert sizes.tokens % k == 0
    return sizes


@pytest.mark.parametrize(("k", "groups", "rows"), GRIDS)
def test_the_sharded_stack_is_the_unsharded_one(k: int, groups: int, rows: int) -> None:
    sizes = small(k, groups, rows)
    workload = transformer(k, sizes)
    inputs = random_inputs(workload)
    x = inputs["x"]
    for layer in range(sizes.layers):
        weights = {name: inputs[f"{layer}.{name}.weight"] for name in ("Q", "K", "V", "O", "W1", "W2")}
        x = block(x, weights)
    np.testing.assert_allclose(execute(workload, inputs)["y"], x, rtol=1e-10)


def block(x: Array, w: dict[str, Array]) -> Array:
    """One block, head by head."""
    normed = norm(x)
    for head in range(w["Q"].shape[1]):
        query, key, value = (normed @ w[part][:, head] for part in "QKV")
        x = x + softmax(query @ key.T, axis=1) @ value @ w["O"][head]
    inner = norm(x) @ w["W1"]
    return np.asarray(x + (inner / (1 + np.exp(-inner))) @ w["W2"])


def norm(x: Array) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + EPSILON))


@pytest.mark.parametrize(("k", "h", "r"), GRIDS)
def test_a_block_has_as_many_nodes_as_the_formula_says(k: int, h: int, r: int) -> None:
    assert transformer(k, small(k, h, r)).graph.num_ops == r + 2 * (14 * r + 22 * k + 2 * (k // h) + 6 * h)


@pytest.mark.parametrize("k", [2, 7, 8])
def test_drawn_sizes_fit_the_devices_and_stay_within_400_nodes(k: int) -> None:
    drawn = [TransformerSizes.drawn(seed, k) for seed in range(6)]
    assert all(transformer(k, sizes).graph.num_ops <= 400 for sizes in drawn)
    assert len(set(drawn)) == 6
