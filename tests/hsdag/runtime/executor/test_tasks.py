"""Task graphs: what is refused, and names for people."""

from __future__ import annotations

import pytest

from hsdag.runtime.executor.tasks import Resource, TaskGraph

pytestmark = pytest.mark.usefixtures("poll_s")

DEVICE = (Resource("a", 0),)


def test_an_edge_given_twice_counts_once() -> None:
    graph = TaskGraph.of(("x", "y"), [0, 0], DEVICE, [(0, 1), (0, 1)])
    assert graph.edges.tolist() == [[0, 1]]


def test_people_are_told_the_task_and_its_device_or_channel() -> None:
    resources = (Resource("a", 0), Resource("b", 1), Resource("a to b", 0, 1))
    graph = TaskGraph.of(("make", "send"), [0, 2], resources, [(0, 1)])
    assert [graph.where(t) for t in (0, 1)] == ["'make' on device a", "'send' on channel a to b"]


@pytest.mark.parametrize("edges", [[(0, 1), (1, 0)], [(1, 1)]])
def test_tasks_that_wait_for_each_other_are_refused(edges: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="cycle"):
        TaskGraph.of(("x", "y"), [0, 0], DEVICE, edges)
