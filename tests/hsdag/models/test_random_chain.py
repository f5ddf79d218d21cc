"""Random chains: the sharded ops compute the formula, whatever was drawn."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hsdag.models.sharded_workloads import RandomChain, random_chain
from tests.hsdag.models.computed import evaluate, execute, random_inputs


def small(seed: int, matrices: int = 6) -> RandomChain:
    return RandomChain(matrices, 1, 2, seed)


@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(2, 8))
def test_the_sharded_chain_is_its_formula(seed: int, matrices: int, k: int) -> None:
    drawn = small(seed, matrices)
    workload = random_chain(k, drawn)
    inputs = random_inputs(workload, seed)
    formula, shapes = drawn.formula()
    assert [inputs[f"M{i}"].shape for i in range(matrices)] == list(shapes)
    expected = evaluate(formula, [inputs[f"M{i}"] for i in range(matrices)])
    np.testing.assert_allclose(execute(workload, inputs)["result"], expected, rtol=1e-9, atol=1e-12)


@given(st.integers(0, 10_000), st.integers(2, 8))
def test_no_operation_of_a_chain_has_more_shards_or_formations_than_there_are_devices(seed: int, k: int) -> None:
    workload = random_chain(k, small(seed))
    counts = Counter(zip(workload.meta_ops, workload.roles, strict=True))
    assert all(count <= k for (_, role), count in counts.items() if role)
