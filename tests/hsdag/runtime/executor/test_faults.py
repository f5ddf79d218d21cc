"""Faults: the error names the op and its device, and the next run works."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.executor.engine import Engine
from hsdag.runtime.executor.tasks import Attempt, Inbox, NullBackend, Resource, Run, TaskGraph
from tests.hsdag.runtime.executor.hand_backend import BrokenBackend, HandBackend, VirtualBackend, chain

pytestmark = pytest.mark.usefixtures("poll_s")

FOREVER_S = 60.0
ROOT = Path(__file__).parents[4]


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What went to threading.excepthook."""
    found: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(str(args.exc_value)))
    return found


def side_by_side(count: int) -> TaskGraph:
    """Tasks on a device each."""
    devices = tuple(Resource(f"d{k}", k) for k in range(count))
    return TaskGraph.of(tuple(f"t{t}" for t in range(count)), range(count), devices, [])


def failure(run: Run) -> str:
    with pytest.raises(ExecutionError, match=r".") as caught:
        run.wait(FOREVER_S)
    return str(caught.value)


def test_a_task_that_raises_is_named_with_its_device_on_one_line() -> None:
    with Engine(chain(4, 2), BrokenBackend(3, "out of\n  memory")) as engine:
        run = engine.submit()
        assert failure(run) == "'t3' on device d1 failed: out of memory"
        assert isinstance(run.error and run.error.__cause__, RuntimeError)


def test_a_task_that_fails_later_is_named_with_its_device_and_nothing_more_is_started() -> None:
    backend = HandBackend(frozenset({1}))
    with Engine(chain(3, 2), backend) as engine:
        run = engine.submit()
        attempt, inbox = backend.await_start()
        inbox.failed(attempt, OSError("device lost"))
        assert failure(run) == "'t1' on device d1 failed: device lost"
        assert backend.calls_of("start") == [0, 1]


def test_a_failed_run_waits_for_its_other_tasks_before_its_slot_is_put_away() -> None:
    backend = HandBackend(frozenset({0, 1}))
    with Engine(side_by_side(2), backend, grace_s=FOREVER_S) as engine:
        run = engine.submit()
        backend.await_start(2)
        (first, inbox), (second, _) = backend.waiting
        inbox.failed(first, OSError("gone"))
        assert not run.wait(0.02)
        assert (backend.calls_of("cancel"), backend.calls_of("run_ended")) == ([1], [])
        inbox.done(second)
        failure(run)


def test_a_hanging_task_is_named_and_its_device_taken_until_it_comes_back() -> None:
    backend = HandBackend(frozenset({1}))
    with Engine(chain(3, 2), backend, grace_s=0.01) as engine:
        run = engine.submit(limit_s=0.02)
        assert failure(run) == "the inference of 'tasks' took more than 0.02 s; it waited for 't1' on device d1"
        assert backend.calls_of("cancel") == [1]
        backend.by_hand = frozenset()
        assert failure(engine.submit(limit_s=0.02)).endswith("it waited for its turn")
        second = engine.submit()
        hung, inbox = backend.waiting[0]
        inbox.failed(hung, OSError("late"))
        inbox.done(hung)
        assert second.wait(FOREVER_S)
        assert backend.calls_of("start") == [0, 1, 0, 0, 1, 2]


def test_a_run_that_never_got_its_turn_says_so() -> None:
    backend = HandBackend(frozenset({0}))
    with Engine(chain(1), backend) as engine:
        first, second = engine.submit(0), engine.submit(1, limit_s=0.02)
        assert failure(second).endswith("it waited for its turn")
        backend.end()
        assert first.wait(FOREVER_S)
        assert backend.calls_of("start") == [0]


def test_a_chain_of_tasks_that_end_at_once_can_be_cut_short_by_a_limit() -> None:
    class Slow(NullBackend):
        def start(self, attempt: Attempt, inbox: Inbox) -> bool:
            time.sleep(0.002)
            return super().start(attempt, inbox)

    backend = Slow()
    with Engine(chain(5000), backend) as engine:
        assert "took more than" in failure(engine.submit(limit_s=0.02))
        assert len(backend.started) < 5000


def test_an_end_told_twice_counts_once() -> None:
    backend = HandBackend(frozenset({0, 1}))
    with Engine(chain(3), backend) as engine:
        run = engine.submit()
        backend.end(1)
        backend.end(1)
        backend.await_start(2)
        backend.end(1)
        assert not run.wait(0.02)
        backend.end(2)
        assert run.wait(FOREVER_S)
        assert backend.calls_of("start") == [0, 1, 2]


def test_a_cancelled_run_says_so_and_the_next_one_works() -> None:
    backend = HandBackend(frozenset({0}))
    with Engine(chain(2), backend) as engine:
        run = engine.submit()
        backend.await_start()
        engine.cancel(run)
        backend.end()
        assert failure(run) == "the inference of 'tasks' was cancelled"
        second = engine.submit()
        backend.end(2)
        assert second.wait(FOREVER_S)


@pytest.mark.parametrize("method", ["cancel", "run_ended"])
def test_a_backend_that_breaks_while_a_run_is_taken_out_ends_no_thread(method: str, reported: list[str]) -> None:
    backend = HandBackend(frozenset({0}), raising=(method,))
    with Engine(chain(1), backend, grace_s=0.0) as engine:
        assert "took more than" in failure(engine.submit(limit_s=0.01))
        assert reported == [f"{method} is broken"]
        backend.by_hand, backend.raising = frozenset(), set()
        backend.end()
        assert engine.submit().wait(FOREVER_S)


