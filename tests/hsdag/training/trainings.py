"""Small trainings of rules for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hsdag.runtime.simulator import Semantics
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.sources.families import find_family
from hsdag.training.problems import RuleProblem


class Nowhere:
    """Keeps no state."""

    def save(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Forget it."""

    def load(self) -> None:
        """Nothing."""


def rule_problems(count: int) -> list[RuleProblem]:
    problems = [find_family("chain").problem(number) for number in range(count)]
    return [RuleProblem(problem, ScheduleEvaluator(problem, Semantics())) for problem in problems]
