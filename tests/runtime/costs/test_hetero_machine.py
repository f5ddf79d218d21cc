"""The time under HETERO that a local search follows move by move is the one of the whole placement."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import ComputationGraph, IntArray, graph_from_edges
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.hetero_machine import REFRESH, HeteroMachine, accept, hetero_machine, propose, reject
from hsdag.runtime.problem.cost_model import CostModel, CostSource
from tests.ir.hetero.random_models import random_model


class Walk:
    """A machine on a graph with random costs, and what ``HeteroCosts`` says of its placement."""

    def __init__(self, graph: ComputationGraph, rng: np.random.Generator, is_period: bool = False) -> None:
        n, self.num_devices = graph.num_ops, int(rng.integers(2, 4))
        d = self.num_devices
        time_s = rng.uniform(0, 3, (n, d))
        time_s[rng.random((n, d)) < rng.choice([0.0, 0.01])] = np.nan
        links = rng.uniform(0, 1, (d, d)), rng.uniform(1, 9, (d, d))
        self.costs = HeteroCosts.of(graph, CostModel(time_s, rng.uniform(0, 1, d), *links, CostSource.FILE))
        self.unit, self.rng, self.is_period = colocate(graph).sets.labels, rng, is_period
        self.placement = self.units_on(rng.choice([0.05, 1.0]))
        self.machine: HeteroMachine = hetero_machine(self.costs, self.unit, self.placement, is_period)

    def units_on(self, share: float) -> IntArray:
        """[U] random devices, of which the share ``share`` differs from the one before."""
        moves = self.rng.integers(0, self.num_devices, int(self.unit.max()) + 1)
        return np.asarray(np.cumsum(moves * (self.rng.random(len(moves)) < share)) % self.num_devices)

    def value_s(self, placement: IntArray) -> float:
        price = self.costs.period_s if self.is_period else self.costs.latency_s
        return float(price(placement[self.unit][None])[0])

    def moved(self) -> tuple[IntArray, IntArray, IntArray]:
        """Some units, their next devices, and the placement with them there."""
        most = int(self.rng.choice([1, 2, len(self.placement)]))
        units = self.rng.choice(len(self.placement), int(self.rng.integers(0, most + 1)), replace=False)
        after = self.placement.copy()
        after[units] = self.rng.integers(0, self.num_devices, 1 if self.rng.random() < 0.5 else len(units))
        return units, after[units], after

    def step(self, limit_s: float | None = None) -> tuple[float, float]:
        """Propose a move, and accept it or not; what the machine said, and what is right."""
        units, devices, after = self.moved()
        expected_s = self.value_s(after)
        limit_s = np.inf if limit_s is None else limit_s * expected_s
        found_s = propose(self.machine, units, devices, len(units), limit_s)
        if np.isfinite(found_s) and found_s <= limit_s and self.rng.random() < 0.5:
            accept(self.machine)
            self.placement = after
        else:
            reject(self.machine)
        return found_s, expected_s


def graphs(seed: int, num_ops: int) -> tuple[ComputationGraph, np.random.Generator]:
    """A random model with ports, constants and Results, or a random graph whose submodels wait for each other."""
    rng = np.random.default_rng(seed)
    if seed % 2:
        return graph_of(random_model(rng, num_ops)), rng
    reads = [(int(rng.integers(max(v - 9, 0), v)), v) for v in range(3, num_ops + 3) for _ in range(2)]
    return graph_from_edges(["X"] * (num_ops + 3), sorted(set(reads))), rng


@given(st.integers(0, 2**32), st.integers(3, 60), st.booleans())
def test_whatever_moves_were_accepted_or_rejected_the_value_is_that_of_the_placement(
    seed: int, num_ops: int, is_period: bool
) -> None:
    walk = Walk(*graphs(seed, num_ops), is_period)
    for _ in range(20):
        found_s, expected_s = walk.step()
        assert found_s == pytest.approx(expected_s)
    if np.isfinite(walk.value_s(walk.placement)):
        assert walk.machine.run[0]["value_s"] == pytest.approx(walk.value_s(walk.placement))
    assert walk.machine.placement.tolist() == walk.placement.tolist()


@given(st.integers(0, 2**32), st.integers(3, 60), st.booleans(), st.sampled_from([0.5, 0.9, 0.999, 1.001, 1.2]))
def test_a_limit_leaves_values_within_it_as_they_are_and_lets_none_appear_within_it(
    seed: int, num_ops: int, is_period: bool, limit: float
) -> None:
    walk = Walk(*graphs(seed, num_ops), is_period)
    for _ in range(20):
        found_s, expected_s = walk.step(limit)
        is_within = limit >= 1 or np.isinf(expected_s)
        assert found_s == pytest.approx(expected_s) if is_within else found_s > limit * expected_s


def test_a_far_too_low_limit_spares_the_submodels() -> None:
    """The lower bound of a chain that one op leaves: all but the launches of the two ends."""
    graph = graph_from_edges(["X"] * 5, [(v, v + 1) for v in range(4)], output_bytes=[8] * 5)
    ones = np.ones((2, 2))
    costs = HeteroCosts.of(graph, CostModel(np.ones((5, 2)), np.full(2, 10.0), ones, 8 * ones, CostSource.FILE))
    machine = hetero_machine(costs, np.arange(5), np.zeros(5, dtype=np.int64))
    assert propose(machine, np.array([2]), np.array([1]), 1, 0.0) == pytest.approx(5 + 2 * 10 + 2 * 2)
    reject(machine)
    assert propose(machine, np.array([2]), np.array([1]), 1, np.inf) == pytest.approx(5 + 3 * 10 + 2 * 2)


def test_a_move_to_a_device_that_lacks_an_op_is_infinite_and_can_be_undone() -> None:
    graph = graph_from_edges(["X"] * 2, [(0, 1)])
    time_s = np.array([[1.0, np.nan], [1.0, 1.0]])
    costs = HeteroCosts.of(
        graph, CostModel(time_s, np.zeros(2), np.zeros((2, 2)), np.full((2, 2), np.inf), CostSource.FILE)
    )
    machine = hetero_machine(costs, np.arange(2), np.zeros(2, dtype=np.int64))
    assert propose(machine, np.array([0]), np.array([1]), 1, np.inf) == np.inf
    reject(machine)
    assert propose(machine, np.array([1]), np.array([1]), 1, np.inf) == 2.0


def test_sums_do_not_drift_over_many_accepted_moves() -> None:
    rng = np.random.default_rng(3)
    graph = graph_from_edges(["X"] * 6, [(v, v + 1) for v in range(5)], output_bytes=[0] * 6)
    time_s = rng.uniform(1e-9, 1e3, (6, 2)) ** 3
    costs = HeteroCosts.of(graph, CostModel(time_s, np.zeros(2), np.zeros((2, 2)), np.ones((2, 2)), CostSource.FILE))
    machine = hetero_machine(costs, np.arange(6), np.zeros(6, dtype=np.int64))
    while machine.run[0]["num_accepted"] < REFRESH:
        unit = rng.integers(0, 6, 1)
        propose(machine, unit, 1 - machine.placement[unit], 1, np.inf)
        accept(machine)
    expected_s = np.bincount(machine.placement, time_s[np.arange(6), machine.placement], 2)
    assert machine.load_s[0].tolist() == expected_s.tolist()
