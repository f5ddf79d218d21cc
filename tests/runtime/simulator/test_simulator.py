"""The simulator against a slow reference and against the laws of scheduling, over random problems."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.runtime.problem.cost_model import CostModel, CostSource
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import (
    Execution,
    Links,
    Order,
    Semantics,
    period_s,
    simulate,
    simulate_makespans,
)
from tests.runtime.simulator import reference_simulator

SIMULATED = reference_simulator.SIMULATED
Case = tuple[ScheduleProblem, np.ndarray, np.ndarray]
Combination = tuple[Execution, Order, Links, float, float, float]
cases = st.builds(
    reference_simulator.random_case,
    st.integers(0, 10**6),
    st.integers(1, 60),
    st.integers(1, 5),
    st.sampled_from([0.0, 1.0, 0.3]),
    st.sampled_from([0.0, 1.0, 0.3]),
)
semantics = st.builds(
    Semantics,
    st.sampled_from(Execution),
    st.sampled_from(Order),
    st.sampled_from(SIMULATED),
    st.sampled_from([0.0, 0.5]),
    st.integers(0, 5),
)
work_conserving = st.builds(
    Semantics,
    order=st.sampled_from(Order),
    links=st.sampled_from(SIMULATED),
    noise_sigma=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 5),
)


@pytest.mark.slow
@pytest.mark.parametrize("combination", reference_simulator.COMBINATIONS)
@settings(max_examples=5)  # of 240 combinations: 1,200 problems
@given(seed=st.integers(0, 10**6), num_ops=st.integers(1, 200), num_devices=st.integers(1, 8))
def test_simulator_agrees_with_the_reference(
    combination: Combination, seed: int, num_ops: int, num_devices: int
) -> None:
    execution, order, links, op_overhead_s, transfer_overhead_s, sigma = combination
    case = reference_simulator.random_case(seed, num_ops, num_devices, op_overhead_s, transfer_overhead_s)
    how = Semantics(execution, order, links, sigma, seed)
    assert reference_simulator.largest_deviation(case, how) <= 1e-9


@given(cases, work_conserving)
def test_no_device_idles_while_an_op_is_ready(case: Case, how: Semantics) -> None:
    problem, placement, priority = case
    run = simulate(problem, placement, how, priority)
    ready = ready_s(problem, run.device, run.end_s, run.transfers)
    for v in range(problem.num_ops):
        same = np.flatnonzero(placement == placement[v])
        busy = [(run.start_s[u], run.end_s[u] + problem.op_overhead_s) for u in same if u != v]
        covered = float(ready[v])  # from readiness to start, other ops and their overheads fill the device
        for begin, end in sorted(busy):
            if begin <= covered + 1e-9:
                covered = max(covered, end)
        assert covered >= run.start_s[v] - 1e-9


@given(cases, semantics)
def test_no_op_starts_before_its_inputs_have_arrived(case: Case, how: Semantics) -> None:
    problem, placement, priority = case
    run = simulate(problem, placement, how, priority)
    assert np.all(run.start_s >= ready_s(problem, run.device, run.end_s, run.transfers) - 1e-12)


@given(cases, semantics)
def test_no_two_ops_of_a_device_overlap(case: Case, how: Semantics) -> None:
    problem, placement, priority = case
    run = simulate(problem, placement, how, priority)
    for d in range(problem.num_devices):
        mine = np.lexsort((run.end_s, run.start_s))
        mine = mine[placement[mine] == d]
        assert np.all(run.start_s[mine][1:] >= run.end_s[mine][:-1] - 1e-12)


@given(cases, st.sampled_from(Execution), st.sampled_from(Order), st.sampled_from(SIMULATED))
def test_makespan_is_at_least_the_critical_path_at_the_best_devices(
    case: Case, execution: Execution, order: Order, links: Links
) -> None:
    problem, placement, priority = case
    level = np.zeros(problem.num_ops)
    for v in problem.topological_order:
        inputs = problem.edge_src[problem.edge_dst == v]
        level[v] = problem.time_s[v].min() + level[inputs].max(initial=0.0)
    run = simulate(problem, placement, Semantics(execution, order, links), priority)
    assert run.makespan_s >= level.max() - 1e-9


@given(cases, semantics)
def test_a_batch_over_two_threads_gives_what_single_simulations_give(case: Case, how: Semantics) -> None:
    problem, placement, priority = case
    batch = np.stack([placement, np.zeros_like(placement), np.roll(placement, 1)])
    alone = [simulate(problem, row, how, priority).makespan_s for row in batch]
    assert simulate_makespans(problem, batch, how, priority, num_threads=2).tolist() == alone


def ready_s(problem: ScheduleProblem, device: np.ndarray, end_s: np.ndarray, transfers: object) -> np.ndarray:
    """[N] when the last input of each op is on its device."""
    rows = zip(transfers.op, transfers.dst_device, transfers.end_s, strict=True)  # type: ignore[attr-defined]
    arrived = {(int(v), int(d)): float(t) for v, d, t in rows}
    ready = np.zeros(problem.num_ops)
    for u, v in zip(problem.edge_src, problem.edge_dst, strict=True):
        at = end_s[u] if device[u] == device[v] else arrived[int(u), int(device[v])]
        ready[v] = max(ready[v], at)
    return ready


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
def test_sequential_execution_of_a_problem_is_what_its_definition_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 12)), int(rng.integers(1, 4))
    edges = [(u, v) for v in range(n) for u in range(v) if rng.random() < 0.3]
    graph = graph_from_edges(["X"] * n, edges, output_bytes=rng.integers(1, 1000, n).tolist())
    costs = CostModel(
        rng.random((n, d)), rng.random(d), rng.random((d, d)), 1 + 1e3 * rng.random((d, d)), CostSource.FILE
    )
    problem = ScheduleProblem.from_graph(graph, costs, [f"d{i}" for i in range(d)])
    placements = rng.integers(0, d, (3, n))
    found = simulate_makespans(problem, placements, Semantics(Execution.SEQUENTIAL))
    assert found == pytest.approx([by_definition(graph, costs, placement) for placement in placements])


@pytest.mark.parametrize("links", Links)
@given(case=cases, order=st.sampled_from(Order), sigma=st.sampled_from([0.0, 0.5]), others=st.integers(0, 3))
def test_period_is_the_load_of_the_busiest_resource(
    links: Links, case: Case, order: Order, sigma: float, others: int
) -> None:
    problem, placement, _ = case
    batch = np.stack([np.roll(placement, i) for i in range(others + 1)])
    found = period_s(problem, batch, Semantics(order=order, links=links, noise_sigma=sigma, seed=3))
    slow = [reference_simulator.Reference(problem, a.tolist(), links=links.value, sigma=sigma, seed=3) for a in batch]
    assert found == pytest.approx([one.period() for one in slow], rel=1e-12)


@given(cases, st.sampled_from(SIMULATED))
def test_period_of_sequential_execution_is_its_makespan(case: Case, links: Links) -> None:
    problem, placement, _ = case
    how = Semantics(Execution.SEQUENTIAL, links=links, noise_sigma=0.5)
    slow = reference_simulator.Reference(problem, placement.tolist(), links=links.value, sigma=0.5)
    assert period_s(problem, [placement], how) == pytest.approx([slow.sequential()])


@given(cases)
def test_period_under_independent_links_is_at_most_the_makespan_and_the_last_overhead(case: Case) -> None:
    problem, placement, _ = case
    makespan_s = simulate(problem, placement).makespan_s
    assert period_s(problem, [placement])[0] <= makespan_s + problem.op_overhead_s + 1e-9
