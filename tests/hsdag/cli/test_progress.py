"""Progress: how far, how long still, and what was found, on a terminal and in a log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from hsdag.cli.progress import Estimate, SearchProgress, in_words
from hsdag.runtime.problem.plan import Plan
from hsdag.scoring.base import Score
from hsdag.scoring.recording import Event, RecordingEvaluator
from hsdag.search.driver import ONCE


class Clock:
    """Time that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_search_and_its_comparison_are_one_piece_of_work() -> None:
    clock = Clock()
    estimate = Estimate(60.0, 20.0, clock)
    assert (estimate.share, estimate.left_s) == (0.0, 80.0)
    clock.now_s += 20
    assert (estimate.share, estimate.left_s) == (0.25, 60.0)
    estimate.compare()  # the search ended early
    assert (estimate.share, estimate.left_s) == (0.75, 20.0)
    clock.now_s += 500
    assert (estimate.share, estimate.left_s) == (1.0, 0.0)
    assert estimate.words == "100%, 0 s left"


def test_compiling_the_search_is_waited_for_and_no_part_of_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    shown = SearchProgress(60.0)
    clock = Clock()
    shown._estimate = Estimate(60.0, clock=clock)
    clock.now_s += 15
    shown.watcher.on_phase(ONCE)
    clock.now_s += 90
    shown.watcher.on_phase("searching")
    shown.watcher.on_phase("still searching")
    assert shown.line == "still searching, 25%, 45 s left"


def test_updates_take_as_long_as_those_before() -> None:
    clock = Clock()
    estimate = Estimate(None, clock=clock)
    assert estimate.words == ""
    clock.now_s += 30
    estimate.update(10, 50)
    assert estimate.words == "20%, 2 min 0 s left"


@pytest.mark.parametrize(
    ("seconds", "words"), [(-1, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (4800, "1 h 20 min")]
)
def test_times_are_told_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_a_phase_that_counts_begins_one_of_several_searches(capsys: pytest.CaptureFixture[str]) -> None:
    with SearchProgress(10.0) as shown:
        shown.watcher.on_phase("heft, seed 0: run 4 of 10")
        assert shown.line == "heft, seed 0: run 4 of 10, 30%, 1 min 10 s left"
        shown.watcher.on_step("update 9 of 10")
        assert shown.line.endswith(", update 9 of 10")
        assert shown._estimate.share >= 0.9


def test_the_best_so_far_is_told_with_what_it_gains_over_the_best_device(capsys: pytest.CaptureFixture[str]) -> None:
    alone, split = (Plan(np.array(devices)) for devices in ([0, 0], [0, 1]))
    events = [Event(alone, Score.failed("it hung"), 1.0), Event(Plan(np.array([1, 1])), Score(0.004), 1.0)]
    for value, said in ((0.005, "best 4 ms"), (0.003, "best 3 ms, 25% less than the best device alone")):
        events.append(Event(split, Score(value), 2.0))
        best = min(events[1:], key=lambda event: event.score.value)
        shown = SearchProgress(10.0)
        heard = SimpleNamespace(events=events, num_evaluations=len(events), best=lambda best=best: [best])
        shown.watcher.on_event(best, cast(RecordingEvaluator, heard))
        assert shown.line.endswith(f"{len(events)} placements, {said}")


def test_a_note_is_said_and_does_not_take_the_place_of_the_phase(capsys: pytest.CaptureFixture[str]) -> None:
    with SearchProgress(10.0) as shown:
        shown._is_shown = True  # as on a terminal, where phases pass
        shown.watcher.on_phase("searching")
        shown.watcher.note("the budget is short")
        assert shown.line.startswith("searching, ")
    assert capsys.readouterr().err == "the budget is short\n"
