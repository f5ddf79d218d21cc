"""OpByOpCosts: a makespan is the sum of what its parameters contribute, and calibration finds factors again."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.models.sharded_workloads import chainmm
from hsdag.runtime.costs.op_by_op_costs import OpByOpCosts
from hsdag.runtime.objectives import THROUGHPUT
from hsdag.runtime.problem.cost_model import CostModel, CostSource

NAMES = ("A", "B")


def costs_of(num_ops: int, seed: int = 0) -> CostModel:
    rng = np.random.default_rng(seed)
    latency_s, bandwidth = np.full((2, 2), 1e-5), np.full((2, 2), 1e9)
    return CostModel(rng.uniform(1e-5, 1e-3, (num_ops, 2)), np.zeros(2), latency_s, bandwidth, CostSource.MEASURED)


@pytest.fixture(scope="module")
def costs() -> OpByOpCosts:
    graph = chainmm(2, 64).graph
    return OpByOpCosts.of(graph, costs_of(graph.num_ops), NAMES)


def placements(costs: OpByOpCosts, count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2, (count, costs.problem.num_ops))


def test_a_chain_takes_its_ops_and_its_transfer() -> None:
    graph = graph_from_edges(["Parameter", "Relu", "Relu"], [(0, 1), (1, 2)], output_bytes=[0, 1000, 0])
    table = np.array([[0.0, 0.0], [1e-3, 2e-3], [3e-3, 4e-3]])
    costs = OpByOpCosts.of(
        graph, CostModel(table, np.zeros(2), np.full((2, 2), 1e-5), np.full((2, 2), 1e9), CostSource.MEASURED), NAMES
    )
    found = costs.latency_s(np.array([[0, 0, 0], [0, 0, 1]]))
    np.testing.assert_allclose(found, [1e-3 + 3e-3, 1e-3 + 4e-3 + 1e-5 + 1000 / 1e9])


def test_constants_are_everywhere_from_the_start() -> None:
    graph = graph_from_edges(["Constant", "Relu", "Add"], [(0, 2), (1, 2)], output_bytes=[10**9, 0, 0])
    costs = OpByOpCosts.of(graph, costs_of(3), NAMES)
    assert (costs.problem.edge_src.tolist(), costs.problem.edge_dst.tolist()) == ([1], [2])


def test_what_the_parameters_contribute_adds_up_to_the_makespan(costs: OpByOpCosts) -> None:
    some = placements(costs, 8)
    np.testing.assert_allclose(costs._contributions_s(some, None).sum(axis=1), costs.latency_s(some), rtol=1e-6)


def test_calibration_finds_what_the_measurements_were_made_with(costs: OpByOpCosts) -> None:
    some, others = placements(costs, 24), placements(costs, 40)[24:]
    truth = costs._scaled(np.array([1.3, 1.3, 2.0]))
    fitted = costs.calibrated(some, truth.latency_s(some))
    before, after = (abs(each.latency_s(others) / truth.latency_s(others) - 1).max() for each in (costs, fitted))
    assert before > 0.2
    assert after < 0.02
    assert fitted.costs.source is CostSource.CALIBRATED


def test_without_measurements_nothing_changes(costs: OpByOpCosts) -> None:
    assert costs.calibrated(placements(costs, 2), np.array([np.nan, np.inf])) is costs


def test_the_order_counts_where_it_is_given(costs: OpByOpCosts) -> None:
    some = placements(costs, 1)
    n = costs.problem.num_ops
    found = {float(costs.latency_s(some, [np.random.default_rng(s).permutation(n)])[0]) for s in range(6)}
    assert len(found) > 1


def test_the_period_is_that_of_the_busiest_device(costs: OpByOpCosts) -> None:
    alone = np.zeros((1, costs.problem.num_ops), dtype=np.int64)
    np.testing.assert_allclose(costs.period_s(alone), costs.problem.time_s[:, 0].sum())
    assert costs.values(THROUGHPUT, alone)[0] == costs.period_s(alone)[0]
