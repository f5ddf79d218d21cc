"""Helping: the thread that reports an ending starts what waited for it, unless the backend is polled."""

from __future__ import annotations

import threading

import pytest

from hsdag.runtime.executor.engine import Engine
from hsdag.runtime.executor.tasks import Run
from tests.hsdag.runtime.executor.hand_backend import HandBackend, chain

pytestmark = pytest.mark.usefixtures("poll_s")


def test_the_reporting_thread_starts_the_next_task_unless_the_backend_is_polled(poll_s: float | None) -> None:
    backend = HandBackend(frozenset({0, 1}))
    with Engine(chain(2), backend) as engine:
        run = engine.submit()
        backend.await_start()
        reporter = threading.Thread(target=backend.end, name="reporter")
        reporter.start()
        reporter.join()
        backend.end(2)
        run.wait(60.0)
    assert ("reporter" in backend.threads) is (poll_s is None)


def test_on_end_must_not_wait_for_another_run_whoever_calls_it() -> None:
    refused: list[bool] = []

    def wait_for_second(_: Run) -> None:
        with pytest.raises(RuntimeError, match="must not wait"):
            second.wait()
        refused.append(True)

    backend = HandBackend(frozenset({0}))
    with Engine(chain(1), backend) as engine:
        engine.submit(0, on_end=wait_for_second)
        backend.await_start()
        second = engine.submit(1)
        backend.end()
        backend.end(2)
        second.wait(60.0)
    assert refused == [True]


def test_on_end_may_close_the_engine_whoever_calls_it() -> None:
    backend = HandBackend(frozenset({0}))
    engine = Engine(chain(1), backend)
    run = engine.submit(on_end=lambda _: engine.close())
    backend.end()
    run.wait(60.0)
    engine.close()
    assert backend.calls_of("close") == [0]
