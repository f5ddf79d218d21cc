"""What a run tells of itself: a measured timeline, and its makespan."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.executor.engine import Engine
from hsdag.runtime.executor.tasks import Attempt, Backend, Inbox, NullBackend, Resource, Run, TaskGraph
from tests.hsdag.runtime.executor.hand_backend import BrokenBackend, HandBackend, chain

pytestmark = pytest.mark.usefixtures("poll_s")

FOREVER_S = 60.0


class TimerBackend(Backend):
    """Tasks that end after ``duration_s`` [T] on a timer."""

    def __init__(self, duration_s: np.ndarray) -> None:
        self._duration_s = duration_s.tolist()

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:
        timer = threading.Timer(self._duration_s[attempt.task], inbox.done, (attempt,))
        timer.daemon = True
        timer.start()
        return False


def run_once(graph: TaskGraph, duration_s: np.ndarray | None = None) -> Run:
    backend = NullBackend() if duration_s is None else TimerBackend(duration_s)
    with Engine(graph, backend) as engine:
        run = engine.submit()
        assert run.wait(FOREVER_S)
    return run


def sent() -> TaskGraph:
    """A result made on a, sent to b, and read there."""
    resources = (Resource("a", 0), Resource("b", 1), Resource("a to b", 0, 1))
    names, sizes = ("make", "send", "read"), [0.0, 64.0, 0.0]
    return TaskGraph.of(names, [0, 2, 1], resources, [(0, 1), (1, 2)], size_bytes=sizes)


def test_transfers_are_on_the_link_they_used_with_their_size() -> None:
    timeline = run_once(sent()).timeline
    assert (timeline.simulated, timeline.device_names) == (False, ("a", "b"))
    assert timeline.used_links == [(0, 1)]
    assert (timeline.transfers.op.tolist(), timeline.transfers.size_bytes.tolist()) == ([1], [64.0])
    assert (timeline.ops.op.tolist(), timeline.ops.device.tolist()) == ([0, 2], [0, 1])


def test_the_makespan_is_the_end_of_the_last_task() -> None:
    run = run_once(chain(3), np.array([0.001, 0.001, 0.001]))
    assert run.makespan_s == run.timeline.end_s == run.times[1][2]
    assert 0.003 <= run.makespan_s < FOREVER_S


def test_a_timeline_of_a_failed_run_shows_what_ended() -> None:
    with Engine(chain(3), BrokenBackend(1, "no")) as engine:
        run = engine.submit()
        with pytest.raises(ExecutionError, match="no"):
            run.wait(FOREVER_S)
    assert run.timeline.ops.op.tolist() == [0]


def test_a_run_in_flight_has_no_times_yet() -> None:
    backend = HandBackend(frozenset({0}))
    with Engine(chain(1), backend) as engine:
        run = engine.submit()
        with pytest.raises(RuntimeError, match="not ended yet"):
            run.makespan_s  # noqa: B018
        backend.end()
        assert run.wait(FOREVER_S)
