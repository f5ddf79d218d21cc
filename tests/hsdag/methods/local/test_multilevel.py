"""Multilevel search: groups of two units each, which are searched first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hsdag.ir.graph.computation_graph import topological_order
from hsdag.ir.graph.partition import Partition
from hsdag.methods.local.multilevel import MultilevelOptions, MultilevelPlacer, contracted, joinable
from hsdag.methods.local.parsing import LAYERS, SHIPPED, WIDTH, features_of, probabilities_of
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.scoring.policy_file import read_policy, write_policy
from hsdag.search.options import SolveOptions
from hsdag.sources import find_family
from hsdag.training.problems import training_problem
from tests.hsdag.methods.local.test_chains import layered


@given(st.integers(0, 10**6), st.integers(2, 40))
def test_groups_are_pairs_joined_by_an_edge_and_form_no_cycle(seed: int, num_ops: int) -> None:
    problem, rng = layered(num_ops, seed), np.random.default_rng(seed)
    group = contracted(problem, rng.permutation(len(problem.edge_src)))
    sets = Partition.from_labels(group)
    topological_order(sets.num_groups, *sets.quotient_edges(problem.edge_src, problem.edge_dst))
    pairs = set(zip(problem.edge_src.tolist(), problem.edge_dst.tolist(), strict=True))
    for members in map(sets.members.of, range(sets.num_groups)):
        assert len(members) == 1 or tuple(members.tolist()) in pairs


FIVE = ScheduleProblem.from_arrays(
    np.ones((5, 2)),
    [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)],
    edge_bytes=np.array([1.0, 2.0, 3.0, 9.0, 1.0]),
    link_bandwidth_bytes_per_s=1.0,
)


def test_the_heaviest_edges_whose_ends_need_each_other_and_share_a_device_are_contracted() -> None:
    heaviest = np.array([3, 2, 1, 0, 4])  # 0 to 3 is the heaviest, but has a path beside it
    assert contracted(FIVE, heaviest).tolist() == [0, 0, 2, 2, 4]
    assert contracted(FIVE, np.array([1, 4, 2, 0, 3])).tolist() == [0, 1, 1, 3, 3]
    time_s = np.ones((5, 2))
    time_s[2, 0] = time_s[3, 1] = np.nan
    assert contracted(replace(FIVE, time_s=time_s), heaviest).tolist() == [0, 1, 1, 3, 3]


def shipped() -> Mapping[str, NDArray[Any]]:
    weights = read_policy(SHIPPED, "multilevel").weights
    assert weights.keys() == {f"{layer}.{part}" for layer in LAYERS for part in ("weight", "bias")}
    return weights


def placer_of(path: Path, slope: float, bias: float, **options: Any) -> MultilevelPlacer:
    """One whose network's logit is a multiple of how long an edge takes, as it reads that, and a bias."""
    weights = {name: np.zeros_like(each) for name, each in shipped().items()}
    weights["score.layers.0.weight"][0, WIDTH] = 1.0
    weights["score.layers.1.weight"][0, 0], weights["score.layers.1.bias"][0] = slope, bias
    write_policy(path, weights, {"method": "multilevel"})
    return MultilevelPlacer(MultilevelOptions(initial=str(path), **options))


def test_the_edges_whose_ends_the_network_keeps_together_are_contracted_the_likeliest_first(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    assert placer_of(path, 1.0, 0.0, least=0.5).edges(FIVE).tolist() == [3, 2, 1, 0, 4]
    assert placer_of(path, -1.0, 9.0).edges(FIVE).tolist() == [0, 4, 1, 2, 3]
    some = placer_of(path, 1.0, 0.0, least=0.7)  # a probability of 1 - 1 / (2 + size)
    assert some.edges(FIVE).tolist() == [3, 2, 1]


@pytest.mark.slow
def test_the_shipped_network_tells_which_ends_share_a_device_in_good_plans_of_other_problems() -> None:
    """As the share of pairs of edges, one together and one not, of which the former is the likelier one."""
    found, expert = [], SolveOptions("sa", max_evaluations=9000)
    for number in range(1_000_000, 1_000_003):
        known = training_problem(find_family("random-wired"), number, expert)
        costs, placement = known.costs, known.experts[0].placement
        likely, can_join = probabilities_of(costs, shipped()), joinable(costs)
        together = placement[costs.edge_src] == placement[costs.edge_dst]
        found.append((likely[can_join & together][:, None] > likely[can_join & ~together]).mean())
    assert np.mean(found) > 0.7


def test_what_the_network_reads_depends_neither_on_names_of_devices_nor_on_units_of_time() -> None:
    problem = training_problem(find_family("transformer"), 7, None).costs
    other = np.random.default_rng(0).permutation(problem.num_devices)
    exchanged = replace(
        problem,
        time_s=8 * problem.time_s[:, other],
        link_latency_s=8 * problem.link_latency_s[np.ix_(other, other)],
        link_bandwidth_bytes_per_s=problem.link_bandwidth_bytes_per_s[np.ix_(other, other)] / 8,
    )
    for one, same in zip(features_of(problem), features_of(exchanged), strict=True):
        np.testing.assert_allclose(one, same, atol=1e-6)
