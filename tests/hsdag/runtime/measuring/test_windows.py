"""Windows of synthetic machines: which figures are believed, measured again, or in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.measuring.messages import Beside
from hsdag.runtime.measuring.windows import (
    Series,
    agreed,
    are_apart,
    contradicted,
    factors_of,
    figures_of,
    least_of,
    settle,
)

NAN = np.nan


def test_three_windows_near_the_least_agree_and_what_none_has_is_not_waited_for() -> None:
    windows = np.array([[1.0, 1.0, 5.0, NAN], [1.9, 1.14, 6.0, NAN], [1.1, 9.0, NAN, NAN], [1.14, 1.16, 5.5, NAN]])
    assert agreed(windows, 0.15).tolist() == [True, False, False, True]
    assert agreed(windows, 0.15, floor=0.2).tolist() == [True, True, False, True]
    np.testing.assert_array_equal(least_of(windows), [1.0, 1.0, 5.0, NAN])


def test_a_slow_down_is_that_of_the_least_times_and_at_least_one() -> None:
    """Alone 100 and 50 ms, beside 190 and 40: 1.9 times, and less than alone is noise."""
    figures = figures_of(Beside((0.1, 0.05), ((0.0, 0.19), (0.04, 0.0)), (0.056,)))
    np.testing.assert_allclose(factors_of(figures, 2), [[NAN, 1.9], [1.0, NAN]])
    assert figures[-1] == 0.056


@pytest.mark.parametrize(
    ("model", "compute", "memory", "whole_s", "is_wrong"),
    [
        (1.9, 1.06, 1.12, NAN, True),  # the bad minute that was reported: neither cores nor memory explain it
        (1.3, 1.06, 1.12, NAN, False),
        (1.9, 1.9, 1.9, 0.056, True),  # all of it bad, but the whole CPU gains 1.79 over a part
        (1.06, 1.06, 1.12, 0.056, False),
        (1.9, 1.1, 1.9, 0.095, False),  # bound by memory, of which the whole CPU has no more either
        (NAN, 1.9, 1.9, 0.056, False),  # nothing is known of the model
    ],
)
def test_slow_downs_contradict_each_other_or_what_the_whole_gains_over_a_part(
    model: float, compute: float, memory: float, whole_s: float, is_wrong: bool
) -> None:
    factors = {"model": model, "compute": compute, "memory": memory}
    tables = {kind: np.array([[NAN, each], [each, NAN]]) for kind, each in factors.items()}

    assert contradicted(tables, np.array([0.1, 0.1]), whole_s) is is_wrong


def test_figures_are_apart_by_their_ratio_either_way_beyond_a_floor() -> None:
    one, other = np.array([1.0, NAN]), np.array([1.3, 9.0])
    assert are_apart(one, other, 1.25)
    assert are_apart(other, one, 1.25)
    assert not are_apart(one, other, 1.25, floor=0.1)
    assert not are_apart(one, other, 1.31)


def series_of(values: Sequence[float], kept: float | None = None, most: float = np.inf) -> Series:
    """A figure that windows show one after another, and then the last one again; more than ``most`` contradicts."""
    left = list(values)

    def measure() -> FloatArray:
        return np.array([left.pop(0) if len(left) > 1 else left[0]])

    return Series(
        "x",
        measure,
        0.15,
        refutes=partial(are_apart, times=1.25),
        contradicts=lambda least: bool(least[0] > most),
        cached=None if kept is None else np.array([kept]),
    )


@pytest.mark.parametrize(
    ("values", "kept", "least", "num", "is_agreed"),
    [
        ([1.0], None, 1.0, 3, True),
        ([1.9, 1.9, 1.9, 1.9, 1.05], None, 1.05, 7, True),  # agreement on what cannot be is none
        ([1.0, 1.3, 1.7, 2.0, 2.5], None, 1.0, 10, False),
        ([1.05], 1.0, 1.05, 2, False),  # confirmed
        ([1.9, 1.05], 1.0, 1.05, 2, False),  # a disturbed window beside a good one
        ([1.05], 2.0, 1.05, 3, True),  # what was written by hand
        ([1.05], 0.5, 1.05, 3, True),
    ],
)
def test_windows_go_on_until_they_agree_or_confirm_what_was_kept(
    values: list[float], kept: float | None, least: float, num: int, is_agreed: bool
) -> None:
    series, said = series_of(values, kept, most=1.5), list[str]()
    settle([series], 10, lambda: False, said.append)
    assert (series.least[0], len(series.windows), series.is_agreed) == (least, num, is_agreed)
    assert series.is_confirmed is (kept == 1.0)
    assert said == ["what was kept of x is not what is measured now; measuring it again"] * (kept in (2.0, 0.5))
    written = list[list[float] | None]()
    series.keep = lambda table: written.append(None if table is None else table.tolist())
    assert series.result().tolist() == [kept if kept == 1.0 else least]
    assert written == ([] if kept == 1.0 else [[least] if is_agreed else None])


def test_series_take_turns_and_each_has_a_window_although_time_is_over() -> None:
    taken = list[str]()

    def noted(name: str, values: list[float]) -> Series:
        series = series_of(values)
        measure = series.measure

        def told() -> FloatArray:
            taken.append(name)
            return measure()

        series.measure = told
        return series

    settle([noted("a", [1.0]), noted("b", [1.0, 2.0, 2.0, 2.0, 1.0])], 10, lambda: False)
    assert taken == ["a", "b"] * 3 + ["b"] * 3
    taken.clear()
    settle([noted("a", [1.0]), noted("b", [1.0])], 10, lambda: True)
    assert taken == ["a", "b"]
