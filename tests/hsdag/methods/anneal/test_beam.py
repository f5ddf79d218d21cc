"""Beam search over list schedules."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.methods.anneal.beam import MOST_OPEN, beam_plans
from hsdag.methods.incumbent import GaveUp
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.search.evaluators.schedule import ScheduleEvaluator


def last(problem: ScheduleProblem, most: float) -> tuple[Plan, float]:
    *_, plan = beam_plans(problem, np.inf, most, int)
    return plan, ScheduleEvaluator(problem, Semantics()).evaluate([plan])[0].value


@pytest.mark.parametrize(("slow", "expected"), [(1.0, 4.0), (3.0, 6.0), (np.nan, 8.0)])
def test_the_longest_way_goes_first_and_devices_take_as_much_as_they_can(slow: float, expected: float) -> None:
    time_s = np.stack([np.ones(8), np.full(8, slow)], axis=1)
    chain = [(0, 1), (1, 2), (2, 3)]  # beside four ops that nothing reads
    problem = ScheduleProblem.from_arrays(time_s, chain, link_bandwidth_bytes_per_s=np.inf)
    assert last(problem, 16)[1] == expected


def test_an_op_that_takes_no_time_and_reads_nothing_is_with_its_first_reader_and_sends_from_the_beginning() -> None:
    time_s = np.array([[0.0, 0.0], [5.0, 5.0], [1.0, 1.0], [4.0, 4.0]])
    problem = ScheduleProblem.from_arrays(
        time_s, [(0, 1), (0, 3), (2, 3)], output_bytes=1.0, link_bandwidth_bytes_per_s=1.0
    )
    plan, value_s = last(problem, 1)
    assert plan.placement[0] == plan.placement[1] != plan.placement[2] == plan.placement[3]
    assert value_s == 5.0  # what op 0 sends arrives after a second, as op 2 ends


def test_more_ops_than_may_be_open_wait_for_their_turn_where_they_can() -> None:
    num = MOST_OPEN + 10
    assert last(ScheduleProblem.from_arrays(np.ones((num, 2)), []), 1)[1] == num / 2
    both = [(first, v) for v in range(2, num) for first in (0, 1)]
    with pytest.raises(GaveUp, match="more than 256 ops"):
        last(ScheduleProblem.from_arrays(np.ones((num, 2)), both), 1)
