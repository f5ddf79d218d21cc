"""Simulated latency under HETERO, and its calibration on measured placements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.base.kernels import run_kernel
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.runtime.costs.hetero_costs import HeteroCosts, placement_s, unit_costs
from hsdag.runtime.objectives import find_objective
from hsdag.runtime.problem.schedule_problem import CostSource, ScheduleProblem
from hsdag.runtime.simulator.execution import busiest_s
from tests.hsdag.ir.placement.random_models import random_model


def case(seed: int, num_ops: int = 24) -> HeteroCosts:
    """A random graph with random costs on two devices."""
    rng = np.random.default_rng(seed)
    edges = sorted({(int(rng.integers(max(v - 4, 0), v)), v) for v in range(1, num_ops) for _ in range(2)})
    graph = graph_from_edges(["X"] * num_ops, edges, output_bytes=rng.integers(1_000, 100_000, num_ops).tolist())
    time_s = rng.uniform(1e-4, 2e-3, (num_ops, 2))
    links: dict[str, Any] = {"launch_s": 2e-4, "link_latency_s": 3e-5, "link_bandwidth_bytes_per_s": 2e8}
    return HeteroCosts.of(graph, ScheduleProblem.from_graph(graph, time_s, **links, source=CostSource.MEASURED))


def cheaper(true: HeteroCosts, factor: float) -> HeteroCosts:
    """What a profile with warm caches would say of ``true``: launches and links ``factor`` times as cheap."""
    c = true.costs
    costs = replace(
        c,
        launch_s=c.launch_s / factor,
        link_latency_s=c.link_latency_s / factor,
        link_bandwidth_bytes_per_s=c.link_bandwidth_bytes_per_s * factor,
    )
    return HeteroCosts(true.collector, costs)


def test_a_latency_is_ops_and_launches_and_crossings() -> None:
    graph = graph_from_edges(["X"] * 3, [(0, 1), (1, 2)], output_bytes=[100, 200, 0])
    costs = ScheduleProblem.from_graph(
        graph, [[5.0, 9.0], [9.0, 6.0], [7.0, 9.0]], launch_s=[0.5, 0.25], link_latency_s=[[9.0, 1.0], [2.0, 9.0]],
        link_bandwidth_bytes_per_s=[[1.0, 50.0], [100.0, 1.0]],
    )  # fmt: skip
    found = HeteroCosts.of(graph, costs).latency_s(np.array([[0, 1, 0], [0, 0, 0]]))
    assert found.tolist() == [5 + 6 + 7 + 0.5 + 0.25 + 0.5 + 1 + 100 / 50 + 2 + 200 / 100, 5 + 9 + 7 + 0.5]


def random_units(seed: int, num_ops: int) -> tuple[HeteroCosts, np.ndarray]:
    """A random model, or a random graph whose submodels wait for each other, and the unit of every op."""
    rng, d = np.random.default_rng(seed), 2 + seed % 2
    reads = {(int(rng.integers(max(v - 9, 0), v)), v) for v in range(3, num_ops) for _ in range(2)}
    graph = graph_of(random_model(rng, num_ops)) if seed % 3 else graph_from_edges(["X"] * num_ops, sorted(reads))
    time_s = rng.uniform(0, 3, (graph.num_ops, d))
    time_s[:, 1:][rng.random((graph.num_ops, d - 1)) < rng.choice([0.0, 0.01])] = np.nan
    slowdown = 1.0 + rng.random((d, d)) if rng.random() < 0.5 else None
    links: dict[str, Any] = {"link_latency_s": rng.uniform(0, 1, (d, d)), "launch_s": rng.uniform(0, 1, d)}
    links["link_bandwidth_bytes_per_s"] = rng.uniform(1, 9, (d, d))
    costs = replace(ScheduleProblem.from_graph(graph, time_s, **links), slowdown=slowdown)
    return HeteroCosts.of(graph, costs), colocate(graph).sets.labels


def counted_s(costs: HeteroCosts, device: np.ndarray, is_period: bool) -> float:
    """Seconds of a placement [N] by the launches and crossings of its submodels."""
    own, crossed = costs.costs, costs.collector.crossings(device[None], costs.costs.num_devices)
    sent_s = crossed.num[0] * own.link_latency_s + crossed.size_bytes[0] / own.link_bandwidth_bytes_per_s
    load_s = np.bincount(device, own.time_s[np.arange(len(device)), device], costs.costs.num_devices)
    load_s = load_s + crossed.launches[0] * own.launch_s + sent_s.sum(axis=0)
    if np.isnan(load_s).any():
        return np.inf
    return float(busiest_s(load_s[None], own.excess)[0] if is_period else load_s.sum())


@pytest.mark.usefixtures("both_ways")
@given(st.integers(0, 2**32), st.integers(3, 60), st.booleans(), st.sampled_from([0.5, 0.9, 0.999, 1.001, 1.2, np.inf]))
def test_a_placement_of_units_takes_what_its_ops_take_or_exceeds_the_limit_as_they_do(
    seed: int, num_ops: int, is_period: bool, limit: float
) -> None:
    costs, unit = random_units(seed, num_ops)
    units = unit_costs(costs, unit, int(unit.max()) + 1, is_period=is_period)
    rng, value_s = np.random.default_rng(seed), costs.period_s if is_period else costs.latency_s
    for share in (0.05, 0.05, 0.05, 1.0, 1.0):
        moves = rng.integers(0, costs.costs.num_devices, len(units.unit_s)) * (rng.random(len(units.unit_s)) < share)
        placement = np.cumsum(moves) % costs.costs.num_devices
        expected_s = counted_s(costs, placement[unit], is_period)
        assert value_s(placement[unit][None])[0] == pytest.approx(expected_s)
        found_s = run_kernel(placement_s, 1, units, placement, limit * expected_s)
        is_within = limit >= 1 or np.isinf(expected_s)
        assert found_s == pytest.approx(expected_s) if is_within else limit * expected_s < found_s < 1.001 * expected_s
        assert run_kernel(placement_s, 1, units, placement, np.inf) == pytest.approx(expected_s)


def test_a_far_too_low_limit_spares_the_submodels() -> None:
    """A chain that one op leaves: without launches, with what crosses and the ops alone."""
    graph = graph_from_edges(["X"] * 5, [(v, v + 1) for v in range(4)], output_bytes=[8] * 5)
    links: dict[str, Any] = {"launch_s": 10.0, "link_latency_s": 1.0, "link_bandwidth_bytes_per_s": 8.0}
    costs = HeteroCosts.of(graph, ScheduleProblem.from_graph(graph, np.ones((5, 2)), **links))
    units, placement = unit_costs(costs, np.arange(5), 5), np.array([0, 0, 1, 0, 0])
    assert run_kernel(placement_s, 1, units, placement, 0.0) == pytest.approx(5 + 2 * 2)
    assert run_kernel(placement_s, 1, units, placement, np.inf) == pytest.approx(5 + 3 * 10 + 2 * 2)


def test_what_every_split_costs_is_not_blamed_on_the_few_bytes_that_cross() -> None:
    probed, rng = cheaper(case(3), 5), np.random.default_rng(3)
    cuts = np.sort(rng.choice(np.arange(1, 24), 8, replace=False))
    splits = (np.arange(24) >= cuts[:, None]).astype(np.int64)  # each has two submodels
    measured_s = probed.latency_s(splits) + 10e-3
    fitted = probed.calibrated(splits, measured_s)
    assert fitted.latency_s(splits) == pytest.approx(measured_s, rel=0.01)
    assert fitted.costs.launch_s.sum() == pytest.approx(10e-3, rel=0.05)
    assert (fitted.costs.link_bandwidth_bytes_per_s > 0.9 * probed.costs.link_bandwidth_bytes_per_s).all()


def test_a_weighted_sum_is_calibrated_by_one_factor_for_all_its_terms() -> None:
    costs, some = case(3), np.cumsum(np.random.default_rng(3).random((5, 24)) < 0.15, axis=1) % 2
    objective = find_objective("latency=1,throughput=2").scaled(lambda _: 2.0)
    measured = 3.0 * costs.values(objective, some)
    measured[0] = np.nan  # failed
    fitted, factor = costs.fitted(objective, some, measured)
    assert fitted is costs
    assert factor == pytest.approx(3.0)
