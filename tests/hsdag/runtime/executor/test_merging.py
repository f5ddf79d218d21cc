"""Merging and the schedule of parts, against plain Python."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.graph.colocation import repeated_ops
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.ir.graph.partition import Partition
from hsdag.runtime.executor import merging
from hsdag.runtime.executor.cut import initial_parts, instances_of
from hsdag.runtime.executor.merging import CutCosts, merge_parts, part_schedule, plan_cut
from tests.hsdag.runtime.executor.random_cuts import Placed, assert_convex, placed_graphs


def costs_of(placed: Placed, seed: int) -> CutCosts:
    """Whole numbers, so that ends coincide and sums are exact."""
    rng = np.random.default_rng(seed)
    shape = (placed.graph.num_ops, placed.num_devices)
    per_device = rng.integers(0, 4, (3, placed.num_devices)).astype(np.float64)
    return CutCosts(
        rng.integers(1, 9, shape).astype(np.float64), 1 + per_device[0], per_device[1] / 8, per_device[2] / 8
    )


def test_a_part_takes_its_launch_its_ops_and_each_tensor_once_and_the_longest_way_goes_first() -> None:
    """On device 0 are a, d, and c, which reads a once and b twice; on 1 is b, which reads a. Results read all but b."""
    types = ["Parameter", "MatMul", "MatMul", "MatMul", "MatMul", "Result", "Result", "Result"]
    edges = [(0, 1), (1, 2), (1, 3), (2, 3), (2, 3), (0, 4), (1, 5), (3, 6), (4, 7)]
    graph = graph_from_edges(types, edges, output_bytes=[9, 8, 4, 2, 6, 9, 9, 9])
    instances = instances_of(graph, np.array([0, 0, 1, 0, 0, 0, 0, 0]))
    op_s = np.tile(np.array([0.0, 10, 20, 30, 5, 0, 0, 0])[:, None], 2)
    costs = CutCosts(op_s, np.array([1.0, 2]), np.array([0.5, 0.25]), np.array([1.0, 2]))
    schedule = part_schedule(graph, instances, Partition.identity(4), costs)
    op = [int(v) for v in instances.op]
    found = {v: (schedule.duration_s[i], schedule.b_level_s[i], schedule.start_s[i]) for i, v in enumerate(op)}
    a, b, c, d = 1 + 10 + 8, 2 + 20 + 8 * 0.25 + 4 * 2, 1 + 30 + 8 * 0.5 + 4 * 0.5 + 2, 1 + 5 + 6
    assert found == {1: (a, a + b + c, 0), 2: (b, b + c, a), 3: (c, c, a + b), 4: (d, d, a)}
    assert schedule.end_s.max() == a + b + c


@pytest.mark.parametrize("by_load", [False, True])
def test_what_is_read_through_a_repeated_op_keeps_parts_apart(by_load: bool) -> None:
    """On device 0 are a, its shape, and c, which reads a and b; b, on 1, reads the shape through a Concat."""
    types = ["Parameter", "ReadValue", "Softmax", "ShapeOf", "Concat", "Softmax", "Softmax", "Result"]
    edges = [(0, 2), (1, 2), (2, 3), (3, 4), (0, 4), (0, 5), (4, 5), (2, 6), (5, 6), (6, 7)]
    graph = replace(graph_from_edges(types, edges), variables=("", "v", *[""] * 6), is_dynamic=np.ones(8, np.bool_))
    assert np.flatnonzero(repeated_ops(graph)).tolist() == [4]
    device = np.array([0, 0, 0, 0, 0, 1, 0, 0])
    cut = plan_cut(graph, device, 2, by_load=by_load).cut
    part = {v: s for s, each in enumerate(cut.subgraphs) for v in each.ops}
    assert part[2] == part[3] < part[5] < part[6]


@pytest.mark.parametrize("by_load", [False, True])
@given(placed=placed_graphs, seed=st.integers(0, 99))
def test_merging_worsens_no_objective_and_tears_no_part(by_load: bool, placed: Placed, seed: int) -> None:
    instances, parts = placed.initial()
    costs = costs_of(placed, seed)
    merged = merge_parts(placed.graph, instances, parts, costs, by_load=by_load)
    before, after = (part_schedule(placed.graph, instances, p, costs) for p in (parts, merged))
    if by_load:
        assert np.bincount(after.device, after.duration_s).max() <= np.bincount(before.device, before.duration_s).max()
    else:
        assert after.end_s.max() <= before.end_s.max()
    assert len(set(zip(parts.labels.tolist(), merged.labels.tolist(), strict=True))) == parts.num_groups
    assert_convex(instances, merged)


def test_for_throughput_nothing_is_kept_apart_so_that_another_device_may_begin_sooner() -> None:
    """Op 1 alone lets device 1 begin; joined with op 2 it saves a launch, and device 1 has other requests to run."""
    types = ["Parameter", "MatMul", "MatMul", "MatMul", "MatMul", "Result"]
    graph = graph_from_edges(types, [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)], output_bytes=[0] * 6)
    instances = instances_of(graph, np.array([0, 0, 0, 1, 1, 1]))
    costs = CutCosts(np.full((6, 2), 5.0), np.ones(2), np.zeros(2), np.zeros(2))
    parts = initial_parts(instances)
    merged = [merge_parts(graph, instances, parts, costs, by_load=by_load).num_groups for by_load in (False, True)]
    assert merged == [4, 2]


@pytest.mark.parametrize(("trials", "most", "num_parts"), [(4000, 4, 1), (4000, 3, 4), (1, 4, 3), (0, 4, 4)])
def test_parts_that_only_cost_launches_become_one_as_far_as_trials_go(
    trials: int, most: int, num_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "MOST_TRIALS", trials)
    monkeypatch.setattr(merging, "MOST_PARTS", most)
    types = ["Parameter", "MatMul", "MatMul", "MatMul", "MatMul", "Result"]
    graph = graph_from_edges(types, [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)])
    instances = instances_of(graph, np.zeros(6, dtype=np.int64))
    costs = CutCosts(np.ones((6, 1)), np.ones(1), np.ones(1), np.ones(1))
    assert merge_parts(graph, instances, Partition.identity(4), costs).num_groups == num_parts


@pytest.mark.parametrize("by_load", [False, True])
@pytest.mark.parametrize("labels", [[0, 1, 2], [2, 1, 0]])
def test_parts_with_a_way_over_a_third_stay_apart_however_they_are_numbered(labels: list[int], by_load: bool) -> None:
    types = ["Parameter", "MatMul", "MatMul", "MatMul", "Result"]
    graph = graph_from_edges(types, [(0, 1), (1, 2), (1, 3), (2, 3), (3, 4)])
    instances = instances_of(graph, np.array([0, 0, 1, 0, 0]))
    parts = Partition(np.array(labels), 3)
    assert merge_parts(graph, instances, parts, CutCosts.assumed(graph, 2), by_load=by_load).num_groups == 3


def test_assumed_costs_are_of_operations_and_bytes() -> None:
    graph = graph_from_edges(["MatMul", "Result"], [(0, 1)], output_bytes=[4000, 0], flops=[2e6, 0])
    costs = CutCosts.assumed(graph, 2)
    np.testing.assert_allclose(costs.op_s, [[2e6 / 1e11 + 4000 / 2e10] * 2, [0.0, 0.0]])
    np.testing.assert_allclose([costs.read_s_per_byte, costs.write_s_per_byte], np.full((2, 2), 1 / 3e9))
