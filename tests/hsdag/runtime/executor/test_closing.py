"""Closing: what is in flight is cancelled, the thread ends, and the backend is closed once."""

from __future__ import annotations

import contextlib
import gc
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.executor.engine import Engine
from hsdag.runtime.executor.tasks import NullBackend, Run
from tests.hsdag.runtime.executor.hand_backend import HandBackend, chain

pytestmark = pytest.mark.usefixtures("poll_s")

FOREVER_S = 60.0


def num_engine_threads() -> int:
    return sum(thread.name == "hsdag-engine" for thread in threading.enumerate())


@pytest.fixture(scope="module", autouse=True)
def of_other_tests() -> None:
    """Garbage of other tests goes, and what they still hold is looked at by no collection of these tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test does with its engines, their threads end."""
    yield
    gc.collect()
    patience_s = time.monotonic() + FOREVER_S
    while num_engine_threads():
        assert time.monotonic() < patience_s
        time.sleep(0.001)


def test_closing_cancels_what_runs_and_what_waits_and_goes_on_without_what_hangs() -> None:
    backend = HandBackend(frozenset({0}))
    engine = Engine(chain(2), backend, grace_s=0.01)
    runs = [engine.submit(slot) for slot in range(3)]
    backend.await_start()
    engine.close()
    for run in runs:
        with pytest.raises(ExecutionError, match="was closed while an inference ran"):
            run.wait(FOREVER_S)
    assert sorted(backend.calls_of("run_ended")) == [0, 1, 2]


@pytest.mark.parametrize("is_used", [False, True])
def test_closing_twice_closes_the_backend_once(is_used: bool) -> None:
    backend = HandBackend()
    engine = Engine(chain(1), backend)
    if is_used:
        engine.submit().wait(FOREVER_S)
    engine.close()
    engine.close()
    assert backend.calls_of("close") == [0]


def test_all_calls_of_a_backend_come_from_the_thread_of_the_engine() -> None:
    backend = HandBackend(frozenset({0}))
    backend.poll_s = 0.001
    with Engine(chain(2), backend, grace_s=0.0) as engine, pytest.raises(ExecutionError, match="took more"):
        engine.submit(limit_s=0.01).wait(FOREVER_S)
    assert {name for name, _ in backend.calls} >= {"start", "poll", "cancel", "run_ended", "close"}
    assert backend.threads == {"hsdag-engine"}


def test_a_backend_is_closed_after_the_last_run_whoever_closes() -> None:
    """Threads that close at the same time all come back to a closed backend."""
    backend = HandBackend(frozenset({0}))
    engine = Engine(chain(1), backend, grace_s=0.05)
    engine.submit()
    backend.await_start()
    closed: list[list[int]] = []

    def close() -> None:
        engine.close()
        closed.append(backend.calls_of("close"))

    closers = [threading.Thread(target=close) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(FOREVER_S)
    assert closed == [[0]] * 4


def test_runs_submitted_while_another_thread_closes_end_or_are_refused() -> None:
    for _ in range(20):
        engine, runs = Engine(chain(3), NullBackend()), list[Run]()
        begun = threading.Event()

        def submit(engine: Engine = engine, runs: list[Run] = runs, begun: threading.Event = begun) -> None:
            with contextlib.suppress(ExecutionError):
                for slot in itertools.count():
                    runs.append(engine.submit(slot))
                    begun.set()

        submitter = threading.Thread(target=submit)
        submitter.start()
        assert begun.wait(FOREVER_S)
        engine.close()
        submitter.join(FOREVER_S)
        assert all(run.is_over for run in runs)


@pytest.mark.parametrize("is_used", [False, True])
def test_an_engine_that_is_forgotten_closes_its_backend(is_used: bool) -> None:
    backend = HandBackend()
    engine = Engine(chain(2), backend)
    if is_used:
        assert engine.submit().wait(FOREVER_S)
    del engine
    gc.collect()
    patience_s = time.monotonic() + FOREVER_S
    while not backend.calls_of("close"):
        assert time.monotonic() < patience_s
        time.sleep(0.001)


def test_a_forgotten_engine_is_not_held_by_the_callback_of_a_run_that_is_over() -> None:
    backend = HandBackend()
    gc.disable()
    try:
        engine = Engine(chain(2), backend)
        run = engine.submit(on_end=engine.cancel)
        assert run.wait(FOREVER_S)
        del engine
        patience_s = time.monotonic() + FOREVER_S
        while not backend.calls_of("close"):
            assert time.monotonic() < patience_s
            time.sleep(0.001)
    finally:
        gc.enable()


def test_a_close_that_breaks_is_reported_and_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(str(args.exc_value)))
    with Engine(chain(1), HandBackend(raising=("close",))) as engine:
        assert engine.submit().wait(FOREVER_S)
    assert reported == ["close is broken"]


def test_a_program_that_ends_with_a_run_in_flight_cancels_it() -> None:
    program = """
import threading
from hsdag.runtime.executor.engine import Engine
from hsdag.runtime.executor.tasks import NullBackend, Resource, TaskGraph
class Telling(NullBackend):
    def start(self, attempt, inbox):
        return False
    def close(self):
        print("closed", flush=True)
engine = Engine(TaskGraph.of(("t",), [0], (Resource("d", 0),), []), Telling(), grace_s=0.01)
engine.submit(on_end=lambda run: print(run.error is not None, flush=True))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout.split(), done.stderr) == (["True", "closed"], "")
