"""Hybrid evaluation: what it measures, what it learns from it, and when it stops."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.runtime.objectives import THROUGHPUT
from hsdag.runtime.problem.plan import Plan
from hsdag.search.evaluators.base import SearchStopped
from hsdag.search.evaluators.hybrid import HybridEvaluator, HybridSchedule
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.seen_plans import KEPT, SeenPlans
from tests.hsdag.runtime.torch.launches import NUM, PROBLEM, Device, costs

PLAN = HybridSchedule(first=10, longest=10, measured_each=2, patience=2, most=1000)


def hybrid(device: Device, plan: HybridSchedule = PLAN, budget: Budget | None = None) -> HybridEvaluator:
    return HybridEvaluator(PROBLEM, costs(1e-6), RecordingEvaluator(device, budget or Budget()), plan)


def drawn(count: int, seed: int = 0) -> list[Plan]:
    rng = np.random.default_rng(seed)
    return [Plan(rng.integers(0, 2, NUM)) for _ in range(count)]


def stacked(plans: Sequence[Plan]) -> IntArray:
    return np.stack([plan.placement for plan in plans])


def simulated_s(plans: Sequence[Plan], launch_s: float = 1e-6) -> FloatArray:
    return costs(launch_s).latency_s(PROBLEM.expand(stacked(plans)))


def run_out(evaluator: HybridEvaluator) -> None:
    """Evaluate until the search is stopped."""
    with contextlib.suppress(SearchStopped):
        for seed in range(500):
            evaluator.evaluate(drawn(10, seed))
        pytest.fail("the search never ended")


def test_most_placements_are_simulated_and_only_the_most_promising_measured() -> None:
    device = Device()
    evaluator, placements = hybrid(device), drawn(10)
    evaluator.evaluate(placements)
    assert device.asked == [placements[i] for i in np.argsort(simulated_s(placements))[:2]]


@pytest.mark.parametrize("fails", [False, True])
def test_a_measured_placement_answers_with_what_was_measured_also_where_it_failed(fails: bool) -> None:
    device = Device(failing=drawn(10) if fails else ())
    evaluator = hybrid(device)
    evaluator.evaluate(drawn(10))
    (score,) = evaluator.evaluate(device.asked[:1])
    assert [score] == device.evaluate(device.asked[:1])
    assert (score.failure == "crashed") is fails


def test_no_plan_is_measured_twice_even_where_the_best_of_them_crash() -> None:
    failing = sorted(drawn(10), key=lambda plan: float(simulated_s([plan])[0]))
    device = Device(failing=failing[:3])
    run_out(hybrid(device, replace(PLAN, patience=6)))
    assert set(device.asked) & set(failing[:3])
    assert len(set(device.asked)) == len(device.asked) >= 4


def test_a_plan_that_was_passed_over_is_measured_once_recalibrated_costs_favour_it() -> None:
    rival, fastest = np.arange(NUM) % 2, costs(1e-6).costs.time_s.argmin(axis=1)
    passed_over = Plan(np.where(np.arange(NUM) < NUM // 2, 0, 1))
    device = Device()
    evaluator = hybrid(device, replace(HybridSchedule.between_slices(), measured_each=1))
    evaluator.evaluate([passed_over, Plan(rival), Plan(fastest)])
    evaluator.measure_promising()
    assert device.asked == [Plan(fastest)]
    assert evaluator.seen.promising(1) == [passed_over]
    evaluator.measure_promising()
    assert device.asked == [Plan(fastest), passed_over]


def test_of_one_placement_in_two_orders_only_one_is_measured_in_a_round() -> None:
    device, first = Device(), drawn(1)[0].placement
    device.takes_order = True
    evaluator = hybrid(device, replace(HybridSchedule.between_slices(), measured_each=2))
    forth, back = Plan(first, np.arange(NUM)), Plan(first, np.arange(NUM)[::-1])
    evaluator.evaluate([forth, back, *drawn(2, 1)])
    evaluator.measure_promising()
    assert len({plan.unordered for plan in device.asked}) == len(device.asked) == 2


def test_what_a_method_simulates_by_itself_is_counted_but_ends_nothing() -> None:
    evaluator = hybrid(Device())
    evaluator.evaluate(drawn(3))
    assert evaluator.progress == 3 / PLAN.most
    evaluator.report(count=10 * PLAN.most)
    assert evaluator.num_simulated == 3 + 10 * PLAN.most
    evaluator.evaluate(drawn(3, 1))


def test_what_is_reported_after_the_end_is_kept() -> None:
    evaluator = hybrid(Device(), budget=Budget(seconds=0.0))
    plans = drawn(3)
    with pytest.raises(SearchStopped):
        evaluator.evaluate(plans)
    assert evaluator.report(plans)[0].failure is None
    assert set(evaluator.seen.promising(3)) == set(plans)


def test_the_least_simulated_value_is_measured_though_boundaries_seem_too_dear() -> None:
    device, dear = Device(launch_s=1e-6), replace(PLAN, patience=9)
    recorder = RecordingEvaluator(device, Budget())
    recorder.evaluate([Plan(np.full(NUM, d)) for d in range(2)])
    evaluator = HybridEvaluator(PROBLEM, costs(1.0), recorder, dear)
    plans = drawn(10)
    evaluator.evaluate(plans)
    assert device.asked[2:] == [plans[int(np.argmin(simulated_s(plans, 1.0)))]]


def test_a_simulated_search_measures_nothing_and_ends_at_its_number() -> None:
    device = Device()
    evaluator = hybrid(device, replace(HybridSchedule.simulated(), most=40))
    run_out(evaluator)
    assert device.asked == []
    assert evaluator.num_simulated == 40
    assert len(evaluator.seen.promising(3)) == 3


def test_earlier_measurements_calibrate_from_the_start() -> None:
    device, others = Device(), drawn(30, 9)
    recorder = RecordingEvaluator(device, Budget())
    recorder.evaluate(drawn(8, 4))
    evaluator = HybridEvaluator(PROBLEM, costs(1e-6), recorder, PLAN)
    true_s = simulated_s(others, 1e-3)
    assert np.abs(evaluator.simulated(others) / true_s - 1).mean() < 0.05


def test_throughput_is_scaled_to_what_was_measured() -> None:
    problem = replace(PROBLEM, objective=THROUGHPUT)
    recorder = RecordingEvaluator(Device(), Budget())
    seen = drawn(3)
    recorder.evaluate(seen)
    evaluator = HybridEvaluator(problem, costs(1e-6), recorder, PLAN)
    periods = costs(1e-6).period_s(PROBLEM.expand(stacked(seen)))
    scale = np.median([e.score.value for e in recorder.events] / periods)
    assert evaluator.simulated(seen) == pytest.approx(scale * periods)


def test_measuring_raises_the_version_so_that_scores_that_are_held_are_asked_for_anew() -> None:
    evaluator, plans = hybrid(Device()), drawn(10)
    before = evaluator.version
    first = evaluator.evaluate(plans[:9])
    assert evaluator.version == before
    evaluator.evaluate(plans[9:])
    assert evaluator.version == before + 1
    assert evaluator.evaluate(plans[:9]) != first


def test_promising_simulated_plans_are_kept_before_their_scores_are_told_and_proposed_again() -> None:
    kept: list[Plan] = []
    recorder = RecordingEvaluator(Device())
    seen = SeenPlans(keep=kept.extend)
    evaluator = HybridEvaluator(PROBLEM, costs(1e-6), recorder, HybridSchedule.simulated(), seen)
    for seed in range(30):
        evaluator.evaluate(drawn(10, seed))
        assert set(evaluator.seen.promising(KEPT)) <= set(kept)
    assert len(kept) == len(set(kept)) < 300
    resumed = HybridEvaluator(PROBLEM, costs(1e-6), RecordingEvaluator(Device()), seen=SeenPlans(kept))
    assert resumed.seen.promising(KEPT) == evaluator.seen.promising(KEPT)


def test_a_plan_that_exceeds_the_memory_of_a_device_fails_in_simulation() -> None:
    memory_bytes = np.array([5_500.0, np.inf])
    limited = replace(costs(1e-6).costs, weight_bytes=np.full(NUM, 1000.0), memory_bytes=memory_bytes)
    evaluator = HybridEvaluator(replace(PROBLEM, costs=limited), costs(1e-6), RecordingEvaluator(Device()))
    fits, exceeds = Plan(np.where(np.arange(NUM) % 4 > 0, 1, 0)), Plan(np.arange(NUM) % 2)
    first, second, _ = evaluator.evaluate([fits, exceeds, Plan(np.ones(NUM, dtype=np.int64))])
    assert first.failure is None
    assert "memory" in str(second.failure)
    assert evaluator.seen.promising(5) == [fits]
