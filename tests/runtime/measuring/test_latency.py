"""The measuring protocol: rounds, intervals, and what they claim."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hsdag.runtime.measuring.latency import Protocol, Ratio, bootstrap_ratio, compare
from hsdag.runtime.measuring.worker_client import CandidateFailed

QUICK = Protocol(min_rounds=6, max_rounds=12, turn_s=0.01, limit_s=60.0)


def synthetic(medians_s: dict[str, float], noise: float, seed: int = 0) -> Callable[[str, int], list[float]]:
    rng = np.random.default_rng(seed)
    return lambda name, n: [float(s) for s in medians_s[name] * np.exp(noise * rng.standard_normal(n))]


def test_a_clear_winner_is_called_faster_and_a_clear_loser_slower() -> None:
    comparison = compare(synthetic({"a": 1e-3, "b": 2e-3}, 0.02), ["a", "b"], ["b"], QUICK)
    assert comparison.fastest(["a", "b"]) == "a"
    assert comparison.ratio("a", "b").is_faster
    assert comparison.ratio("b", "a").is_slower
    assert comparison.ratio("a", "b").value == pytest.approx(2.0, rel=0.05)


def test_equal_candidates_are_rarely_called_faster() -> None:
    claims, protocol = 0, Protocol(min_rounds=6, max_rounds=6, turn_s=0.01, limit_s=60.0)
    for seed in range(300):
        comparison = compare(synthetic({"a": 1e-3, "b": 1e-3}, 0.05, seed), ["a", "b"], ["b"], protocol)
        claims += comparison.ratio("a", "b").is_faster
    assert claims <= 15  # of 300; 2.5% of them, 7.5, are expected of a two-sided 95% interval


def test_nothing_is_claimed_from_few_rounds() -> None:
    fast, slow = np.array([1e-3, 1.01e-3, 1e-3]), np.array([2e-3, 2.01e-3, 2e-3])
    assert not bootstrap_ratio(slow, fast).is_faster
    assert bootstrap_ratio(np.tile(slow, 2), np.tile(fast, 2)).is_faster
    assert bootstrap_ratio(slow[:1], fast[:1]).high == np.inf


def test_a_higher_level_gives_a_wider_interval() -> None:
    rng = np.random.default_rng(0)
    a, b = 1e-3 * np.exp(0.1 * rng.standard_normal((2, 8)))
    narrow, wide = bootstrap_ratio(a, b, level=0.8), bootstrap_ratio(a, b, level=0.99)
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high


def test_a_hopeless_candidate_is_dropped_after_three_rounds() -> None:
    comparison = compare(synthetic({"a": 1e-3, "b": 1e-3, "slow": 9e-3}, 0.05), ["a", "b", "slow"], ["a"], QUICK)
    assert len(comparison.samples["slow"].rounds) == 3
    assert len(comparison.samples["a"].rounds) >= 6


def test_drift_that_hits_both_alike_cancels_out() -> None:
    drift = np.linspace(1.0, 3.0, 30)
    ratio = bootstrap_ratio(1e-3 * drift, 0.5e-3 * drift)
    assert ratio.value == pytest.approx(2.0)
    assert ratio.low == pytest.approx(2.0)
    assert ratio.high == pytest.approx(2.0)


def test_rounds_start_with_another_candidate_each_time() -> None:
    order: list[str] = []

    def run(name: str, n: int) -> list[float]:
        order.append(name)
        return [1e-2] * n

    compare(run, ["a", "b", "c"], ["a"], Protocol(min_rounds=3, max_rounds=3, turn_s=0.01))
    rounds = order[-9:]
    assert [rounds[i] for i in (0, 3, 6)] == ["a", "b", "c"]
    assert all(sorted(rounds[i : i + 3]) == ["a", "b", "c"] for i in (0, 3, 6))


def test_a_candidate_that_fails_leaves_the_others_measured() -> None:
    calls = {"bad": 0}

    def run(name: str, n: int) -> list[float]:
        if name == "bad":
            calls["bad"] += 1
            if calls["bad"] > 4:
                raise CandidateFailed("it broke")
        return [1e-3] * n

    comparison = compare(run, ["bad", "good"], ["good"], QUICK)
    assert comparison.failures == {"bad": "it broke"}
    assert len(comparison.samples["good"].rounds) >= QUICK.min_rounds


def test_rounds_end_once_the_interval_is_narrow() -> None:
    steady = compare(synthetic({"a": 1e-3, "b": 1e-3}, 1e-4), ["a", "b"], ["a"], QUICK)
    noisy = compare(synthetic({"a": 1e-3, "b": 1e-3}, 0.5), ["a", "b"], ["a"], QUICK)
    assert len(steady.samples["a"].rounds) == QUICK.min_rounds
    assert len(noisy.samples["a"].rounds) == QUICK.max_rounds


def test_records_hold_the_figures_of_all_runs() -> None:
    comparison = compare(synthetic({"a": 1e-3}, 0.1), ["a"], ["a"], QUICK)
    record, seconds = comparison.samples["a"].record(), comparison.samples["a"].all_s
    assert record.runs == len(seconds)
    assert record.median_s == np.median(seconds)
    assert record.p95_s == np.percentile(seconds, 95)
    assert record.measured


def test_an_interval_without_an_end_is_none_in_json() -> None:
    assert bootstrap_ratio(np.array([2.0]), np.array([1.0])).interval == [0.0, None]
    assert Ratio(1.0, 0.9, 1.1).interval == [0.9, 1.1]
