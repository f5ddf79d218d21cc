"""The measuring protocol: rounds, intervals, and what they claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from hsdag.ir.processes import CandidateFailed
from hsdag.runtime.measuring.latency import Comparison, Protocol, Samples, compare, paired_ratio

QUICK = Protocol(min_rounds=6, max_rounds=12, turn_s=0.01, limit_s=60.0)


def synthetic(medians_s: dict[str, float], noise: float, seed: int = 0) -> Callable[[str, int], list[float]]:
    rng = np.random.default_rng(seed)
    return lambda name, n: [float(s) for s in medians_s[name] * np.exp(noise * rng.standard_normal(n))]


def measured(
    medians_s: dict[str, float], noise: float, references: list[str], seed: int = 0, protocol: Protocol = QUICK
) -> Comparison:
    """A comparison of candidates with these medians."""
    run = synthetic(medians_s, noise, seed)
    return compare(run, list(medians_s), references, protocol, np.random.default_rng(0))


def test_a_clear_winner_is_called_faster_and_a_clear_loser_slower() -> None:
    comparison = measured({"a": 1e-3, "b": 2e-3}, 0.02, ["b"])
    assert comparison.fastest(["a", "b"]) == "a"
    assert comparison.ratio("a", "b").is_faster
    assert comparison.ratio("b", "a").is_slower
    assert comparison.ratio("a", "b").value == pytest.approx(2.0, rel=0.05)


def test_rounds_are_paired_from_the_first_one_on() -> None:
    dropped = Samples(tuple((s,) for s in (1.0, 2.0, 4.0)))
    reference = Samples(tuple((s,) for s in (2.0, 4.0, 8.0, 100.0, 100.0, 100.0)))
    ratio = Comparison({"dropped": dropped, "reference": reference}, {}).ratio("dropped", "reference")
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    assert ratio.num_rounds == 3
    assert paired_ratio(np.array([2.0]), np.array([1.0])).high == np.inf


@pytest.mark.parametrize(("family", "quantile"), [(1, 2.5705818356), (2, 3.1633814498), (5, 4.0321429836)])
def test_an_interval_of_a_family_has_its_share_of_the_error(family: int, quantile: float) -> None:
    """Quantiles of Student's t with 5 degrees of freedom from a table: two-sided 95%, 97.5% and 99%."""
    logs = np.array([-0.2, -0.1, 0.0, 0.1, 0.2, 0.3])
    half = quantile * np.sqrt(0.035) / np.sqrt(6)
    ratio = paired_ratio(np.exp(logs), np.ones(6), family)
    assert np.log([ratio.value, ratio.low, ratio.high]) == pytest.approx([0.05, 0.05 - half, 0.05 + half])


def test_rounds_go_on_until_all_intervals_of_a_family_are_narrow_together() -> None:
    """Logarithms are +-0.01: t / sqrt(n) is below 1 first at n = 7, 9, and 10 where 1, 2, and 4 share the error."""

    def run(name: str, n: int) -> list[float]:
        rounds[name] = rounds.get(name, 0) + 1
        return [1.0 if name == "a" else float(np.exp(0.01 if rounds[name] % 2 else -0.01))] * n

    protocol = Protocol(min_rounds=2, max_rounds=30, interval_width=0.02, warm_up_s=-1.0, limit_s=1e9)
    for names, expected in ((["a", "b"], 7), (["a", "b", "c"], 9), (["a", "b", "c", "d", "e"], 10)):
        rounds: dict[str, int] = {}
        comparison = compare(run, names, ["a"], protocol, np.random.default_rng(0))
        assert len(comparison.samples["a"].rounds) == expected


def test_a_hopeless_candidate_is_dropped_after_three_rounds() -> None:
    comparison = measured({"a": 1e-3, "b": 1e-3, "slow": 9e-3}, 0.05, ["a"])
    assert len(comparison.samples["slow"].rounds) == 3
    assert len(comparison.samples["a"].rounds) >= 6


def test_every_round_takes_every_candidate_and_nobody_keeps_a_predecessor() -> None:
    order, protocol = list[str](), Protocol(min_rounds=40, max_rounds=40)

    def run(name: str, n: int) -> list[float]:
        order.append(name)
        return [1e-2] * n

    compare(run, list("abcd"), ["a", "b"], protocol, np.random.default_rng(0))
    rounds = [order[i : i + 4] for i in range(len(order) - 160, len(order), 4)]
    assert all(sorted(each) == list("abcd") for each in rounds)
    for name in "abcd":
        before = Counter(r[r.index(name) - 1] if r.index(name) else None for r in rounds)
        assert set(before) == {None, *"abcd"} - {name}
        assert max(before.values()) <= 20  # of 40; 10 are expected


