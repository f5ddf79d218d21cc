"""What holds for local searches, and what single ones find."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.methods.anneal.chain import MoveKind
from hsdag.methods.anneal.values import UnderHetero, values_of
from hsdag.methods.incumbent import Limits
from hsdag.methods.registry import make_placer
from hsdag.runtime.objectives import THROUGHPUT
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.hybrid import HybridEvaluator, HybridSchedule
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from tests.hsdag.methods.anneal.test_chains import begun_chain
from tests.hsdag.methods.cuts.test_mincut_of_models import random_problem
from tests.hsdag.methods.searches import not_none


def test_annealing_needs_no_costs() -> None:
    problem = ScheduleProblem.from_arrays(np.ones((4, 2)), [])
    units = replace(problem_of(problem), costs=None)
    found = not_none(make_placer("sa").search(units, ScheduleEvaluator(problem, Semantics())).plan)
    assert np.bincount(found.placement).tolist() == [2, 2]


MOVES = {MoveKind.UNIT: 1.0, MoveKind.JOIN: 1.0, MoveKind.STRETCH: 1.0}


@pytest.mark.usefixtures("both_ways")
@given(st.integers(0, 2**32), st.integers(3, 40), st.booleans())
def test_the_value_of_a_chain_is_that_of_its_placement_under_hetero(seed: int, num_ops: int, is_steady: bool) -> None:
    problem, costs = random_problem(seed, num_ops, 2 + seed % 2)
    if is_steady:
        problem = replace(problem, objective=THROUGHPUT)
    values = values_of(problem, takes_order=False)
    assert isinstance(values, UnderHetero)
    chain = begun_chain(problem, takes_order=False, seed=seed % 1000, moves=MOVES)
    values.propose(chain, 0)
    chain.state["temperature"], chain.state["cooling"] = 0.1, 1.0
    for _ in range(4):
        values.propose(chain, 25)
        expected = costs.values(problem.objective, problem.expand(chain.device[None]))[0]
        assert chain.state["value"][0] == pytest.approx(expected, rel=1e-9)
        best = costs.values(problem.objective, problem.expand(chain.best_device[None]))[0]
        assert chain.state["best"][0] == pytest.approx(best, rel=1e-9)


@pytest.mark.slow
def test_memory_is_kept_under_hetero() -> None:
    problem, costs = random_problem(5, 30)
    assert problem.costs is not None
    num = problem.num_units  # beside whose weights results are small
    tight = replace(problem.costs, weight_bytes=np.full(num, 1e6), memory_bytes=np.full(2, 0.6e6 * num))
    problem = replace(problem, costs=tight)
    measured = RecordingEvaluator(ScheduleEvaluator.of(replace(problem, ops=None)), Budget(seconds=600.0))
    evaluator = HybridEvaluator(problem, costs, measured, HybridSchedule.simulated())
    placer = make_placer("sa", changes={"num_chains": "2", "first_round": "200"})
    found = placer.search(problem, evaluator, Limits(seed=1))
    assert found.plan is not None
    assert np.bincount(found.plan.placement, minlength=2).max() <= 0.6 * num
