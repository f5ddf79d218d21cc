"""What limits of the answer leave: units on devices of low precision, and splits over devices that share hardware."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from hsdag.placing.limits import MARGIN, overlap_bound_s, within_difference, without_ruled_out
from hsdag.runtime.measuring.profile import Contention
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
    differs = Differs(np.full(UNITS, 0.1))
    allowed, (sentence,) = within_difference(problem(), 1.0, differs)
    admitted = allowed.supported[:, 1]
    assert differs(Plan(admitted.astype(np.int64))) <= MARGIN
    assert admitted.sum() == 8
    assert allowed.supported[:, 0].all()
    assert sentence == "with the whole model on d1 outputs differ by 1.6, and 1 is allowed; 8 of 16 units may run there"


def test_one_bad_unit_keeps_only_its_neighbours_from_leaving() -> None:
    added = np.zeros(UNITS)
    added[5] = 2.0
    allowed, _ = within_difference(problem(), 1.0, Differs(added))
    assert np.flatnonzero(~allowed.supported[:, 1]).tolist() == [5]


def test_the_costs_of_what_is_not_allowed_are_gone_so_that_every_method_obeys() -> None:
    allowed, _ = within_difference(problem(), 1.0, Differs(np.full(UNITS, 0.1)))
    assert allowed.costs is not None
    assert allowed.ops is not None
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


def problem_over(time_s: np.ndarray, names: tuple[str, ...] = ("CPU_0", "CPU_1", "GPU")) -> Problem:
    return problem_of(ScheduleProblem.from_arrays(time_s, [], device_names=names[: time_s.shape[1]]))


def measured(factors: dict[tuple[int, int], float], num_devices: int = 2, noise: float = 0.01) -> Contention:
    """Factors of the model by pair, each in three rounds of some noise; other pairs do not slow each other down."""
    pairs = {(a, b): factors.get((a, b), 1.0) for a in range(num_devices) for b in range(num_devices) if a != b}
    table: list[list[list[tuple[float, float]]]] = [[[] for _ in range(num_devices)] for _ in range(num_devices)]
    for (a, b), factor in pairs.items():
        table[a][b] = [(1.0, factor), (1.0, factor * (1 + noise)), (1.0 + noise, factor)]
    return Contention.of({"model": table}, num_devices)


def shared(factor: float) -> dict[tuple[int, int], float]:
    return {(0, 1): factor, (1, 0): factor}


@given(st.integers(0, 10**6), st.floats(1.0, 4.0), st.floats(1.0, 4.0))
def test_the_bound_is_that_of_ops_that_can_be_divided(seed: int, first: float, second: float) -> None:
    """A linear program over shares of ops, and the seconds in which the one, the other and both devices work."""
    time_s = np.random.default_rng(seed).uniform(0.1, 1.0, (6, 2))
    work = np.zeros((2, 9))
    work[0, :6], work[1, :6] = time_s[:, 0], -time_s[:, 1]
    work[0, 6:], work[1, 6:] = [-1, 0, -1 / first], [0, -1, -1 / second]
    least = linprog(
        [0] * 6 + [1] * 3, A_eq=work, b_eq=[0.0, -time_s[:, 1].sum()], bounds=[(0, 1)] * 6 + [(0, None)] * 3
    )
    assert least.success
    assert least.fun is not None
    bound_s = overlap_bound_s(time_s, (first, second))
    assert bound_s <= float(least.fun) * (1 + 1e-9)
    assert bound_s >= float(least.fun) * 0.98


def test_devices_that_share_one_core_are_not_searched_over() -> None:
    problem, sentences = without_ruled_out(problem_over(np.ones((5, 2))), measured(shared(1.98)))
    figures = "side by side each takes 1.98 times as long"
    assert sentences == (f"CPU_0 and CPU_1 share hardware: {figures}, so that no split over both can gain",)
    assert problem.supported.any(axis=0).tolist() == [True, False]
    assert problem.costs is not None
    assert np.isnan(problem.costs.time_s[:, 1]).all()


APART = np.array([[1.0, np.nan], [np.nan, 1.0]])
UNKNOWN = Contention.of({"compute": [[[], [(1.0, 2.0)] * 3], [[(1.0, 2.0)] * 3, []]]}, 2)


@pytest.mark.parametrize(
    ("time_s", "contention"),
    [
        (np.ones((5, 2)), measured(shared(1.0), noise=0.0)),
        (np.ones((5, 2)), measured(shared(1.5))),
        (np.ones((5, 2)), measured(shared(1.98), noise=0.1)),  # uncertain
        (np.ones((5, 2)), UNKNOWN),
        (np.array([[1.0, 3.0], [3.0, 1.0]]), measured(shared(2.0))),  # each is good at another op
        (APART, measured(shared(2.0))),  # no device runs all
        (np.ones((5, 3)), measured({**shared(1.98), (0, 2): 1.5}, 3)),  # a third device slows one down alone
    ],
)
def test_nothing_is_ruled_out_that_may_gain_or_is_uncertain(time_s: np.ndarray, contention: Contention) -> None:
    problem = problem_over(time_s)
    assert without_ruled_out(problem, contention) == (problem, ())


def test_a_slow_device_that_halves_a_fast_one_is_left_out_though_it_hardly_suffers() -> None:
    problem, sentences = without_ruled_out(
        problem_over(np.array([[4.0, 1.0]] * 3)), measured({(0, 1): 1.0, (1, 0): 1.5})
    )
    assert problem.supported.any(axis=0).tolist() == [False, True]
    assert "side by side they take 1.00 and 1.50 times as long" in sentences[0]


def test_of_three_devices_only_the_pair_that_shares_hardware_is_ruled_out() -> None:
    problem, sentences = without_ruled_out(problem_over(np.ones((5, 3))), measured(shared(1.98), 3))
    assert len(sentences) == 1
    assert problem.supported.any(axis=0).tolist() == [True, False, True]


def test_without_costs_nothing_is_said() -> None:
    with pytest.raises(ValueError, match="without costs"):
        without_ruled_out(replace(problem_over(np.ones((5, 2))), costs=None), measured(shared(2.0)))
