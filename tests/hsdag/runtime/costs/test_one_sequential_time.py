"""Sequential time is one: simulator, cuts and units count of a placement what HETERO's own submodels let cross."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.methods.cuts.cut_graph import BoundaryCosts, Launches
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.problem.problem_file import problem_from_json, problem_to_json
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Links, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate, simulate_makespans
from hsdag.runtime.simulator.values import period_s

SEQUENTIAL = Semantics(Execution.SEQUENTIAL)


def split_in_two() -> ScheduleProblem:
    """An op with two outputs of 4 bytes, and a reader of each."""
    return ScheduleProblem.from_arrays(
        np.zeros((3, 2)), [(0, 1), (0, 2)], edge_bytes=4.0, edge_port=[0, 1], link_bandwidth_bytes_per_s=4.0,
        link_latency_s=1.0,
    )  # fmt: skip


def graph_with_ports(rng: np.random.Generator) -> ComputationGraph:
    """A graph of ops with up to three outputs; edges of one output have one size."""
    n = int(rng.integers(3, 9))
    pairs = [(int(u), v) for v in range(1, n) for u in rng.choice(v, min(v, int(rng.integers(1, 4))), replace=False)]
    graph = graph_from_edges(["Parameter", *["Add"] * (n - 1)], pairs, output_bytes=[1] * n)
    ports = rng.integers(0, 3, len(pairs))
    return replace(graph, edge_src_port=ports, edge_bytes=rng.integers(1, 9, (n, 3))[graph.edge_src, ports])


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_simulator_cuts_and_submodels_agree_where_ops_have_several_outputs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, d = graph_with_ports(rng), int(rng.integers(2, 4))
    off = 1.0 - np.eye(d)  # what crosses on one device costs nothing here
    with np.errstate(divide="ignore"):
        bandwidth = rng.uniform(1, 5, (d, d)) / off
    time_s = rng.uniform(0, 3, (graph.num_ops, d))
    links: dict[str, Any] = {"link_latency_s": rng.uniform(0, 1, (d, d)) * off, "link_bandwidth_bytes_per_s": bandwidth}
    problem = ScheduleProblem.from_graph(graph, time_s, **links)
    units = problem_of(problem)
    read_again = problem_from_json(problem_to_json(problem))
    placement = rng.integers(0, d, graph.num_ops)
    expected = float(HeteroCosts.of(graph, problem).latency_s(placement[None])[0])
    assert units.costs is not None
    of_units = placement[np.argsort(units.units.partition.labels)]
    for table, devices in ((problem, placement), (units.costs, of_units), (read_again, placement)):
        run = simulate(table, devices, SEQUENTIAL)
        reported_s = sum(run.busy_s) + sum(run.transfers.end_s - run.transfers.start_s)
        assert reported_s == pytest.approx(expected)
        assert BoundaryCosts.of(table, Launches.NOTHING).cost_s(devices) == pytest.approx(expected)
        assert run.makespan_s == pytest.approx(expected)


@pytest.mark.parametrize("links", [Links.INDEPENDENT, Links.EGRESS, Links.CHANNEL])
def test_outputs_of_an_op_are_sent_one_by_one(links: Links) -> None:
    run = simulate(split_in_two(), [0, 1, 1], Semantics(links=links))
    waits = 2.0 if links is Links.INDEPENDENT else 4.0
    assert (run.num_transfers, run.transfer_bytes, run.makespan_s) == (2, 8.0, waits)
    assert run.peak_memory_bytes[1] == (8.0 if links is Links.INDEPENDENT else 4.0)


@pytest.mark.parametrize(("links", "load_s"), [(Links.EGRESS, 4.0), (Links.CHANNEL, 4.0), (Links.BLOCKING, 4.0)])
def test_every_output_adds_to_the_load_of_a_link(links: Links, load_s: float) -> None:
    assert period_s(split_in_two(), np.array([[0, 1, 1]]), Semantics(links=links)).tolist() == [load_s]


def test_edges_without_ports_carry_one_result() -> None:
    problem = split_in_two()
    alike = replace(problem, edge_port=np.zeros_like(problem.edge_port))
    assert simulate_makespans(alike, [[0, 1, 1]], SEQUENTIAL).tolist() == [2.0]
    assert '"port"' not in problem_to_json(alike)


def test_a_unit_sends_the_results_of_its_ops_one_by_one() -> None:
    problem = split_in_two()
    labels = replace(problem.labels, colocate=("", "both", "both"))
    units = problem_of(replace(problem, labels=labels)).costs
    assert units is not None
    assert simulate_makespans(units, [[0, 1]], SEQUENTIAL).tolist() == [4.0]
