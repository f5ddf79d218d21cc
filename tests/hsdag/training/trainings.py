"""Small trainings of rules for tests."""

from __future__ import annotations

from hsdag.sources import find_family
from hsdag.training.problems import TrainingProblem, training_problem
from hsdag.training.rules import RuleTraining


def rule_problems(count: int) -> list[TrainingProblem]:
    return [training_problem(find_family("chain"), number, None) for number in range(count)]


def trained(training: RuleTraining, updates: int) -> RuleTraining:
    """The training, begun and with so many updates made."""
    training.begin()
    for _ in range(updates):
        training.update()
    return training
