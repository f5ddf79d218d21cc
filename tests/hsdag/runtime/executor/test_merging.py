"""Merging and the schedule of parts, against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.ir.graph.partition import Partition
from hsdag.runtime.executor import merging
from hsdag.runtime.executor.cut import Instances, initial_parts, instances_of
from hsdag.runtime.executor.merging import CutCosts, merge_parts, part_schedule
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Order, Semantics
from hsdag.runtime.simulator.simulation import simulate
from tests.hsdag.runtime.executor.random_cuts import Placed, assert_convex, placed_graphs


def costs_of(placed: Placed, seed: int) -> CutCosts:
    """Whole numbers, so that ends coincide and sums are exact."""
    rng = np.random.default_rng(seed)
    shape = (placed.graph.num_ops, placed.num_devices)
    per_device = rng.integers(0, 4, (3, placed.num_devices)).astype(np.float64)
    return CutCosts(
        rng.integers(1, 9, shape).astype(np.float64), 1 + per_device[0], per_device[1] / 8, per_device[2] / 8
    )


def plain_durations(placed: Placed, instances: Instances, parts: Partition, costs: CutCosts) -> list[float]:
    """A launch, the ops, every tensor that comes in once, and every tensor that goes out once, for each part."""
    label, graph = parts.labels.tolist(), placed.graph
    took = [0.0] * parts.num_groups
    read, written = set(), set()
    for i, (v, d) in enumerate(zip(instances.op.tolist(), instances.device.tolist(), strict=True)):
        took[label[i]] += float(costs.op_s[v, d])
    for u, v in zip(instances.edge_src.tolist(), instances.edge_dst.tolist(), strict=True):
        if label[u] != label[v]:
            read.add((u, label[v]))
            written.add(u)
    for u, v in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
        if graph.op_types[v] == "Result" and instances.read_from[u, placed.device[u]] >= 0:
            written.add(int(instances.read_from[u, placed.device[u]]))
    part_device = {label[i]: int(instances.device[i]) for i in range(len(label))}
    for u, p in read:
        took[p] += float(graph.output_bytes[instances.op[u]] * costs.read_s_per_byte[part_device[p]])
    for u in written:
        took[label[u]] += float(graph.output_bytes[instances.op[u]] * costs.write_s_per_byte[instances.device[u]])
    return [took[p] + float(costs.launch_s[part_device[p]]) for p in range(parts.num_groups)]


def simulated(
    instances: Instances, parts: Partition, duration_s: list[float], rank: np.ndarray
) -> tuple[float, list[float]]:
    """Makespan and starts by the simulator, where nothing is sent; every part is an op of its own device alone."""
    src, dst = parts.quotient_edges(instances.edge_src, instances.edge_dst)
    count, num_devices = parts.num_groups, int(instances.device.max()) + 1
    device = np.zeros(count, dtype=np.int64)
    device[parts.labels] = instances.device
    time_s = np.tile(np.asarray(duration_s)[:, None], num_devices)
    problem = ScheduleProblem.from_arrays(time_s, np.stack([src, dst], axis=1))
    found = simulate(problem, device, Semantics(order=Order.PRIORITY), ranks=rank)
    return found.makespan_s, found.start_s.tolist()


@given(placed_graphs, st.integers(0, 99))
def test_the_schedule_of_parts_is_the_simulators_by_longest_ways_of_what_each_part_takes(
    placed: Placed, seed: int
) -> None:
    instances, parts = placed.initial()
    costs = costs_of(placed, seed)
    schedule = part_schedule(placed.graph, instances, parts, costs)
    duration_s = schedule.duration_s.tolist()
    assert duration_s == plain_durations(placed, instances, parts, costs)
    src, dst = parts.quotient_edges(instances.edge_src, instances.edge_dst)
    for p in range(parts.num_groups):
        behind_s = schedule.b_level_s[dst[src == p]].max(initial=0.0)
        assert schedule.b_level_s[p] == duration_s[p] + behind_s
    makespan_s, start_s = simulated(instances, parts, duration_s, -schedule.b_level_s)
    assert (schedule.end_s.max(initial=0.0), schedule.start_s.tolist()) == (makespan_s, start_s)


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


def test_parts_that_form_a_cycle_have_no_schedule() -> None:
    graph = graph_from_edges(["Parameter", "MatMul", "MatMul", "MatMul", "Result"], [(0, 1), (1, 2), (2, 3), (3, 4)])
    instances = instances_of(graph, np.asarray([0, 0, 1, 0, 0]))
    with pytest.raises(ValueError, match="parts wait for each other in a cycle"):
        part_schedule(graph, instances, Partition(np.asarray([0, 1, 0]), 2), CutCosts.assumed(graph, 2))
