"""The recording evaluator: nothing is evaluated twice, nothing found is lost, and searches end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hsdag.runtime.problem.plan import Plan
from hsdag.search.evaluators.base import Evaluator, Score, SearchStopped
from hsdag.search.evaluators.recording import Budget, Event, RecordingEvaluator


class CountingEvaluator(Evaluator):
    """Latency 1 + number of ones; fails where the first unit is on device 2."""

    def __init__(self) -> None:
        self.asked: list[Plan] = []

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        self.asked += plans
        values = [(plan.placement[0] == 2, 1.0 + float(plan.placement.sum())) for plan in plans]
        return [Score(failure="broken") if fails else Score(value) for fails, value in values]


def plan(*devices: int, order: tuple[int, ...] | None = None) -> Plan:
    return Plan(np.asarray(devices), None if order is None else np.asarray(order))


def test_a_plan_is_evaluated_once_whatever_its_array() -> None:
    inner = CountingEvaluator()
    recorder = RecordingEvaluator(inner, Budget(), [Event(plan(1, 1), Score(0.5), 1.0)])
    first = recorder.evaluate([plan(0, 1), plan(0, 1), plan(1, 1)])
    again = recorder.evaluate([Plan(np.array([0, 1], dtype=np.int32))])
    assert inner.asked == [plan(0, 1)]
    assert (first, again) == ([Score(2.0), Score(2.0), Score(0.5)], [Score(2.0)])
    assert recorder.num_evaluations == 2


def test_every_event_is_written_before_the_next_evaluation() -> None:
    written: list[Event] = []
    recorder = RecordingEvaluator(CountingEvaluator(), Budget(evaluations=2), on_event=written.append)
    with pytest.raises(SearchStopped):
        recorder.evaluate([plan(0, 0), plan(0, 1), plan(1, 1)])
    assert [e.plan.placement.tolist() for e in written] == [[0, 0], [0, 1]]


def test_the_best_leaves_out_failures_and_is_the_first_of_equals() -> None:
    recorder = RecordingEvaluator(CountingEvaluator(), Budget())
    assert recorder.best() == []
    recorder.evaluate([plan(1, 1), plan(2, 0), plan(0, 1), plan(1, 0)])
    assert [e.plan for e in recorder.best(5)] == [plan(0, 1), plan(1, 0), plan(1, 1)]
    assert [e.plan for e in recorder.best()] == [plan(0, 1)]


def test_seconds_and_evaluations_are_counted_over_resumed_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 7.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    past = [Event(plan(0, 0), Score(1.0), 59.0), Event(plan(1, 0), Score(2.0), 3.0)]
    recorder = RecordingEvaluator(CountingEvaluator(), Budget(seconds=120.0, evaluations=8), past)
    now_s = 8.0
    recorder.report(count=1)
    assert (recorder.elapsed_s, recorder.num_evaluations, recorder.evaluations_left) == (60.0, 3, 5)
    assert recorder.progress == 60 / 120
    recorder.is_cheap = True
    assert recorder.progress == 3 / 8
    now_s = 68.0
    with pytest.raises(SearchStopped):
        recorder.check()


def test_the_order_of_plans_is_left_out_where_it_does_not_matter() -> None:
    inner = CountingEvaluator()
    recorder = RecordingEvaluator(inner)
    recorder.evaluate([plan(0, 1, order=(0, 1)), plan(0, 1, order=(1, 0))])
    assert inner.asked == [plan(0, 1)]
    inner.takes_order = True
    RecordingEvaluator(inner).evaluate([plan(0, 1, order=(0, 1)), plan(0, 1, order=(1, 0)), plan(0, 1)])
    assert len(inner.asked) == 4


def test_plans_that_a_method_has_counted_are_not_counted_again_when_it_reports_them() -> None:
    recorder = RecordingEvaluator(CountingEvaluator(), Budget(evaluations=3))
    recorder.evaluate([plan(0, 0)])
    assert recorder.report([plan(0, 1), plan(1, 1)], count=2) == [Score(2.0), Score(3.0)]
    assert (recorder.num_evaluations, recorder.evaluations_left) == (3, 0)


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
