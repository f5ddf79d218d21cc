"""Ten thousand runs and ten thousand tasks: neither memory nor the calls for a task grow in number."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.executor import Engine, NullBackend, TaskGraph
from tests.runtime.executor.hand_backend import chain

pytestmark = pytest.mark.usefixtures("is_helped")

FOREVER_S = 60.0


def memory_after(engine: Engine, backend: NullBackend, num_runs: int) -> int:
    """Bytes in use after some more runs, of which each hundredth is cancelled."""
    for k in range(num_runs):
        run = engine.submit()
        if k % 100 == 0:
            engine.cancel(run)
        try:
            run.wait(FOREVER_S)
        except ExecutionError:
            assert k % 100 == 0
        backend.started.clear()
    del run
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.slow
def test_ten_thousand_runs_leave_no_memory_behind() -> None:
    backend, threads = NullBackend(), threading.active_count()
    tracemalloc.start()
    try:
        with Engine(chain(5, 2), backend) as engine:
            before = memory_after(engine, backend, 500)
            assert memory_after(engine, backend, 10_000) - before < 20_000  # two bytes for each run
            assert threading.active_count() == threads + 1
    finally:
        tracemalloc.stop()


def calls_of(act: Callable[[], object]) -> int:
    """Functions, Python's and C's, called by this thread and by those that begin meanwhile: no clock is asked."""
    count = 0

    def note(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return count


def calls_per_task(graph: TaskGraph, barrier: bool) -> float:
    """Of one run."""

    def play() -> None:
        with Engine(graph, NullBackend(), barrier=barrier) as engine:
            assert engine.submit().wait(FOREVER_S)

    return calls_of(play) / graph.num_tasks


def fan(count: int) -> TaskGraph:
    """All tasks but two ready at once, and one that waits for them all."""
    graph = chain(1, 2)
    edges = [(0, t) for t in range(1, count - 1)] + [(t, count - 1) for t in range(1, count - 1)]
    return TaskGraph.of(tuple(f"t{t}" for t in range(count)), np.arange(count) % 2, graph.resources, edges)


@pytest.mark.slow
@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize("shape", [chain, fan])
def test_a_task_among_ten_thousand_takes_as_many_calls_as_one_among_a_thousand(
    shape: Callable[[int], TaskGraph], barrier: bool
) -> None:
    calls_per_task(shape(10), barrier)  # what is done once: modules are imported, kernels compiled
    assert calls_per_task(shape(10_000), barrier) <= 1.2 * calls_per_task(shape(1000), barrier)
