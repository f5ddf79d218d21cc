"""Compiled local search under HETERO: its values are the cost model's, and memory counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.methods.incumbent import Limits
from hsdag.methods.local.chain import Move
from hsdag.methods.local.values import UnderHetero, values_of
from hsdag.methods.registry import make_placer
from hsdag.runtime.objectives import THROUGHPUT
from hsdag.scoring.hybrid import HybridEvaluator, HybridSchedule
from hsdag.scoring.recording import Budget, RecordingEvaluator
from hsdag.scoring.schedule import ScheduleEvaluator
from tests.hsdag.methods.cuts.test_mincut_of_models import random_problem
from tests.hsdag.methods.local.test_chains import chain_of

MOVES = {Move.UNIT: 1.0, Move.JOIN: 1.0, Move.STRETCH: 1.0}


@given(st.integers(0, 2**32), st.integers(3, 40), st.booleans())
def test_the_value_of_a_chain_is_that_of_its_placement_under_hetero(seed: int, num_ops: int, is_steady: bool) -> None:
    problem, costs = random_problem(seed, num_ops, 2 + seed % 2)
    if is_steady:
        problem = replace(problem, objective=THROUGHPUT)
    values = values_of(problem, takes_order=False)
    assert isinstance(values, UnderHetero)
    chain = chain_of(problem, takes_order=False, seed=seed % 1000, moves=MOVES)
    values.propose(chain, 0)
    chain.state["temperature"], chain.state["cooling"] = 0.1, 1.0
    for _ in range(4):
        values.propose(chain, 25)
        expected = costs.values(problem.objective, problem.expand(chain.device[None]))[0]
        assert chain.state["value"][0] == pytest.approx(expected, rel=1e-9)
        best = costs.values(problem.objective, problem.expand(chain.best_device[None]))[0]
        assert chain.state["best"][0] == pytest.approx(best, rel=1e-9)


def test_memory_is_kept_under_hetero() -> None:
    problem, costs = random_problem(5, 30)
    assert problem.costs is not None
    weights = np.ones(problem.num_units)
    tight = replace(
        problem.costs,
        weight_bytes=weights,
        output_bytes=0 * weights,
        edge_bytes=0 * problem.costs.edge_bytes,
        memory_bytes=np.full(2, 0.6 * problem.num_units),
    )
    problem = replace(problem, costs=tight)
    measured = RecordingEvaluator(ScheduleEvaluator.of(replace(problem, ops=None)), Budget(seconds=600.0))
    evaluator = HybridEvaluator(problem, costs, measured, HybridSchedule.simulated())
    placer = make_placer("sa", changes={"num_chains": "2", "first_round": "200"})
    found = placer.search(problem, evaluator, Limits(seed=1))
    assert found.plan is not None
    assert np.bincount(found.plan.placement, minlength=2).max() <= 0.6 * problem.num_units
