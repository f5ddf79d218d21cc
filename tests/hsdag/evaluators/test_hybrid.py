"""Hybrid evaluation: what it measures, what it learns from it, and when it stops."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hsdag.evaluators.base import Evaluation, Evaluator, SearchStopped
from hsdag.evaluators.hybrid import HybridEvaluator, HybridPlan
from hsdag.evaluators.recording import Budget, RecordingEvaluator
from hsdag.ir import graph_from_edges
from hsdag.ir.coarsen import coarsen
from hsdag.ir.graph import IntArray
from hsdag.ir.partition import Partition
from hsdag.runtime.costs.cost_model import CostModel, CostSource
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.problems.objectives.throughput import THROUGHPUT
from hsdag.runtime.problems.problem import Problem
from hsdag.search.searching import NoJournal

NUM = 12
GRAPH = graph_from_edges(["Add"] * NUM, [(v - 1, v) for v in range(1, NUM)], output_bytes=[1000] * NUM)
PLAN = HybridPlan(first=10, longest=10, measured_each=2, patience=2, most=1000)


def costs(launch_s: float) -> HeteroCosts:
    time_s = np.random.default_rng(0).uniform(1e-3, 3e-3, (NUM, 2))
    model = CostModel(time_s, np.full(2, launch_s), np.zeros((2, 2)), np.full((2, 2), 1e12), CostSource.MEASURED)
    return HeteroCosts.of(GRAPH, model)


class Device(Evaluator):
    """Stands for the hardware: launches cost more there than the profile says."""

    def __init__(self, launch_s: float = 1e-3, failing: Sequence[bytes] = ()) -> None:
        self.true = costs(launch_s)
        self.asked: list[IntArray] = []
        self.failing = failing

    def evaluate(self, placements: Sequence[IntArray]) -> list[Evaluation]:
        self.asked += placements
        return [self._one(placement) for placement in placements]

    def _one(self, placement: IntArray) -> Evaluation:
        if placement.tobytes() in self.failing:
            return Evaluation(None, "crashed")
        return Evaluation(float(self.true.latency_s(PROBLEM.expand(placement)[None])[0]))


PROBLEM = Problem(coarsen(GRAPH, Partition.identity(NUM)), ("a", "b"), np.ones((NUM, 2), dtype=np.bool_))


def hybrid(device: Device, plan: HybridPlan = PLAN, budget: Budget | None = None) -> HybridEvaluator:
    return HybridEvaluator(PROBLEM, costs(1e-6), RecordingEvaluator(device, budget or Budget(), NoJournal()), plan)


def drawn(count: int, seed: int = 0) -> list[IntArray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 2, NUM) for _ in range(count)]


def run_out(evaluator: HybridEvaluator) -> None:
    """Evaluate until the search is stopped."""
    with contextlib.suppress(SearchStopped):
        for seed in range(500):
            evaluator.evaluate(drawn(10, seed))
        pytest.fail("the search never ended")


def test_most_placements_are_simulated_and_only_the_most_promising_measured() -> None:
    device = Device()
    evaluator, placements = hybrid(device), drawn(10)
    simulated_s = costs(1e-6).latency_s(PROBLEM.expand(np.stack(placements)))
    evaluator.evaluate(placements)
    best = [placements[i] for i in np.argsort(simulated_s)[:2]]
    assert [p.tolist() for p in device.asked] == [p.tolist() for p in best]


def test_measuring_teaches_what_the_profile_did_not_know() -> None:
    evaluator, others = hybrid(Device()), drawn(30, 9)
    true_s = costs(1e-3).latency_s(PROBLEM.expand(np.stack(others)))
    before = np.abs(evaluator.simulated_s(others) / true_s - 1).mean()
    for seed in range(3):
        evaluator.evaluate(drawn(10, seed))
    after = np.abs(evaluator.simulated_s(others) / true_s - 1).mean()
    assert after < 0.2 * before


def test_a_measured_placement_answers_with_what_was_measured() -> None:
    device = Device()
    evaluator = hybrid(device)
    evaluator.evaluate(drawn(10))
    assert evaluator.evaluate(device.asked[:1]) == device.evaluate(device.asked[:1])


def test_a_placement_that_failed_on_the_devices_fails_in_simulation_too() -> None:
    device = Device(failing=[p.tobytes() for p in drawn(10)])
    evaluator = hybrid(device)
    evaluator.evaluate(drawn(10))
    assert evaluator.evaluate(device.asked[:1]) == [Evaluation(None, "crashed")]


def test_the_search_ends_when_measuring_finds_nothing_better() -> None:
    device = Device()
    evaluator = hybrid(device)
    run_out(evaluator)
    assert len(device.asked) <= 2 * (PLAN.patience + 6)
    assert evaluator.num_simulated < PLAN.most


def test_a_simulated_search_measures_nothing_and_ends_at_its_number() -> None:
    device = Device()
    evaluator = hybrid(device, replace(HybridPlan.simulated(), most=40))
    run_out(evaluator)
    assert device.asked == []
    assert evaluator.num_simulated == 40
    assert len(evaluator.promising(3)) == 3


def test_the_budget_of_the_measured_search_ends_it() -> None:
    with pytest.raises(SearchStopped):
        hybrid(Device(), budget=Budget(seconds=0.0)).evaluate(drawn(1))


def test_earlier_measurements_calibrate_from_the_start() -> None:
    device, others = Device(), drawn(30, 9)
    recorder = RecordingEvaluator(device, Budget(), NoJournal())
    recorder.evaluate(drawn(8, 4))
    evaluator = HybridEvaluator(PROBLEM, costs(1e-6), recorder, PLAN)
    true_s = costs(1e-3).latency_s(PROBLEM.expand(np.stack(others)))
    assert np.abs(evaluator.simulated_s(others) / true_s - 1).mean() < 0.05


def test_throughput_is_scaled_to_what_was_measured() -> None:
    problem = replace(PROBLEM, objective=THROUGHPUT)
    recorder = RecordingEvaluator(Device(), Budget(), NoJournal())
    seen = drawn(3)
    recorder.evaluate(seen)
    evaluator = HybridEvaluator(problem, costs(1e-6), recorder, PLAN)
    periods = costs(1e-6).period_s(PROBLEM.expand(np.stack(seen)))
    scale = np.median([e.evaluation.seconds for e in recorder.events] / periods)
    assert evaluator.simulated_s(seen) == pytest.approx(scale * periods)


def test_single_devices_are_never_the_promising_ones() -> None:
    evaluator = hybrid(Device())
    evaluator.evaluate([np.zeros(NUM, dtype=np.int64), *drawn(3)])
    assert all(len(np.unique(p)) == 2 for p in evaluator.promising(10))
