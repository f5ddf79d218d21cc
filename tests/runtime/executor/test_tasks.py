"""Task graphs: what is refused, and names for people."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hsdag.runtime.executor.engine import Engine
from hsdag.runtime.executor.tasks import NullBackend, Resource, TaskGraph
from tests.runtime.executor.hand_backend import chain

pytestmark = pytest.mark.usefixtures("poll_s")

DEVICE = (Resource("a", 0),)


def test_an_edge_given_twice_counts_once() -> None:
    graph = TaskGraph.of(("x", "y"), [0, 0], DEVICE, [(0, 1), (0, 1)])
    assert graph.edges.tolist() == [[0, 1]]


def test_people_are_told_the_task_and_its_device_or_channel() -> None:
    resources = (Resource("a", 0), Resource("b", 1), Resource("a to b", 0, 1))
    graph = TaskGraph.of(("make", "send"), [0, 2], resources, [(0, 1)])
    assert [graph.where(t) for t in (0, 1)] == ["'make' on device a", "'send' on channel a to b"]


@pytest.mark.parametrize(
    ("resource", "edges", "message"),
    [
        ([0], [], "each of the 2 tasks of 'tasks' needs one of 1 resources"),
        ([0, 1], [], "needs one of 1 resources"),
        ([0, -1], [], "needs one of 1 resources"),
        ([0, 0], [(0, 1), (1, 0)], "cycle"),
        ([0, 0], [(1, 1)], "cycle"),
    ],
)
def test_a_graph_that_cannot_be_run_is_refused(resource: list[int], edges: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaskGraph.of(("x", "y"), resource, DEVICE, edges)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": np.zeros(3)}, "ranks must be 2 numbers"),
        ({"ranks": np.array([0.0, np.nan])}, "ranks must be 2 numbers"),
        ({"grace_s": -1.0}, "grace_s must be 0 or more seconds"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Engine(chain(2), NullBackend(), **options)
