"""Acquisition: what is measured next weighs promise, uncertainty and diversity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hsdag.ir.graph.computation_graph import IntArray
from hsdag.search.evaluators.acquisition import Evidence, Terms, expected_improvement, improvement

NUM = 10
CHAIN = Terms(np.arange(NUM - 1), np.arange(1, NUM), np.full((NUM, 2), 1 / NUM))


def split_at(*firsts: int) -> IntArray:
    return np.array([[0] * first + [1] * (NUM - first) for first in firsts])


def on_second(*units: int) -> IntArray:
    return np.isin(np.arange(NUM), units).astype(np.int64)


def evidence(placements: IntArray, measured: list[float], simulated: list[float], best: float = 1.0) -> Evidence:
    return Evidence(best, placements, np.array(measured), np.array(simulated), CHAIN)


def test_a_plan_is_described_by_the_edges_that_it_cuts_and_the_seconds_of_units_on_their_devices() -> None:
    (found,) = CHAIN.features(split_at(4), 2.0, 0.5)
    assert found[: NUM - 1].tolist() == [2.0 if edge == 3 else 0.0 for edge in range(NUM - 1)]
    assert found[NUM - 1 :].reshape(NUM, 2).argmax(axis=1).tolist() == [0] * 4 + [1] * 6
    assert found[NUM - 1 :].sum() == pytest.approx(0.5)


NOTHING = evidence(np.zeros((0, NUM), dtype=np.int64), [], [])


@pytest.mark.parametrize(("mean", "deviation"), [(0.9, 0.1), (1.0, 0.3), (1.2, 0.1)])
def test_improvement_is_the_mean_of_what_falls_short_of_the_best(mean: float, deviation: float) -> None:
    x = np.linspace(mean - 9 * deviation, 1.0, 100_001)
    density = np.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * np.sqrt(2 * np.pi))
    found = improvement(1.0, np.array([mean]), np.array([deviation]))
    assert found[0] == pytest.approx(np.trapezoid((1.0 - x) * density, x), rel=1e-6)


@pytest.mark.parametrize(
    ("best", "values", "count", "chosen"),
    [(1.0, [0.95, 0.9, 0.97], 1, [1]), (1.0, [2.0] * 3, 2, []), (np.inf, [3.0, 1.0, 2.0], 2, [1, 2])],
)
def test_of_plans_alike_in_doubt_the_least_simulated_values_are_measured_unless_they_are_certain_to_be_slower(
    best: float, values: list[float], count: int, chosen: list[int]
) -> None:
    assert expected_improvement(split_at(4, 5, 6), np.array(values), replace(NOTHING, best=best), count) == chosen


@pytest.mark.parametrize("best", [1 / 64, 64.0])
def test_a_plan_is_measured_only_if_the_expected_gain_is_a_ten_thousandth_of_the_best_value(best: float) -> None:
    nothing = replace(NOTHING, best=best, terms=replace(CHAIN, time_s=best * CHAIN.time_s))
    chosen = [expected_improvement(split_at(4), best * np.array([share]), nothing, 1) for share in (1.05, 1.1)]
    assert chosen == [[0], []]


@pytest.mark.parametrize("unit", [1.0, 64.0])
def test_a_plan_in_doubt_is_preferred_to_a_known_one_of_slightly_less_simulated_value(unit: float) -> None:
    measured = np.stack([on_second(0, 1, 2, 5, 6, 7, 8, 9), on_second(8, 9), on_second(0, 1, 2, 3, 4)])
    found = evidence(measured, [1.1 * unit, 1.1 * unit, unit], [unit, 1.21 * unit, unit], unit)
    known = replace(found, terms=replace(CHAIN, time_s=unit * CHAIN.time_s))
    like_the_last, unlike = on_second(0, 1, 2, 3, 4), on_second(5, 6, 7, 8, 9)  # of an expected error of 0 each
    assert expected_improvement(np.stack([like_the_last, unlike]), unit * np.array([0.998, 0.999]), known, 1) == [1]


def test_a_plan_like_one_that_came_out_worse_than_simulated_has_to_wait() -> None:
    known = evidence(split_at(5), [1.3], [0.9])
    assert expected_improvement(split_at(6, 1), np.array([0.9, 0.92]), known, 1) == [1]


def test_a_batch_is_diverse_where_the_best_two_are_nearly_the_same_plan() -> None:
    durations_s = np.where(np.arange(NUM)[:, None] == 0, 1e-6, [0.1, 0.1])
    light = replace(NOTHING, terms=Terms(CHAIN.edge_src[:0], CHAIN.edge_dst[:0], durations_s))
    twins = np.stack([on_second(5, 6, 7, 8, 9), on_second(0, 5, 6, 7, 8, 9)])
    placements = np.concatenate([twins, [on_second(0, 1, 2, 3, 4)]])
    assert expected_improvement(placements, np.array([0.98, 0.98, 0.99]), light, 2) == [0, 2]