def test_a_run_that_cannot_be_put_away_has_failed() -> None:
    with Engine(chain(1), HandBackend(raising=("run_ended",))) as engine:
        assert failure(engine.submit()) == "the inference of 'tasks' could not be put away: run_ended is broken"


def test_a_poll_that_raises_is_the_failure_of_what_runs() -> None:
    backend = HandBackend(frozenset({1}), raising=("poll",))
    backend.poll_s = 0.0
    with Engine(chain(2, 2), backend, grace_s=0.01) as engine:
        assert failure(engine.submit()) == "'t1' on device d1 failed: poll is broken"
        backend.raising.clear()
        backend.end(1)
        second = engine.submit()
        backend.end(2)
        assert second.wait(FOREVER_S)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_what_on_end_raises_is_reported_and_the_next_run_works(error: BaseException, reported: list[str]) -> None:
    def fail(_: Run) -> None:
        raise error

    with Engine(chain(2), NullBackend()) as engine:
        assert engine.submit(on_end=fail).wait(FOREVER_S)
        assert engine.submit().wait(FOREVER_S)
    assert reported == [str(error)]


def test_a_task_that_ends_the_thread_fails_its_run_and_closes_the_engine(reported: list[str]) -> None:
    class Leaving(HandBackend):
        def start(self, attempt: Attempt, inbox: Inbox) -> bool:  # noqa: ARG002
            raise SystemExit

    backend = Leaving()
    engine = Engine(chain(2), backend)
    assert "the executor broke down: SystemExit()" in failure(engine.submit())
    engine.close()
    with pytest.raises(ExecutionError, match="is closed"):
        engine.submit()
    assert backend.calls_of("close") == [0]


def test_on_end_may_submit_the_next_run_on_the_same_slot() -> None:
    ended, over = [], threading.Event()
    with Engine(chain(2), NullBackend()) as engine:

        def again(run: Run) -> None:
            ended.append(run.number)
            if len(ended) == 50:
                over.set()
            else:
                engine.submit(on_end=again)

        engine.submit(on_end=again)
        assert over.wait(FOREVER_S)
    assert ended == list(range(1, 51))


def test_a_run_that_is_taken_out_leaves_the_order_of_the_others_as_it_is() -> None:
    """However the tasks of both are queued: those of the other run start by rank, those of this one never."""
    ranks = np.random.default_rng(0).permutation(41).astype(float)
    ranks[0] = -1.0
    graph = TaskGraph.of(tuple(f"t{t}" for t in range(41)), [0] * 41, (Resource("d0", 0),), [])
    backend = HandBackend(frozenset({0}))
    with Engine(graph, backend, ranks=ranks) as engine:
        first, second = engine.submit(0), engine.submit(1)
        backend.await_start()
        engine.cancel(first)
        backend.end(1)
        backend.end(2)
        assert second.wait(FOREVER_S)
    assert backend.calls_of("start") == [0, *np.argsort(ranks).tolist()]


INTERRUPTED = """
import signal, sys, threading
from hsdag.runtime.executor.engine import Engine
from tests.hsdag.runtime.executor.hand_backend import HandBackend, chain

signal.signal(signal.SIGINT, signal.default_int_handler)
HandBackend.poll_s = None if sys.argv[1] == "None" else 0.001
backend = HandBackend(frozenset({0}))
with Engine(chain(1), backend) as engine:
    run = engine.submit()
    main = threading.main_thread().ident or 0
    threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT)).start()
    try:
        run.wait(60.0)
    except KeyboardInterrupt:
        backend.end()
        sys.exit(0 if run.wait(60.0) else 1)
sys.exit(2)
"""


def test_an_interrupted_wait_leaves_the_run_in_flight(poll_s: float | None) -> None:
    """In a process of its own: one that has loaded OpenVINO's CPU plugin twice may crash at its first Ctrl-C."""
    subprocess.run([sys.executable, "-c", INTERRUPTED, str(poll_s)], check=True, cwd=ROOT)


def test_the_error_of_a_task_holds_nothing_of_it() -> None:
    """The tensors in the frames of a task that ran out of memory must go before its run does."""

    class Greedy(NullBackend):
        held: weakref.ref[np.ndarray] | None = None

        def start(self, attempt: Attempt, inbox: Inbox) -> bool:  # noqa: ARG002
            tensor = np.zeros(3)
            self.held = weakref.ref(tensor)
            raise MemoryError("no memory")

    backend = Greedy()
    gc.disable()
    try:
        with Engine(chain(1), backend) as engine:
            run = engine.submit()
            assert re.search("no memory", failure(run))
            assert backend.held is not None
            assert backend.held() is None
    finally:
        gc.enable()


def test_the_clock_of_virtual_time_fails_no_run() -> None:
    """Ends that a device tells in its own time may come before the start; the interval is then empty."""
    with Engine(chain(3), VirtualBackend(np.zeros(3))) as engine:
        run = engine.submit()
        assert run.wait(FOREVER_S)
    start_s, end_s = run.times
    assert (end_s >= start_s).all()
