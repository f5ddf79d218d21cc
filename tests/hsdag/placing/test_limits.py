"""What limits of the answer leave: units on devices of low precision."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.placing.limits import MARGIN, within_difference
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of

UNITS = 16


def problem(num_devices: int = 2) -> Problem:
    edges = [(v, v + 1) for v in range(UNITS - 1)]
    return problem_of(ScheduleProblem.from_arrays(np.ones((UNITS, num_devices)), edges))


class Differs:
    """Outputs differ by the sum of what units on the second device add."""

    def __init__(self, added: np.ndarray) -> None:
        self.added, self.num_runs = added, 0

    def __call__(self, plan: Plan) -> float:
        self.num_runs += 1
        return float(self.added[plan.placement == 1].sum())


def test_all_units_that_may_leave_keep_the_limit_together() -> None:
    differs = Differs(np.full(UNITS, 0.2))
    allowed, (sentence,) = within_difference(problem(), 2.0, differs)
    admitted = allowed.supported[:, 1]
    assert differs(Plan(admitted.astype(np.int64))) <= MARGIN * 2.0
    assert admitted.sum() == 8
    assert allowed.supported[:, 0].all()
    assert sentence == "with the whole model on d1 outputs differ by 3.2, and 2 is allowed; 8 of 16 units may run there"


def test_one_bad_unit_keeps_only_its_neighbours_from_leaving() -> None:
    added = np.zeros(UNITS)
    added[5] = 2.0
    allowed, _ = within_difference(problem(), 1.0, Differs(added))
    assert np.flatnonzero(~allowed.supported[:, 1]).tolist() == [5]


def test_the_costs_of_what_is_not_allowed_are_gone_so_that_every_method_obeys() -> None:
    allowed, _ = within_difference(problem(), 1.0, Differs(np.full(UNITS, 0.1)))
    assert allowed.costs is not None
    assert isinstance(allowed.ops, ScheduleProblem)
    assert (np.isnan(allowed.costs.time_s) == ~allowed.supported).all()
    assert (np.isnan(allowed.ops.time_s) == ~allowed.supported).all()


@pytest.mark.parametrize("added", [0.0, np.inf])
def test_where_all_devices_keep_the_limit_or_none_nothing_is_left_out(added: float) -> None:
    whole = problem()
    differs = Differs(np.full(UNITS, added))
    everywhere = differs if added == 0.0 else (lambda _: np.inf)
    assert within_difference(whole, 1.0, everywhere) == (whole, ())


def test_what_only_a_device_of_low_precision_runs_stays_there() -> None:
    edges = [(v, v + 1) for v in range(UNITS - 1)]
    time_s = np.ones((UNITS, 2))
    time_s[3, 0] = np.nan
    allowed, _ = within_difference(
        problem_of(ScheduleProblem.from_arrays(time_s, edges)), 0.05, Differs(np.full(UNITS, 0.1))
    )
    assert allowed.supported[3].tolist() == [False, True]


def test_when_time_is_up_what_was_not_tried_stays() -> None:
    differs = Differs(np.full(UNITS, 0.1))
    allowed, _ = within_difference(problem(), 1.0, differs, lambda: True)
    assert not allowed.supported[:, 1].any()
    assert differs.num_runs == 2
