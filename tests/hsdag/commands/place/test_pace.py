"""Time of the final comparison: what its steps are expected to take, and when a deadline is over."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from hsdag.commands.place.pace import PART_S, Deadline, Pace
from hsdag.ir.shards.regions import Region
from hsdag.runtime.measuring.messages import Candidate
from hsdag.runtime.measuring.profile import ModelProfile


@pytest.fixture(scope="module")
def comparisons_are_short() -> None:
    """Not here: how long they are is what a test is about."""


def test_a_deadline_is_over_for_what_would_end_after_it_and_for_all_once_a_stop_is_wished() -> None:
    deadline = Deadline(time.monotonic() + 100.0)
    assert [deadline.is_over(takes_s) for takes_s in (0.0, 90.0, 110.0)] == [False, False, True]
    assert Deadline(should_stop=lambda: True).is_over()
    assert not Deadline().is_over(1e9)


def test_what_parts_took_to_compile_before_is_expected_of_others() -> None:
    divided = Candidate("CPU_A,CPU_B", ("CPU_A",), regions=(Region("rows", (0,), (0,), {0: (0, 1)}),) * 9)
    assert divided.num_parts == 20
    assert Pace(1.0).opening_s(divided) == pytest.approx(2.0 + 20 * PART_S)
    assert Pace.of(None, 1.0, part_s=0.5).opening_s(divided) == pytest.approx(10.0)
    assert Pace(1.0, part_s=9.0).opening_s(Candidate("CPU")) == 1.0


@pytest.mark.parametrize(
    ("budget_s", "compile_s", "run_s", "open_s", "whole_s", "checking_s"),
    [
        (60.0, 0.5, 0.05, 0.5, 15.0, 1.5 + 4 * 0.5 + 22 * 0.05),  # with a timeline
        (30.0, 0.1, 0.01, 0.1, 8.0, 1.5 + 4 * 0.1 + 22 * 0.01),
        (1e4, 0.1, 0.01, 0.1, 25.0, 1.5 + 4 * 0.1 + 22 * 0.01),
        (30.0, 0.4, 0.1, 2.0, 4 * 2.0 + 1.6 + 4.7, 1.5 + 2.0 + 0.4 + 8 * 0.1),  # without, and divided models open late
        (60.0, 2.0, 0.3, 2.0, 4 * 6.8 + 7.9, 1.5 + 2 * 2.0 + 8 * 0.3),
        (4.0, 1.0, 1.0, 0.0, 2.4, 1.2),
    ],
)
def test_the_comparison_has_a_part_of_the_budget_in_which_four_candidates_are_measured_and_the_answer_is_checked(
    budget_s: float, compile_s: float, run_s: float, open_s: float, whole_s: float, checking_s: float
) -> None:
    times = [SimpleNamespace(compile_s=compile_s, time_s=np.array([np.nan, slow * run_s])) for slow in (1.0, 3.0)]
    profile = cast(ModelProfile, SimpleNamespace(times=times))
    pace = Pace.of(profile, open_s)
    assert Pace.of(profile, open_s, 2, 9.0 * run_s).run_s == pytest.approx(9.0 * run_s)
    assert Pace.of(profile, open_s, 2, run_s).run_s == pytest.approx(2.0 * run_s)
    assert pace.comparison_s(budget_s) == pytest.approx((whole_s, whole_s - checking_s))
    slow = Pace.of(profile, open_s, process_s=2.0).comparison_s(1e9), pace.comparison_s(1e9)
    assert np.subtract(*slow) @ [1.0, -1.0] == pytest.approx(0.5)  # more for checking in a new process
    for left, share in [(0.0, 0.1), (0.15, 0.15), (1.0, 1.0)]:  # of the budget, where the search was late
        late_s, rounds_s = pace.comparison_s(budget_s, left_s=left * budget_s)
        assert late_s == pytest.approx(min(share * budget_s, whole_s))
        assert rounds_s == pytest.approx(max(late_s - checking_s, late_s / 2))
