"""The recording evaluator: nothing is evaluated twice, nothing found is lost, and searches end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hsdag.evaluators.base import Evaluation, Evaluator, SearchStopped
from hsdag.evaluators.recording import Budget, Event, RecordingEvaluator
from hsdag.ir.graph import IntArray


class CountingEvaluator(Evaluator):
    """Latency 1 + number of ones; fails where the first unit is on device 2."""

    def __init__(self) -> None:
        self.asked: list[IntArray] = []

    def evaluate(self, placements: Sequence[IntArray]) -> list[Evaluation]:
        self.asked += placements
        return [Evaluation(None, "broken") if p[0] == 2 else Evaluation(1.0 + float(p.sum())) for p in placements]


class ListJournal:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, event: Event) -> None:
        self.events.append(event)


def placement(*devices: int) -> IntArray:
    return np.asarray(devices, dtype=np.int64)


def test_a_placement_is_evaluated_once_whatever_its_array() -> None:
    inner = CountingEvaluator()
    recorder = RecordingEvaluator(inner, Budget(), ListJournal())
    first = recorder.evaluate([placement(0, 1), placement(0, 1)])
    again = recorder.evaluate([placement(0, 1).astype(np.int32).astype(np.int64)])
    assert len(inner.asked) == 1
    assert first == [Evaluation(2.0), Evaluation(2.0)]
    assert again == [Evaluation(2.0)]


def test_every_event_is_written_before_the_next_evaluation() -> None:
    journal = ListJournal()
    recorder = RecordingEvaluator(CountingEvaluator(), Budget(evaluations=2), journal)
    with pytest.raises(SearchStopped):
        recorder.evaluate([placement(0, 0), placement(0, 1), placement(1, 1)])
    assert [e.placement.tolist() for e in journal.events] == [[0, 0], [0, 1]]


def test_the_best_leaves_out_failures() -> None:
    recorder = RecordingEvaluator(CountingEvaluator(), Budget(), ListJournal())
    recorder.evaluate([placement(1, 1), placement(2, 0), placement(0, 1)])
    assert [e.placement.tolist() for e in recorder.best(5)] == [[0, 1], [1, 1]]


def test_time_is_counted_over_resumed_parts() -> None:
    past = [Event(placement(0, 0), Evaluation(1.0), elapsed_s=59.0)]
    recorder = RecordingEvaluator(CountingEvaluator(), Budget(seconds=58.0), ListJournal(), past)
    with pytest.raises(SearchStopped):
        recorder.evaluate([placement(0, 1)])


def test_past_events_answer_from_the_cache() -> None:
    inner = CountingEvaluator()
    past = [Event(placement(0, 0), Evaluation(0.5), elapsed_s=1.0)]
    recorder = RecordingEvaluator(inner, Budget(), ListJournal(), past)
    assert recorder.evaluate([placement(0, 0)]) == [Evaluation(0.5)]
    assert inner.asked == []
    assert recorder.num_evaluations == 1


def test_a_wish_to_stop_ends_the_search_also_on_cached_placements() -> None:
    recorder = RecordingEvaluator(CountingEvaluator(), Budget(), ListJournal(), should_stop=lambda: True)
    with pytest.raises(SearchStopped):
        recorder.evaluate([placement(0, 0)])
