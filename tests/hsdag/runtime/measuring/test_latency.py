"""The measuring protocol: warming up, rounds, intervals, and what they claim."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from hsdag.base.processes import CandidateFailed
from hsdag.ir.placement.placement import SpeedupRecord
from hsdag.runtime.measuring.latency import (
    LatencyComparison,
    Protocol,
    Ratio,
    Samples,
    _CountedRounds,
    measure_in_rounds,
    paired_ratio,
    warm_up,
)

QUICK = Protocol(min_rounds=6, max_rounds=12, turn_s=0.01, limit_s=60.0)


@pytest.fixture(scope="module", autouse=True)
def comparisons_are_short() -> None:
    """They are as long as users have them."""


def measured(medians_s: dict[str, float], noise: float, references: list[str]) -> LatencyComparison:
    """A comparison of candidates with these medians."""
    rng = np.random.default_rng(0)

    def run(name: str, n: int) -> list[float]:
        return [float(s) for s in medians_s[name] * np.exp(noise * rng.standard_normal(n))]

    return measure_in_rounds(run, list(medians_s), references, QUICK, np.random.default_rng(0))


def test_a_clear_winner_is_called_faster_and_a_clear_loser_slower() -> None:
    comparison = measured({"a": 1e-3, "b": 2e-3}, 0.02, ["b"])
    assert comparison.fastest(["a", "b"]) == "a"
    assert comparison.ratio("a", "b").is_faster
    assert comparison.ratio("b", "a").is_slower
    assert comparison.ratio("a", "b").value == pytest.approx(2.0, rel=0.05)
    record, seconds = comparison.samples["a"].record(), comparison.samples["a"].all_s
    assert (record.runs, record.median_s, record.measured) == (len(seconds), comparison.median("a"), True)
    assert record.p95_s == np.percentile(seconds, 95)


def test_rounds_are_paired_from_the_first_one_on() -> None:
    dropped = Samples(tuple((s,) for s in (1.0, 2.0, 4.0)))
    reference = Samples(tuple((s,) for s in (2.0, 4.0, 8.0, 100.0, 100.0, 100.0)))
    ratio = LatencyComparison({"dropped": dropped, "reference": reference}, {}).ratio("dropped", "reference")
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    assert ratio.num_rounds == 3
    assert [paired_ratio(np.full(num, 2.0), np.ones(num)).high for num in (1, 2)] == [np.inf, 2.0]


@pytest.mark.parametrize(("family", "quantile"), [(1, 2.5705818356), (2, 3.1633814498), (5, 4.0321429836)])
def test_an_interval_of_a_family_has_its_share_of_the_error(family: int, quantile: float) -> None:
    """Quantiles of Student's t with 5 degrees of freedom from a table: two-sided 95%, 97.5% and 99%."""
    logs = np.array([-0.2, -0.1, 0.0, 0.1, 0.2, 0.3])
    half = quantile * np.sqrt(0.035) / np.sqrt(6)
    ratio = paired_ratio(np.exp(logs), np.ones(6), family)
    assert np.log([ratio.value, ratio.low, ratio.high]) == pytest.approx([0.05, 0.05 - half, 0.05 + half])


@pytest.mark.parametrize(
    ("low", "high", "rounds", "shown", "is_faster", "is_slower"),
    [
        (1.5, 2.0, 6, "1.500..2.000", True, False),
        (1.5, 2.0, 5, "too few rounds (5)", False, False),
        (0.5, 0.9, 6, "0.500..0.900", False, True),
        (0.5, 0.9, 5, "too few rounds (5)", False, False),
        (1.0, 1.0, 6, "1.000..1.000", False, False),
    ],
)
def test_an_interval_is_shown_only_where_it_allows_a_claim(
    low: float, high: float, rounds: int, shown: str, is_faster: bool, is_slower: bool
) -> None:
    ratio = Ratio(1.0, low, high, rounds)
    assert (ratio.interval_text, ratio.is_faster, ratio.is_slower) == (shown, is_faster, is_slower)
    assert ratio.interval == ([low, high] if rounds == 6 else [None, None])


