"""Ten thousand runs and ten thousand tasks: neither memory nor the calls for a task grow in number."""

from __future__ import annotations

import gc
import threading
import tracemalloc

import pytest

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.executor.engine import Engine
from hsdag.runtime.executor.tasks import NullBackend
from tests.runtime.executor.hand_backend import chain

pytestmark = pytest.mark.usefixtures("poll_s")

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
