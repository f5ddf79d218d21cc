"""Calibration, whatever the executor: what was not measured, or failed, counts for nothing."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.op_by_op_costs import OpByOpCosts
from hsdag.runtime.costs.placement_costs import PlacementCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

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
    again = prior.calibrated(np.concatenate([seen, seen[:2]]), np.append(measured_s, [np.nan, np.inf]))
    assert again.latency_s(seen) == pytest.approx(fitted.latency_s(seen))
    assert fitted.latency_s(seen) == pytest.approx(measured_s, rel=0.1)
    assert prior.calibrated(seen[:1], np.array([np.nan])) is prior


@pytest.mark.parametrize("kind", [HeteroCosts, WorkConservingCosts])
def test_costs_for_another_graph_are_refused(kind: type[HeteroCosts]) -> None:
    with pytest.raises(ValueError, match="costs are for 12 ops, but the graph has 3"):
        kind.of(graph_from_edges(["X"] * 3, []), PROBLEM)