def test_rounds_go_on_until_all_intervals_of_a_family_are_narrow_together() -> None:
    """Logarithms are +-0.01: t / sqrt(n) is below 1 first at n = 7, 9, and 10 where 1, 2, and 4 share the error."""

    def run(name: str, n: int) -> list[float]:
        rounds[name] = rounds.get(name, 0) + 1
        return [1.0 if name in ("a", "exact") else float(np.exp(0.01 if rounds[name] % 2 else -0.01))] * n

    protocol = Protocol(min_rounds=2, max_rounds=30, interval_width=0.02, warm_up_s=-1.0, limit_s=1e9)
    for names, expected in ((["a", "b"], 7), (["a", "exact", "b"], 9), (["a", "b", "c", "d", "e"], 10)):
        rounds: dict[str, int] = {}
        comparison = measure_in_rounds(run, names, ["a"], protocol, np.random.default_rng(0))
        assert len(comparison.samples["a"].rounds) == expected


def test_rounds_end_once_the_interval_is_narrow_whoever_is_ahead() -> None:
    """How precise a ratio is said to be counts what is certain of it as well."""
    for ratio, noise, rounds in ((1.0, 1e-4, 6), (1.0, 0.5, 12), (1.04, 1e-4, 12), (1 / 1.04, 1e-4, 12)):
        comparison = measured({"a": 1e-3, "b": 1e-3 * ratio}, noise, ["a"])
        assert len(comparison.samples["a"].rounds) == rounds


@pytest.mark.parametrize(("slow_s", "rounds"), [(9.0, 3), (1.0, 12)])
def test_what_is_below_nine_tenths_of_the_fastest_reference_is_dropped_after_three_rounds(
    slow_s: float, rounds: int
) -> None:
    comparison = measured({"a": 0.9, "b": 0.9, "slow": slow_s}, 0.0, ["slow", "a"])
    assert len(comparison.samples["slow"].rounds) == rounds
    assert len(comparison.samples["a"].rounds) >= 6


@pytest.mark.parametrize(("limit_s", "num_runs"), [(100.0, 10), (25.0, 6), (2.0, 1)])
def test_turns_are_shorter_where_three_times_the_least_of_rounds_do_not_fit(limit_s: float, num_runs: int) -> None:
    clock = SlowClock({"a": 0.1, "b": 0.1})
    protocol = Protocol(turn_s=1.0, limit_s=limit_s, warm_up_s=-1.0, interval_width=0.0)
    found = measure_in_rounds(
        clock.run, ["a", "b"], ["a"], protocol, np.random.default_rng(0), clock=lambda: clock.now_s
    )
    assert {len(each) for each in found.samples["a"].rounds} == {num_runs}
    assert len(found.samples["a"].rounds) >= 6


def test_every_round_takes_every_candidate_and_nobody_keeps_a_predecessor() -> None:
    order, protocol = list[str](), Protocol(min_rounds=40, max_rounds=40)

    def run(name: str, n: int) -> list[float]:
        order.append(name)
        return [1e-2] * n

    measure_in_rounds(run, list("abcd"), ["a", "b"], protocol, np.random.default_rng(0))
    rounds = [order[i : i + 4] for i in range(len(order) - 160, len(order), 4)]
    assert all(sorted(each) == list("abcd") for each in rounds)
    for name in "abcd":
        before = Counter(r[r.index(name) - 1] if r.index(name) else None for r in rounds)
        assert set(before) == {None, *"abcd"} - {name}
        assert max(before.values()) <= 20  # of 40; 10 are expected