@pytest.mark.parametrize("references", [[], ["gone"]])
def test_without_a_reference_that_runs_the_rounds_go_on(references: list[str]) -> None:
    comparison = measured({"a": 1e-3, "b": 2e-3}, 0.02, references)
    assert {len(s.rounds) for s in comparison.samples.values()} == {QUICK.max_rounds}


@pytest.fixture(scope="module", autouse=True)
def comparisons_are_short() -> None:
    """They are as long as users have them."""


class SlowClock:
    """A clock that inferences alone move on."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.now_s, self.seconds = 0.0, seconds

    def run(self, name: str, n: int) -> list[float]:
        self.now_s += n * self.seconds[name]
        return [self.seconds[name]] * n


def timed(names: list[str], each_s: float, limit_s: float, prepare: Callable[[str], object] = bool) -> Comparison:
    """A comparison by a clock that inferences alone move on, which keeps to its limit, or five times that."""
    clock = SlowClock(dict.fromkeys(names, each_s))
    how = {"prepare": prepare, "num_sure": 2, "clock": lambda: clock.now_s}
    protocol = Protocol(min_rounds=6, max_rounds=60, turn_s=0.15, limit_s=limit_s)
    found = compare(clock.run, names, ["cpu"], protocol, np.random.default_rng(0), **how)  # type: ignore[arg-type]
    assert clock.now_s <= (limit_s if len(found.samples["cpu"].rounds) >= 6 else 5 * limit_s)
    return found


@pytest.mark.parametrize(("each_s", "num"), [(1.0, 3), (3.0, 2)])
def test_candidates_for_which_there_is_no_time_are_not_begun(each_s: float, num: int) -> None:
    names, begun = ["cpu", "placement 1", "placement 2"], list[str]()
    found = timed(names, each_s, 60.0, begun.append)
    assert list(found.samples) == begun == names[:num]
    assert (found.skipped, found.failures) == (tuple(names[num:]), {})
    assert all(len(each.rounds) >= 6 for each in found.samples.values())


def test_what_must_be_compared_is_measured_though_the_time_is_over() -> None:
    rounds = timed(["cpu", "placement 1"], 30.0, 50.0).samples["placement 1"].rounds
    assert 2 <= len(rounds) < 6  # the limit was passed fourfold


def test_turns_are_shorter_where_time_is_short() -> None:
    rounds = timed(["cpu", "placement 1"], 0.03, 1.0).samples["cpu"].rounds
    assert {len(turn) for turn in rounds} == {2}  # not the 5 of 0.15 s
    assert len(rounds) >= 6


def test_a_device_that_was_dropped_is_not_the_fastest_by_its_few_rounds() -> None:
    early, late = Samples(((1e-3,),) * 3), Samples(((0.9e-3,),) * 3 + ((2e-3,),) * 9)
    assert Comparison({"dropped": early, "kept": late}, {}).fastest(["dropped", "kept"]) == "kept"


def test_rounds_end_once_the_interval_is_narrow_whoever_is_ahead() -> None:
    """How precise a ratio is said to be counts what is certain of it as well."""
    for ratio, noise, rounds in ((1.0, 1e-4, 6), (1.0, 0.5, 12), (1.04, 1e-4, 12), (1 / 1.04, 1e-4, 12)):
        comparison = measured({"a": 1e-3, "b": 1e-3 * ratio}, noise, ["a"])
        assert len(comparison.samples["a"].rounds) == rounds


def test_a_candidate_that_fails_leaves_the_others_measured() -> None:
    calls = {"bad": 0}

    def run(name: str, n: int) -> list[float]:
        if name == "bad":
            calls["bad"] += 1
            if calls["bad"] > 4:
                raise CandidateFailed("it broke")
        return [1e-3] * n

    comparison = compare(run, ["bad", "good"], ["good"], QUICK, np.random.default_rng(0))
    assert comparison.failures == {"bad": "it broke"}
    assert len(comparison.samples["good"].rounds) >= QUICK.min_rounds


def test_records_hold_the_figures_of_all_runs() -> None:
    comparison = measured({"a": 1e-3}, 0.1, ["a"])
    record, seconds = comparison.samples["a"].record(), comparison.samples["a"].all_s
    assert record.runs == len(seconds)
    assert record.median_s == np.median(seconds)
    assert record.p95_s == np.percentile(seconds, 95)
    assert record.measured


@pytest.mark.parametrize(
    ("rounds", "shown"), [(1, "too few rounds (1)"), (5, "too few rounds (5)"), (6, "2.000..2.000")]
)
def test_an_interval_is_shown_only_where_it_allows_a_claim(rounds: int, shown: str) -> None:
    ratio = paired_ratio(np.full(rounds, 2.0), np.full(rounds, 1.0))
    assert ratio.interval_text == shown
    assert ratio.interval == ([2.0, 2.0] if ratio.is_faster else [None, None])
    assert ratio.is_faster is (rounds == 6)
