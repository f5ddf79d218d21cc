"""Simulated latency of sequential execution, against a slow reading of its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir import ComputationGraph, graph_from_edges
from hsdag.runtime.costs.cost_model import CostModel, CostSource, sequential_latency_s


def random_case(seed: int) -> tuple[ComputationGraph, CostModel, np.ndarray]:
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, 12)), int(rng.integers(1, 4))
    edges = [(u, v) for v in range(n) for u in range(v) if rng.random() < 0.3]
    graph = graph_from_edges(["X"] * n, edges, output_bytes=rng.integers(1, 1000, n).tolist())
    costs = CostModel(
        rng.random((n, k)), rng.random(k), rng.random((k, k)), 1 + 1e3 * rng.random((k, k)), CostSource.FILE
    )
    return graph, costs, rng.integers(0, k, (3, n))


def by_definition(graph: ComputationGraph, costs: CostModel, placement: np.ndarray) -> float:
    total_s, previous, sent = 0.0, None, set()
    for v in graph.topological_order.tolist():
        device = int(placement[v])
        total_s += costs.time_s[v, device] + (costs.launch_s[device] if device != previous else 0.0)
        previous = device
        for u in graph.predecessors.of(v).tolist():
            home = int(placement[u])
            if home != device and (u, device) not in sent:
                sent.add((u, device))
                rate = costs.link_bandwidth_bytes_per_s[home, device]
                total_s += costs.link_latency_s[home, device] + graph.output_bytes[u] / rate
    return total_s


@given(st.integers(0, 10_000))
def test_sequential_latency_is_what_its_definition_says(seed: int) -> None:
    graph, costs, placements = random_case(seed)
    expected = [by_definition(graph, costs, placement) for placement in placements]
    assert sequential_latency_s(graph, costs, placements) == pytest.approx(expected)


def test_an_unsupported_op_costs_infinity() -> None:
    graph = graph_from_edges(["A", "B"], [(0, 1)])
    one, two = np.zeros(2), np.ones((2, 2))
    costs = CostModel(np.array([[1.0, np.nan], [1.0, 1.0]]), one, two, two, CostSource.FILE)
    assert sequential_latency_s(graph, costs, np.array([[0, 0], [1, 0]])).tolist() == [2.0, np.inf]


def test_negative_times_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        CostModel(np.array([[-1.0]]), np.zeros(1), np.zeros((1, 1)), np.ones((1, 1)), CostSource.FILE)
