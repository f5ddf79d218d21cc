"""Workloads in NumPy: einsum by products of matrices, and results that are dropped."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.models.workload_numpy import _einsum, values_of


@pytest.mark.parametrize(
    "argument",
    [
        "ij,jk->ik",
        "ij,jk->ki",
        "hqd,hkd->hqk",
        "hqk,khd->qhd",
        "ij,ij->ij",
        "i,j->ij",
        "ij,j->i",
        "ij,jk->i",
        "ij,ij->",
    ],
)
def test_einsum_by_products_of_matrices_is_einsum(argument: str) -> None:
    rng, size = np.random.default_rng(0), dict(zip("ijkhqd", (2, 3, 4, 5, 6, 7), strict=True))
    ends = argument.partition("->")[0].split(",")
    operands = [rng.standard_normal([size[c] for c in end]) for end in ends]
    np.testing.assert_allclose(_einsum(argument, *operands), np.einsum(argument, *operands), rtol=1e-12)


def test_results_that_nobody_wants_are_dropped_after_their_last_use() -> None:
    expressions, sources = ["input:x[0:2]", "exp", "add", "square"], [[], [0], [0, 1], [1]]
    x = np.array([1.0, 2.0])
    found = values_of(expressions, sources, [0, 1, 2, 3], {"x": x}, {2, 3})
    assert [value.shape for value in found] == [(), (), (2,), (2,)]
    np.testing.assert_allclose(found[2], x + np.exp(x))
    np.testing.assert_allclose(found[3], np.exp(x) ** 2)
