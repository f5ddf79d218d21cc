"""Task graphs: what is refused, and names for people; and what a run of one tells of itself."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.base.errors import ExecutionError
from hsdag.runtime.executor.engine import Engine
from hsdag.runtime.executor.tasks import Resource, Run, TaskGraph
from tests.hsdag.runtime.executor.hand_backend import FOREVER_S, HandBackend, VirtualBackend, chain

SENT = TaskGraph(
    ("make", "send", "read"),
    [1, 2, 0],
    (Resource("a", 0), Resource("b", 1), Resource("b to a", 1, 0)),
    [(0, 1), (1, 2), (0, 1)],
    size_bytes=[0.0, 64.0, 0.0],
)
"""A result made on b, sent to a, and read there; an edge is given twice."""


def run_once(graph: TaskGraph, backend: HandBackend) -> Run:
    with Engine(graph, backend) as engine:
        run = engine.submit()
        assert run.wait(FOREVER_S)
    return run


def test_an_edge_given_twice_counts_once_and_people_are_told_the_task_and_where_it_runs() -> None:
    assert SENT.edges.tolist() == [[0, 1], [1, 2]]
    assert [SENT.where(t) for t in (0, 1)] == ["'make' on device b", "'send' on channel b to a"]


@pytest.mark.parametrize("edges", [[(0, 1), (1, 0)], [(1, 1)]])
def test_tasks_that_wait_for_each_other_are_refused(edges: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="cycle"):
        TaskGraph(("x", "y"), [0, 0], (Resource("a", 0),), edges)


def test_transfers_are_on_the_link_they_used_with_their_size() -> None:
    timeline = run_once(SENT, HandBackend()).timeline
    assert (timeline.simulated, timeline.device_names) == (False, ("a", "b"))
    assert (timeline.used_links, timeline.op_types) == ([(1, 0)], ("",) * 3)
    assert (timeline.transfers.op.tolist(), timeline.transfers.size_bytes.tolist()) == ([1], [64.0])
    assert (timeline.ops.op.tolist(), timeline.ops.device.tolist()) == ([0, 2], [1, 0])


def test_the_makespan_is_the_end_of_the_last_task_and_no_end_comes_before_its_start() -> None:
    """Ends that a device tells in its own time may come before the start; the interval is then empty."""
    backend = VirtualBackend(np.array([0.0, 0.0, 100.0]))
    with Engine(chain(3), backend) as engine:
        (run,) = backend.run(engine, 1)
    start_s, end_s = run.times
    assert run.makespan_s == run.timeline.end_s == end_s[2] == pytest.approx(100.0)
    assert end_s[:2].tolist() == start_s[:2].tolist()


def test_a_run_tells_what_ended_once_it_is_over() -> None:
    backend = HandBackend(frozenset({1}))
    with Engine(chain(3), backend) as engine:
        run = engine.submit()
        with pytest.raises(RuntimeError, match="not ended yet"):
            _ = run.makespan_s
        backend.end(error=OSError("no"))
        with pytest.raises(ExecutionError, match="no"):
            run.wait(FOREVER_S)
    assert run.timeline.ops.op.tolist() == [0]
