"""ENUMERATIVEOPTIMIZER: shards go where their inputs are, at the least cost of any permutation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.errors import OptionError
from hsdag.methods.lists.schedulers import _best_assignment, shard_groups
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from tests.hsdag.methods.searches import recorded


def sharded(num_devices: int, num_shards: int) -> ScheduleProblem:
    """Inputs on fixed devices, in reverse order; a multiplication and a sum over them."""
    inputs, shards, n = range(num_shards), range(num_shards, 2 * num_shards), 2 * num_shards + 1
    times = np.ones((n, num_devices))
    for v in inputs:
        times[v, np.arange(num_devices) != (num_devices - 1 - v) % num_devices] = np.nan
    edges = [(v, v + num_shards) for v in inputs] + [(v, n - 1) for v in shards]
    meta = ("",) * num_shards + ("product",) * (num_shards + 1)
    roles = ("",) * num_shards + ("shard",) * num_shards + ("reduce",)
    labels = OpLabels(("Op",) * n, ("",) * n, meta, roles, ("",) * n)
    sizes = np.r_[np.arange(1.0, num_shards + 1), np.full(num_shards, 2.0), 1.0]
    return ScheduleProblem.from_arrays(
        times, edges, output_bytes=sizes, link_latency_s=1.0, link_bandwidth_bytes_per_s=1.0, labels=labels
    )


@pytest.mark.parametrize("num_devices", [2, 4, 9])
def test_shards_go_where_their_inputs_are_one_for_each_device(num_devices: int) -> None:
    problem = sharded(num_devices, num_devices)
    _, returned = recorded(problem, "enumerative")
    assert returned is not None
    reverse = list(range(num_devices))[::-1]
    assert returned[: 2 * num_devices].tolist() == reverse + reverse


def test_more_shards_than_devices_are_dealt_evenly() -> None:
    _, returned = recorded(sharded(3, 6), "enumerative")
    assert returned is not None
    assert np.bincount(returned[6:12]).tolist() == [2, 2, 2]


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 4))
def test_no_permutation_costs_less_than_the_assignment(seed: int, k: int, d: int) -> None:
    rng, ops = np.random.default_rng(seed), np.arange(min(k, d))
    cost_s = rng.random((len(ops), d))
    cost_s[rng.random(cost_s.shape) < 0.2] = np.inf
    least_s = min(cost_s[ops, choice].sum() for choice in itertools.permutations(range(d), len(ops)))
    if np.isfinite(least_s):
        assert cost_s[ops, _best_assignment(cost_s)].sum() == pytest.approx(least_s)


def test_shards_come_before_reductions_and_meta_ops_in_order() -> None:
    labels = OpLabels(
        ("Op",) * 5, ("",) * 5, ("b", "b", "a", "a", ""), ("reduce", "shard", "", "reduce", ""), ("",) * 5
    )
    problem = ScheduleProblem.from_arrays(np.ones((5, 2)), [(2, 3), (3, 1), (1, 0), (4, 2)], labels=labels)
    assert [group.tolist() for group in shard_groups(problem)] == [[4], [2], [3], [1], [0]]


@pytest.mark.parametrize(
    ("meta_ops", "message"),
    [(("", "", ""), "needs the meta-op of each op"), (("a", "b", "a"), "depend on each other in a cycle")],
)
def test_graphs_that_are_not_sharded_are_refused_in_one_line(meta_ops: tuple[str, ...], message: str) -> None:
    labels = OpLabels(("Op",) * 3, ("",) * 3, meta_ops, ("",) * 3, ("",) * 3)
    problem = ScheduleProblem.from_arrays(np.ones((3, 2)), [(0, 1), (1, 2)], labels=labels)
    with pytest.raises(OptionError, match=message) as caught:
        recorded(problem, "enumerative")
    assert "\n" not in str(caught.value)
