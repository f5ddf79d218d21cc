"""How a placement is measured during a search."""

from __future__ import annotations

import math

import pytest

from hsdag.scoring.base import SearchMeasurement


@pytest.mark.parametrize(("best_s", "value", "counts"), [(math.inf, 3.0, [2, 7]), (1.9, 4.0, [2])])
def test_the_median_counts_and_what_is_far_slower_than_the_best_is_given_up(
    best_s: float, value: float, counts: list[int]
) -> None:
    asked: list[int] = []

    def run(count: int) -> list[float]:
        asked.append(count)
        return [4.0, 5.0] if count == 2 else [3.0] * 4 + [90.0] * 3

    assert SearchMeasurement(2, 7, 1.5).seconds(run, best_s) == value
    assert asked == counts
