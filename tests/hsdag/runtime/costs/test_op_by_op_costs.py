"""OpByOpCosts: a makespan is the sum of what its parameters contribute; calibration, whatever the executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.models.sharded_workloads import chainmm
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.op_by_op_costs import OpByOpCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.schedule_problem import CostSource, ScheduleProblem

LINKS: dict[str, Any] = {"link_latency_s": 1e-5, "link_bandwidth_bytes_per_s": 1e9}


def costs_of(graph: ComputationGraph) -> OpByOpCosts:
    time_s = np.random.default_rng(0).uniform(1e-5, 1e-3, (graph.num_ops, 2))
    return OpByOpCosts.of(graph, ScheduleProblem.from_graph(graph, time_s, **LINKS))


@pytest.fixture(scope="module")
def costs() -> OpByOpCosts:
    return costs_of(chainmm(2, 64).graph)


def placements(costs: OpByOpCosts, count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2, (count, costs.costs.num_ops))


def test_a_chain_takes_its_ops_and_its_transfer() -> None:
    graph = graph_from_edges(["Parameter", "Relu", "Relu"], [(0, 1), (1, 2)], output_bytes=[0, 1000, 0])
    table = np.array([[0.0, 0.0], [1e-3, 2e-3], [3e-3, 4e-3]])
    costs = OpByOpCosts.of(graph, ScheduleProblem.from_graph(graph, table, **LINKS))
    found = costs.latency_s(np.array([[0, 0, 0], [0, 0, 1]]))
    np.testing.assert_allclose(found, [1e-3 + 3e-3, 1e-3 + 4e-3 + 1e-5 + 1000 / 1e9])


def test_constants_are_everywhere_from_the_start() -> None:
    graph = graph_from_edges(["Constant", "Relu", "Add"], [(0, 2), (1, 2)], output_bytes=[10**9, 0, 0])
    costs = costs_of(graph)
    assert (costs.costs.edge_src.tolist(), costs.costs.edge_dst.tolist()) == ([1], [2])


def test_what_the_parameters_contribute_adds_up_to_the_makespan(costs: OpByOpCosts) -> None:
    some = placements(costs, 8)
    np.testing.assert_allclose(costs._contributions_s(some, None).sum(axis=1), costs.latency_s(some), rtol=1e-6)


@pytest.mark.parametrize(("factors", "within"), [((1.3, 1.3, 2.0), 0.02), ((2.0, 1.0, 2.0), 0.1)])
def test_calibration_finds_what_the_measurements_were_made_with(
    costs: OpByOpCosts, factors: tuple[float, ...], within: float
) -> None:
    some, others = placements(costs, 12), placements(costs, 20)[12:]
    truth = costs._scaled(np.array(factors))
    fitted = costs.calibrated(some, truth.latency_s(some))
    before, after = (abs(each.latency_s(others) / truth.latency_s(others) - 1).max() for each in (costs, fitted))
    assert before > 0.2
    assert after < within
    assert fitted.costs.source is CostSource.CALIBRATED


def test_the_order_counts_where_it_is_given(costs: OpByOpCosts) -> None:
    some = placements(costs, 1)
    n = costs.costs.num_ops
    found = {float(costs.latency_s(some, [np.random.default_rng(s).permutation(n)])[0]) for s in range(6)}
    assert len(found) > 1


NUM = 12
CHAIN = graph_from_edges(["MatMul"] * NUM, [(v, v + 1) for v in range(NUM - 1)], output_bytes=[10_000] * NUM)
TIMES = np.random.default_rng(0).uniform(1e-4, 2e-3, (NUM, 2))
PROBLEM = ScheduleProblem.from_graph(CHAIN, TIMES, launch_s=1e-4, link_bandwidth_bytes_per_s=2e9)
KINDS = [HeteroCosts, WorkConservingCosts, OpByOpCosts]


@pytest.mark.parametrize("kind", KINDS)
def test_failed_observations_are_left_out(kind: type[HeteroCosts]) -> None:
    prior: PlacementCosts = kind.of(CHAIN, PROBLEM)
    seen = (np.arange(NUM) >= np.array([[3], [6], [8]])).astype(np.int64)
    measured_s = 1.2 * prior.latency_s(seen)
    fitted = prior.calibrated(seen, measured_s)
    again = prior.calibrated(np.concatenate([seen, seen]), np.append(measured_s, [np.nan, np.inf, 0.0]))
    assert again.latency_s(seen) == pytest.approx(fitted.latency_s(seen))
    assert fitted.latency_s(seen) == pytest.approx(measured_s, rel=0.1)
    assert fitted.costs.source is CostSource.CALIBRATED
    assert prior.calibrated(seen[:1], np.array([np.nan])) is prior