class SlowClock:
    """A clock that inferences alone move on; x is broken, and e breaks after it has been warmed up."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.now_s, self.seconds, self.left = 100.0, seconds, {"x": 0, "e": 1}

    def run(self, name: str, n: int) -> list[float]:
        if name in self.left:
            self.left[name] -= 1
            if self.left[name] < 0:
                raise CandidateFailed("it broke")
        self.now_s += n * self.seconds[name]
        return [self.seconds[name]] * n


@pytest.mark.parametrize(
    ("names", "num_sure", "limit_s", "skipped", "turns"),
    [
        (
            "abc",
            2,
            18.0,
            "",
            {"a": [1] * 6, "b": [1] * 6, "c": [1] * 6},
        ),  # six of whole turns would end in time
        ("abc", 2, 17.9, "c", {"a": [1] * 12, "b": [1] * 12}),
        ("xabc", 3, 17.9, "c", {"a": [1] * 12, "b": [1] * 12}),
        ("xac", 2, 5.0, "", {"a": [1], "c": [1]}),  # a second round would end after 6 s
        ("abc", None, 9.0, "", {name: [1] * 2 for name in "abc"}),  # a third one after 9.75 s
        ("st", 2, 20.0, "", {"s": [1], "t": [1]}),  # there is a first one whatever it takes
        ("ea", 2, 5.0, "", {"a": [1] * 3}),
        ("h", 2, 9.5, "", {"h": [1] * 15}),
        ("q", 2, 1.25, "", {"q": [2] * 19}),
        ("q", 2, 0.76, "", {"q": [1] * 22}),
    ],
)
def test_rounds_and_turns_are_as_many_as_there_is_time_for(
    names: str, num_sure: int | None, limit_s: float, skipped: str, turns: dict[str, list[int]]
) -> None:
    """A run warms a candidate up, four where they are short, and no reference runs by which a ratio could be known."""
    seconds = {"a": 1.0, "b": 0.25, "c": 1.0, "e": 1.0, "h": 0.5, "q": 0.029, "s": 30.0, "t": 30.0}
    clock, steps, protocol = SlowClock(seconds), list[str](), Protocol(turn_s=0.15, limit_s=limit_s)
    how = {"num_sure": num_sure, "on_step": steps.append, "clock": lambda: clock.now_s}
    found = measure_in_rounds(clock.run, list(names), ["gone"], protocol, np.random.default_rng(0), **how)  # type: ignore[arg-type]
    assert {name: [len(turn) for turn in each.rounds] for name, each in found.samples.items()} == turns
    assert {*names} - {*found.samples, *found.failures} == {*skipped}
    assert steps[-1] == f"round {max(map(len, turns.values()))} of up to 60"
    assert found.failures == {name: "it broke" for name in names if name in "xe"}


@pytest.mark.parametrize(("each_s", "limit_s", "rounds"), [(0.05, 24.0, 6), (0.5, 24.0, 3), (0.5, 2.9, 1)])
def test_an_interrupt_leaves_the_least_rounds_to_what_must_be_compared_as_far_as_they_take_a_second(
    each_s: float, limit_s: float, rounds: int
) -> None:
    clock, protocol = SlowClock(dict.fromkeys("abc", each_s)), Protocol(turn_s=0.1, limit_s=limit_s)
    how: dict[str, Any] = {"num_sure": 2, "should_stop": lambda: True, "clock": lambda: clock.now_s}
    found = measure_in_rounds(clock.run, list("abc"), ["gone"], protocol, np.random.default_rng(0), **how)
    assert {name: len(each.rounds) for name, each in found.samples.items()} == dict.fromkeys("ab", rounds)


@pytest.mark.parametrize(
    ("limit_s", "seconds", "rounds"),
    [
        (7.0, {"r": 0.5, "s": 0.6, "f": 0.55}, {"r": 3, "s": 3, "f": 3}),  # none is ahead
        (12.5, {"r": 0.5, "s": 0.52, "f": 0.45, "g": 0.51}, {"r": 6, "s": 6, "f": 6, "g": 3}),
        (10.5, {"r": 0.5, "s": 0.9, "f": 0.45}, {"r": 6, "s": 3, "f": 6}),
    ],
)
def test_where_six_rounds_do_not_fit_only_what_is_ahead_goes_on_beside_what_it_has_to_beat(
    limit_s: float, seconds: dict[str, float], rounds: dict[str, int]
) -> None:
    clock, protocol = SlowClock(seconds), Protocol(limit_s=limit_s, interval_width=0.0)
    found = measure_in_rounds(
        clock.run, list(seconds), "rs", protocol, np.random.default_rng(0), clock=lambda: clock.now_s
    )
    assert {name: len(each.rounds) for name, each in found.samples.items()} == rounds


@pytest.mark.parametrize(
    ("medians", "limits", "runs"),
    [
        ([4.0, 2.0, 4.0], {"warm_up_agreement": 1.0}, 4),
        ([4.0, 2.0, 4.0], {"warm_up_agreement": 0.5}, 7),
        ([4.0, 2.0, 4.0, 9.0], {"warm_up_runs": 7}, 7),
        ([4.0, 2.0, 4.0, 9.0], {"warm_up_s": 10.0}, 7),  # seconds of the first four runs
        ([4.0, 2.0, 4.0, 9.0], {"warm_up_s": 9.9}, 4),
        ([4.0, 9.0], {"warm_up_runs": 1}, 1),
        ([0.0, 0.0], {}, 4),
    ],
)
def test_a_warm_up_ends_where_two_medians_agree_or_it_takes_too_long_whatever_the_unit_of_values(
    medians: list[float], limits: dict[str, float], runs: int
) -> None:
    now_s, values, taken = 100.0, iter(medians), 0

    def run(_: str, n: int) -> list[float]:
        nonlocal now_s, taken
        value, taken = next(values), taken + n
        now_s += n * value
        return [7 * value] * n

    protocol = Protocol(**{"warm_up_agreement": 0.0, "warm_up_runs": 99, "warm_up_s": 99.0} | limits)  # type: ignore[arg-type]
    assert warm_up(run, "a", protocol, lambda: now_s) == max(medians[(runs - 1) // 3], 1e-6)
    assert taken == runs


def rounds_of(pulses_s: list[list[float]], **num_turns: int) -> _CountedRounds:
    """Rounds with these pulses around them, and candidates that ran only the first of them."""
    rounds = _CountedRounds(pulses_s[0], ())
    for number, pulse_s in enumerate(pulses_s[1:]):
        for name, num in num_turns.items():
            if number < num:
                rounds.add(name, [1.0])
        rounds.end(pulse_s)
    return rounds


@pytest.mark.parametrize(
    ("pulses_s", "least", "sound"),
    [
        ([1.0, 1.3, 1.0, 1.31, 1.0], 0, [1, 1, 0, 0]),  # those beside the long one
        ([2.0, 2.0, 2.0], 0, [1, 1]),  # a machine that gives less all the time
        ([9.0, 1.0, 4.0, 3.0], 2, [0, 1, 1]),  # the least disturbed ones
        ([1.0], 6, []),
    ],
)
def test_rounds_beside_a_long_pulse_do_not_count(pulses_s: list[float], least: int, sound: list[int]) -> None:
    assert rounds_of([[each] for each in pulses_s]).counted(least).tolist() == [bool(each) for each in sound]
    on_another = [[1e-4, each] for each in pulses_s]
    assert rounds_of(on_another).counted(least).tolist() == [bool(each) for each in sound]
    assert rounds_of([[] for _ in pulses_s]).counted(least).all()


def test_a_candidate_without_a_rival_is_measured_for_as_long_as_is_asked_for_or_the_least_of_rounds() -> None:
    clock = SlowClock({"a": 0.1})
    for width, rounds in ((0.0, 100), (0.02, 6)):
        protocol = Protocol(limit_s=10.5, max_rounds=1000, interval_width=width, turn_runs=1)
        found = measure_in_rounds(
            clock.run, ["a"], ["a"], protocol, np.random.default_rng(0), clock=lambda: clock.now_s
        )
        assert len(found.samples["a"].rounds) == pytest.approx(rounds, abs=5)


@pytest.mark.parametrize("is_missing", [False, True])
def test_rounds_that_are_judged_as_they_come_are_judged_as_all_of_them_are(is_missing: bool) -> None:
    rng = np.random.default_rng(0)
    pulses_s = np.exp(0.3 * rng.standard_normal((40, 2))).tolist()
    if is_missing:
        pulses_s[20] = []
    rounds, taken = _CountedRounds(pulses_s[0], ()), list[tuple[float, ...]]()
    for number, pulse_s in enumerate(pulses_s[1:], start=2):
        taken.append(tuple(rng.random(3).tolist()))
        rounds.add("c", taken[-1])
        rounds.end(pulse_s)
        sound = np.ones(number - 1, dtype=np.bool_)
        if all(pulses_s[:number]):
            times = np.array(pulses_s[:number]) / np.min(pulses_s[:number], axis=0)
            sound = np.maximum(times[:-1], times[1:]).max(axis=1) <= 1.3
        assert rounds.sound.tolist() == sound.tolist()
        counted = tuple(turn for turn, counts in zip(taken, sound, strict=True) if counts)
        assert rounds.medians_s("c", sound).tolist() == Samples(counted).round_medians_s.tolist()
    assert not is_missing or rounds.counted(0).all()


def test_an_interval_of_one_round_has_no_ends_that_a_file_could_hold() -> None:
    one, two = (paired_ratio(np.array([2.0] * n), np.array([1.0] * n)) for n in (1, 2))
    assert (one.ends, two.ends) == ((None, None), (2.0, 2.0))
    assert SpeedupRecord(versus="CPU", ratio=one.value, ci95=one.ends).model_dump(mode="json")["ci95"] == [None, None]


def test_a_candidate_that_ended_early_keeps_the_least_disturbed_of_its_rounds() -> None:
    pulses_s = [[3.0], [2.0], [2.0], [1.0], [1.0]]
    assert rounds_of(pulses_s).counted(0).tolist() == [False, False, False, True]
    assert rounds_of(pulses_s, whole=4, early=2).counted(0).tolist() == [False, True, False, True]


def test_rounds_in_which_the_machine_gave_less_are_repeated_and_told() -> None:
    """For a third of the time it gives half: rounds of 2 s, or of 4, count but for those."""
    clock = SlowClock({"r": 1.0, "c": 1.0})

    def slow() -> float:
        return 2.0 if 20.0 <= (clock.now_s - 100.0) % 60.0 < 40.0 else 1.0

    def run(name: str, n: int) -> list[float]:
        each_s = slow() * (1.5 if name == "c" and slow() > 1.0 else 1.0)
        clock.now_s += n * each_s
        return [each_s] * n

    protocol = Protocol(min_rounds=30, max_rounds=30, limit_s=1e9, interval_width=0.0, turn_runs=1)
    how: dict[str, Any] = {"pulse": lambda: [slow()], "clock": lambda: clock.now_s}
    found = measure_in_rounds(run, ["r", "c"], ["r"], protocol, np.random.default_rng(0), **how)
    assert len(found.samples["c"].rounds) == 30
    assert found.ratio("c", "r").value == 1.0  # and not slower, as it is where the machine gives less
    assert found.disturbed == pytest.approx(1 / 3, abs=0.1)
    bad = measure_in_rounds(run, ["r", "c"], ["r"], protocol, np.random.default_rng(0), clock=lambda: clock.now_s)
    assert bad.ratio("c", "r").value < 0.95


def test_the_fastest_has_the_best_ratio_whatever_the_medians_and_was_not_dropped_early() -> None:
    ended = LatencyComparison({"a": Samples(((1.0,), (1.0,), (3.0,))), "b": Samples(((1.1,),) * 3)}, {})
    assert (ended.fastest(["a", "b"]), ended.ratio("b", "a").value > 1.0) == ("b", True)
    early, late = Samples(((1e-3,),) * 3), Samples(((0.9e-3,),) * 3 + ((2e-3,),) * 9)
    assert LatencyComparison({"dropped": early, "kept": late}, {}).fastest(["dropped", "kept"]) == "kept"
