"""The recording evaluator: nothing is evaluated twice, nothing found is lost, and searches end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hsdag.methods.incumbent import Incumbent, Limits
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.base import Evaluator, Score, SearchStopped
from hsdag.scoring.recording import Budget, Event, RecordingEvaluator


class CountingEvaluator(Evaluator):
    """Latency 1 + number of ones; fails where the first unit is on device 2."""

    def __init__(self) -> None:
        self.asked: list[Plan] = []

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        self.asked += plans
        values = [(plan.placement[0] == 2, 1.0 + float(plan.placement.sum())) for plan in plans]
        return [Score.failed("broken") if fails else Score(value) for fails, value in values]


def plan(*devices: int, order: tuple[int, ...] | None = None) -> Plan:
    return Plan(np.asarray(devices), None if order is None else np.asarray(order))


def test_a_plan_is_evaluated_once_whatever_its_array() -> None:
    inner = CountingEvaluator()
    recorder = RecordingEvaluator(inner, Budget())
    first = recorder.evaluate([plan(0, 1), plan(0, 1)])
    again = recorder.evaluate([Plan(np.array([0, 1], dtype=np.int32))])
    assert len(inner.asked) == 1
    assert first == [Score(2.0), Score(2.0)]
    assert again == [Score(2.0)]


def test_every_event_is_written_before_the_next_evaluation() -> None:
    written: list[Event] = []
    recorder = RecordingEvaluator(CountingEvaluator(), Budget(evaluations=2), on_event=written.append)
    with pytest.raises(SearchStopped):
        recorder.evaluate([plan(0, 0), plan(0, 1), plan(1, 1)])
    assert [e.plan.placement.tolist() for e in written] == [[0, 0], [0, 1]]


def test_the_best_leaves_out_failures() -> None:
    recorder = RecordingEvaluator(CountingEvaluator(), Budget())
    recorder.evaluate([plan(1, 1), plan(2, 0), plan(0, 1)])
    assert [e.plan.placement.tolist() for e in recorder.best(5)] == [[0, 1], [1, 1]]


def test_time_is_counted_over_resumed_parts() -> None:
    past = [Event(plan(0, 0), Score(1.0), elapsed_s=59.0)]
    recorder = RecordingEvaluator(CountingEvaluator(), Budget(seconds=58.0), past)
    with pytest.raises(SearchStopped):
        recorder.evaluate([plan(0, 1)])


def test_past_events_answer_from_the_cache() -> None:
    inner = CountingEvaluator()
    past = [Event(plan(0, 0), Score(0.5), elapsed_s=1.0)]
    recorder = RecordingEvaluator(inner, Budget(), past)
    assert recorder.evaluate([plan(0, 0)]) == [Score(0.5)]
    assert inner.asked == []
    assert recorder.num_evaluations == 1


def test_a_wish_to_stop_ends_the_search_also_on_cached_placements() -> None:
    recorder = RecordingEvaluator(CountingEvaluator(), Budget(), should_stop=lambda: True)
    with pytest.raises(SearchStopped):
        recorder.evaluate([plan(0, 0)])


def test_the_order_of_plans_is_left_out_where_it_does_not_matter() -> None:
    inner = CountingEvaluator()
    recorder = RecordingEvaluator(inner)
    recorder.evaluate([plan(0, 1, order=(0, 1)), plan(0, 1, order=(1, 0))])
    assert inner.asked == [plan(0, 1)]
    inner.takes_order = True
    RecordingEvaluator(inner).evaluate([plan(0, 1, order=(0, 1)), plan(0, 1, order=(1, 0)), plan(0, 1)])
    assert len(inner.asked) == 4


def test_plans_that_a_method_has_counted_are_not_counted_again_when_it_reports_them() -> None:
    recorder = RecordingEvaluator(CountingEvaluator(), Budget(evaluations=2))
    recorder.spend(2)
    assert recorder.report([plan(0, 1), plan(1, 1)]) == [Score(2.0), Score(3.0)]
    assert (recorder.num_evaluations, recorder.evaluations_left) == (2, 0)


def test_first_guesses_of_cheap_evaluations_are_had_whatever_the_budget() -> None:
    inner = CountingEvaluator()
    inner.is_cheap = True
    recorder = RecordingEvaluator(inner, Budget(seconds=0.0, evaluations=1))
    assert recorder.evaluate_all([plan(0, 1), plan(1, 1)]) == [Score(2.0), Score(3.0)]
    with pytest.raises(SearchStopped):
        recorder.evaluate([plan(0, 0)])


@pytest.mark.parametrize(("value", "failure"), [(1.0, "and yet it failed"), (float("inf"), None), (float("nan"), None)])
def test_a_score_is_either_a_value_or_a_failure(value: float, failure: str | None) -> None:
    with pytest.raises(ValueError, match="either a finite value or a failure"):
        Score(value, failure)


def test_a_search_ends_at_its_limit_of_seconds_once_it_has_a_plan() -> None:
    units = problem_of(ScheduleProblem.from_arrays(np.ones((2, 2)), [(0, 1)]))
    incumbent = Incumbent(units, CountingEvaluator(), Limits(seconds=0.0))
    incumbent.evaluate([plan(2, 0)])  # which fails
    incumbent.evaluate([plan(0, 1)])
    with pytest.raises(SearchStopped):
        incumbent.evaluate([plan(0, 0)])
    assert incumbent.best == plan(0, 1)
