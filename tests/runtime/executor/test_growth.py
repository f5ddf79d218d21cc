"""Ten thousand runs and ten thousand tasks: neither memory nor the cost of a task grows."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.executor import Engine, NullBackend, TaskGraph
from tests.runtime.executor.hand_backend import chain

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


def seconds_per_task(graph: TaskGraph, barrier: bool) -> float:
    """The median of several runs."""
    found = []
    with Engine(graph, NullBackend(), barrier=barrier) as engine:
        for _ in range(5):
            begin = time.perf_counter()
            assert engine.submit().wait(FOREVER_S)
            found.append((time.perf_counter() - begin) / graph.num_tasks)
    return float(np.median(found))


def fan(count: int) -> TaskGraph:
    """All tasks but two ready at once, and one that waits for them all."""
    graph = chain(1, 2)
    edges = [(0, t) for t in range(1, count - 1)] + [(t, count - 1) for t in range(1, count - 1)]
    return TaskGraph.of(tuple(f"t{t}" for t in range(count)), np.arange(count) % 2, graph.resources, edges)


@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize("shape", [chain, fan])
def test_a_task_among_ten_thousand_costs_about_what_one_among_a_thousand_does(
    shape: Callable[[int], TaskGraph], barrier: bool
) -> None:
    assert seconds_per_task(shape(10_000), barrier) <= 4 * seconds_per_task(shape(1000), barrier)


def test_levels_of_a_long_chain_are_found_in_linear_time() -> None:
    def build_s(count: int) -> float:
        begin = time.perf_counter()
        Engine(chain(count), NullBackend(), barrier=True).close()
        return time.perf_counter() - begin

    assert min(build_s(20_000) for _ in range(2)) <= 40 * min(build_s(2000) for _ in range(3))
