"""The engine in virtual time, against a slow engine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.runtime.executor.engine import Engine
from hsdag.runtime.executor.tasks import Attempt, Inbox, Resource, TaskGraph
from tests.hsdag.runtime.executor.hand_backend import Span, VirtualBackend
from tests.hsdag.runtime.executor.reference_engine import Case, cases, reference_starts

pytestmark = pytest.mark.usefixtures("poll_s")


def play(case: Case, num_runs: int = 1) -> list[Span]:
    """What the engine does with runs that are all there from the beginning."""
    backend = VirtualBackend(case.duration_s)
    backend.gate.clear()
    with Engine(case.graph, backend, ranks=case.ranks) as engine:
        runs = [engine.submit(slot) for slot in range(num_runs)]
        backend.gate.set()
        for run in runs:
            assert run.wait(60)
    assert sorted(backend.ended_slots) == list(range(num_runs))
    return backend.spans


@given(cases(), st.integers(1, 3))
def test_starts_of_all_runs_are_those_of_a_slow_engine(case: Case, num_runs: int) -> None:
    spans = play(case, num_runs)
    assert sorted((span.start_s, span.slot, span.task) for span in spans) == reference_starts(case, num_runs)


def test_runs_in_flight_fill_what_one_leaves_idle() -> None:
    """A chain over two devices: one run takes 2 s, and each further one adds the 1 s of the slower device."""
    devices = (Resource("a", 0), Resource("b", 1))
    case = Case(TaskGraph.of(("first", "second"), [0, 1], devices, [(0, 1)]), np.array([1.0, 1.0]), None)
    spans = play(case, num_runs=5)
    ends_s = [max(s.end_s for s in spans if s.slot == slot) for slot in range(5)]
    assert ends_s == [2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_task_that_ends_at_once_does_not_hold_up_another_device() -> None:
    """All roots of all devices start before the second task of any of them."""
    order: list[int] = []

    class Instant(VirtualBackend):
        def start(self, attempt: Attempt, inbox: Inbox) -> bool:  # noqa: ARG002
            order.append(attempt.task)
            return True

    devices = (Resource("a", 0), Resource("b", 1))
    graph = TaskGraph.of(tuple("abcdef"), [0, 0, 0, 0, 1, 1], devices, [(0, 1), (1, 2), (2, 3), (4, 5)])
    with Engine(graph, Instant(np.zeros(6))) as engine:
        assert engine.submit().wait(60)
    assert set(order[:2]) == {0, 4}
