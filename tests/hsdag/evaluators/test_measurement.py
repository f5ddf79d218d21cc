"""How a placement is measured during a search."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.evaluators.measurement import SearchMeasurement

SECONDS = st.floats(1e-6, 10.0)


@given(SECONDS, SECONDS, st.floats(0.01, 100.0))
def test_a_ratio_is_the_same_on_a_machine_of_any_speed(own_s: float, reference_s: float, slowness: float) -> None:
    measurement = SearchMeasurement()

    def ratio(factor: float) -> float:
        runs = (lambda count: [factor * own_s] * count), (lambda count: [factor * reference_s] * count)
        return measurement.ratio(*runs, math.inf)

    assert ratio(slowness) == pytest.approx(ratio(1.0)) == pytest.approx(own_s / reference_s)


def test_a_steady_drift_of_the_machine_cancels() -> None:
    clock = iter(range(1000))

    def run(count: int) -> list[float]:
        return [1.0 + 0.01 * next(clock) for _ in range(count)]

    assert SearchMeasurement(warm_ups=0, runs=9).ratio(run, run, math.inf) == pytest.approx(1.0, rel=1e-12)


def test_what_is_far_slower_than_the_best_is_given_up_after_its_first_runs() -> None:
    asked: list[int] = []

    def run(count: int) -> list[float]:
        asked.append(count)
        return [3.0] * count

    assert SearchMeasurement(2, 7, 1.5).ratio(run, lambda count: [2.0] * count, 0.9) == 1.5
    assert asked == [2]
