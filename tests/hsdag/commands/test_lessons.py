"""Lessons: workers make those that one process does."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.commands import lessons
from hsdag.commands.families import Family, find_family
from hsdag.commands.lessons import Expert, lesson_of, lessons_of
from hsdag.fleet.pool import Pool
from hsdag.fleet.workers import make_pool
from hsdag.learning.doppler.pretraining import Lesson
from tests.hsdag.fleet.here import Here


@pytest.mark.slow
def test_lessons_of_workers_are_those_of_this_process() -> None:
    family, expert = find_family("random-wired,chain"), Expert(evaluations=2000)
    here = lessons_of(family, range(3), expert, lambda: None, None)
    with make_pool("local:2") as pool:
        there = lessons_of(family, range(3), expert, lambda: None, pool)
    for one, other in zip(here, there, strict=True):
        assert one.experts == other.experts
        assert np.array_equal(one.singles, other.singles)
        assert one.evaluator.evaluate(one.experts) == other.evaluator.evaluate(other.experts)


def test_an_expert_limited_by_evaluations_finds_the_same_plan_on_any_number_of_threads() -> None:
    family, expert = find_family("chain"), Expert(evaluations=500)
    found = [lesson_of(family, 1, Expert(evaluations=500, num_threads=threads)).experts for threads in (1, 2)]
    assert found[0] == found[1]
    assert expert.options(1).seed == 1
    assert expert.options(1).budget_s == np.inf
    assert Expert(2.0).options(1).budget_s == 2.0


def test_the_expert_on_a_worker_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def noted(family: Family, number: int, expert: Expert | None) -> Lesson:
        assert expert is not None
        threads.append(expert.num_threads)
        return lesson_of(family, number, None)

    monkeypatch.setattr(lessons, "lesson_of", noted)
    with Pool([Here()]) as pool:
        lessons_of(find_family("chain"), range(2), Expert(num_threads=4), lambda: None, pool)
    assert threads == [1, 1]
