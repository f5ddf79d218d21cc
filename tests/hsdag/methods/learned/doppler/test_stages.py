"""DOPPLER's stages: simulated plans before measured ones, and what serves meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hsdag.methods.base import Placer
from hsdag.methods.incumbent import Limits, Result
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.base import Evaluator, Score
from hsdag.scoring.schedule import ScheduleEvaluator
from tests.hsdag.methods.exact.exact_reference import random_problem

SMALL = {"width": "8", "layers": "1", "updates": "3", "begins_as": "nothing", "learning_rate": "0.003"}


class Measured(Evaluator):
    """Stands for a machine: simulated values with noise of a few percent, one plan at a time; ``asked`` are all."""

    def __init__(self, problem: ScheduleProblem) -> None:
        self._inner = ScheduleEvaluator(problem, Semantics())
        self._rng, self._known = np.random.default_rng(0), dict[Plan, float]()
        self.asked: list[tuple[Plan, float]] = []

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        for plan in plans:
            if plan not in self._known:
                value = self._inner.evaluate([plan])[0].value * self._rng.lognormal(0.0, 0.03)
                self._known[plan] = value
                self.asked.append((plan, value))
        return [Score(self._known[plan]) for plan in plans]


@pytest.fixture(scope="module")
def problem() -> ScheduleProblem:
    drawn = random_problem(3, 30, 3)
    return replace(drawn, time_s=np.nan_to_num(drawn.time_s, nan=4.0))


def searched(
    problem: ScheduleProblem, evaluator: Evaluator, known: tuple[Plan, ...] = (), seed: int = 1, **changes: str
) -> Result:
    placer: Placer[object] = make_placer("doppler", changes={**SMALL, **changes})
    return placer.search(problem_of(problem), evaluator, Limits(seed=seed, known=known))


@pytest.mark.slow
def test_a_policy_that_learned_from_simulated_plans_is_better_from_the_first_measured_one(
    problem: ScheduleProblem,
) -> None:
    mean = {}
    for updates in ("0", "20"):
        machine = Measured(problem)
        searched(problem, machine, simulated_updates=updates, updates="1")
        mean[updates] = np.mean([value for _, value in machine.asked[problem.num_devices :]])
    assert mean["20"] < 0.9 * mean["0"]


def test_the_plan_that_serves_is_replaced_by_one_that_was_measured_to_be_faster_alone(problem: ScheduleProblem) -> None:
    machine = Measured(problem)
    serving, best_s = None, np.inf
    for seed in range(3):
        before = len(machine.asked)
        result = searched(problem, machine, () if serving is None else (serving,), seed, simulated_updates="5")
        assert len(machine.asked) > before
        assert result.score <= best_s
        assert (result.plan == serving) == (result.score == best_s)
        serving, best_s = result.plan, result.score
    assert best_s == min(value for _, value in machine.asked)


def test_a_search_imitates_the_plan_that_serves(problem: ScheduleProblem) -> None:
    good = searched(problem, ScheduleEvaluator(problem, Semantics()), updates="15", begins_as="critical-path").plan
    assert good is not None
    alike = {}
    for known in ((), (good,)):
        machine = Measured(problem)
        searched(problem, machine, known, updates="12", simulated_updates="0", imitation_weight="1", elites="1")
        last = [plan.placement for plan, _ in machine.asked[-8:]]
        alike[len(known)] = float(np.mean(np.stack(last) == good.placement))
    assert alike[1] > alike[0] + 0.2
