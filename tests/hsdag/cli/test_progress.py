"""Progress: how far, how long still, and what was found, on a terminal and in a log."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from hsdag.cli.progress import Estimate, SearchProgress, duration_in_words
from hsdag.runtime.problem.plan import Plan
from hsdag.search.driver import COMPILING
from hsdag.search.evaluators.base import Score
from hsdag.search.evaluators.recording import Event, RecordingEvaluator


def on_terminal(command: Sequence[str], columns: int) -> tuple[set[str], list[str]]:
    """All rows that a terminal of 24 lines showed at some moment while a command ran, and those at its end."""
    import pty
    import termios

    import pyte

    screen = pyte.Screen(columns, 24)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    drawn = set[str]()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**plain, "TERM": "xterm"}):
        os.close(theirs)
        with contextlib.suppress(OSError):  # which is how Linux tells that nobody writes any more
            while chunk := os.read(ours, 1 << 16):
                stream.feed(chunk)
                drawn.update(screen.display)
    os.close(ours)
    return drawn, [row.rstrip() for row in screen.display if row.strip()]


class Clock:
    """Time that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_work_that_is_late_is_never_told_to_be_at_its_end_until_it_is_known_what_the_rest_takes() -> None:
    clock = Clock()
    estimate = Estimate(60.0, clock)
    assert (estimate.share, estimate.left_s) == (0.0, 60.0)
    clock.now_s += 15
    assert estimate.words == "25%, 45 s left"
    clock.now_s += 105
    assert estimate.words == "1 min 0 s longer than planned"
    estimate.plan(30.0)
    assert estimate.words == "80%, 30 s left"
    clock.now_s += 40
    assert estimate.words == "10 s longer than planned"


def test_a_search_that_ends_early_leaves_the_time_of_its_comparison() -> None:
    clock = Clock()
    estimate = Estimate(60.0, clock)
    clock.now_s += 15
    estimate.plan(5.0)
    assert estimate.words == "75%, 5 s left"


def test_compiling_the_search_is_waited_for_and_no_part_of_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    shown = SearchProgress(60.0)
    clock = Clock()
    shown._estimate = Estimate(60.0, clock=clock)
    clock.now_s += 15
    shown.watcher.on_phase(COMPILING)
    clock.now_s += 90
    shown.watcher.on_phase("searching")
    shown.watcher.on_phase("still searching")
    assert shown.line == "25%, 45 s left: still searching"


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
    assert duration_in_words(seconds) == words


def test_a_phase_that_counts_begins_one_of_several_searches(capsys: pytest.CaptureFixture[str]) -> None:
    with SearchProgress(10.0) as shown:
        shown.watcher.on_phase("heft, seed 0: run 4 of 10")
        assert shown.line == "30%, 1 min 10 s left: heft, seed 0: run 4 of 10"
        shown.watcher.on_step("update 9 of 10")
        assert shown.line.endswith(", update 9 of 10")
        assert shown._estimate.share >= 0.9


def test_the_best_so_far_is_told_with_what_it_gains_over_the_best_device(capsys: pytest.CaptureFixture[str]) -> None:
    alone, split = (Plan(np.array(devices)) for devices in ([0, 0], [0, 1]))
    events = [Event(alone, Score(failure="it hung"), 1.0), Event(Plan(np.array([1, 1])), Score(0.004), 1.0)]
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
        assert shown.line.endswith(": searching")
    assert capsys.readouterr().err.strip() == "the budget is short"


NOTE = "only 0.76 s are left, and each placement takes 6.3 s; a budget of 68 s would measure 10"
PROGRAM = f"""
import time
from hsdag.cli.progress import SearchProgress
with SearchProgress(60.0) as shown:
    shown.watcher.on_phase("profiling devices side by side")
    time.sleep(0.3)
    shown.watcher.note({NOTE!r})
    shown.watcher.on_step("round 3 of up to 60, in which every candidate runs once")
    time.sleep(0.3)
    shown.watcher.note("the end")
print("the answer")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are of POSIX")
@pytest.mark.parametrize("columns", [80, 40])
def test_on_a_terminal_notes_have_lines_of_their_own_and_the_time_is_seen_beside_them(columns: int) -> None:
    drawn, screen = on_terminal([sys.executable, "-c", PROGRAM], columns)
    assert [row for row in drawn if re.search(r"\b\d+%, (1 min \d|\d+) s left: profiling", row)]
    assert [row for row in drawn if row.rstrip().endswith("…")], "a line that does not fit is cut, not wrapped"
    assert screen == [*textwrap.wrap(NOTE, columns), "the end", "the answer"]
