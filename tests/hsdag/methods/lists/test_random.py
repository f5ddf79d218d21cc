"""Random placements: legal, uniform, repeatable, and at an end where hardly one is left."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.methods.incumbent import Limits, Status
from hsdag.methods.lists.baselines import RandomPlacer, uniform_placements
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.schedule import ScheduleEvaluator
from tests.hsdag.methods.exact.exact_reference import every_placement, random_problem


def test_every_device_of_a_unit_is_drawn_alike_and_no_other() -> None:
    problem = problem_of(random_problem(4, 8, 3))
    drawn = uniform_placements(problem, 6000, np.random.default_rng(0))
    share = (drawn[:, :, None] == np.arange(3)).mean(axis=0)  # [U, D]
    expected = problem.supported / problem.supported.sum(axis=1, keepdims=True)
    assert share == pytest.approx(expected, abs=0.03)
    assert (share[~problem.supported] == 0).all()


def test_few_placements_are_all_seen_and_the_search_ends() -> None:
    costs = random_problem(2, 4, 2)
    problem = problem_of(costs)
    of_units = ScheduleEvaluator(costs, Semantics(), unit_of_op=problem.units.partition.labels)
    found = RandomPlacer().search(problem, of_units, Limits(seed=0))
    every = [Plan(each) for each in every_placement(costs)]
    best = min(score.value for score in ScheduleEvaluator(costs, Semantics()).evaluate(every))
    assert (found.score, found.status) == (best, Status.FEASIBLE)


def test_the_seed_decides() -> None:
    problem = problem_of(random_problem(5, 10, 3))
    first, again, other = (uniform_placements(problem, 5, np.random.default_rng(s)) for s in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
