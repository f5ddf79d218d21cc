"""The engine: who starts when, what becomes of a run that fails, hangs or is cancelled, and closing."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hsdag.base.errors import ExecutionError
from hsdag.runtime.executor.engine import Engine
from hsdag.runtime.executor.tasks import Attempt, Inbox, Resource, Run, TaskGraph
from tests.hsdag.runtime.executor.hand_backend import FOREVER_S, HandBackend, VirtualBackend, await_until, chain

ROOT = Path(__file__).parents[4]


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
    await_until(lambda: all(thread.name != "hsdag-engine" for thread in threading.enumerate()))


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What went to threading.excepthook."""
    found: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(" ".join(str(args.exc_value).split())))
    return found


def failure(run: Run) -> str:
    with pytest.raises(ExecutionError, match=r".") as caught:
        run.wait(FOREVER_S)
    return str(caught.value)


@pytest.mark.parametrize(
    ("priority", "starts"),
    [
        (None, "0a0 0b0 1c0 1e0 2a1 2b1 2d0 3c1 5e1 5f0 6d1 9f1"),  # as they become ready
        ([0, 2, 1, 1, 0, 0], "0a0 0c0 1b0 2a1 2c1 2e0 3b1 3d0 6e1 6f0 7d1 10f1"),
    ],
)
def test_of_what_is_ready_a_free_device_takes_the_oldest_run_then_the_smallest_rank_then_the_first_task(
    priority: list[int] | None, starts: str
) -> None:
    """The time, task and run of each start, by hand: two of a, b, c and f run at a time, and one of d and e."""
    devices, edges = (Resource("two", 0, capacity=2), Resource("one", 1)), [(0, 3), (1, 3), (1, 4), (3, 5), (4, 5)]
    backend = VirtualBackend(np.array([2.0, 1.0, 1.0, 3.0, 1.0, 1.0]))
    graph = TaskGraph(tuple("abcdef"), [0, 0, 0, 1, 1, 0], devices, edges)
    with Engine(graph, backend, priority=None if priority is None else np.array(priority, dtype=float)) as engine:
        backend.run(engine, 2)
    started = sorted((at_s, "abcdef"[task], slot) for at_s, slot, task in backend.starts)
    assert " ".join(f"{at_s:g}{task}{slot}" for at_s, task, slot in started) == starts


def streams(capacity: int, resource: list[int], edges: list[tuple[int, int]]) -> TaskGraph:
    """Tasks on two resources in order, and on resource 2, which is not."""
    resources = (Resource("s0", 0, None, capacity, True), Resource("s1", 1, None, capacity, True), Resource("cpu", 2))
    return TaskGraph(tuple(f"t{t}" for t in range(len(resource))), resource, resources, edges)


def test_a_resource_in_order_takes_a_chain_up_to_its_capacity_before_any_task_of_it_has_ended() -> None:
    backend = HandBackend(frozenset(range(5)))
    with Engine(streams(3, [0] * 5, [(t, t + 1) for t in range(4)]), backend) as engine:
        run = engine.submit()
        backend.await_calls("start", 3)
        assert not run.wait(0.02)
        assert backend.calls_of("start") == [0, 1, 2]
        for count in range(1, 6):
            backend.end(count)
        assert run.wait(FOREVER_S)
    assert backend.calls_of("start") == [0, 1, 2, 3, 4]


def test_other_resources_in_order_take_what_waits_for_a_task_that_has_started_and_those_out_of_order_do_not() -> None:
    backend = HandBackend(frozenset({0, 3}))
    with Engine(streams(2, [0, 1, 2, 2, 0], [(0, 1), (0, 2), (3, 4)]), backend) as engine:
        run = engine.submit()
        backend.await_calls("start", 3)
        assert not run.wait(0.02)
        assert sorted(backend.calls_of("start")) == [0, 1, 3]  # 2 waits for the end of 0, and 4 for that of 3
        backend.end(1)
        backend.end(2)
        assert run.wait(FOREVER_S)
    start_s, end_s = run.times
    assert start_s[1] == end_s[0]  # though it was started before


def test_what_could_run_now_goes_before_what_waits_for_another_resource_whatever_their_ranks() -> None:
    """Task 1 waits for 0 on the other resource; of 2, 3 and 4 there one is taken at a time."""
    graph, priority = streams(1, [0, 1, 1, 1, 1], [(0, 1)]), np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    backend = HandBackend(frozenset({0, 2, 3}))
    with Engine(graph, backend, priority=priority) as engine:
        run = engine.submit()
        backend.end(2)  # task 2: of those that are ready, 3 is next
        backend.await_calls("start", 3)
        assert backend.calls_of("start") == [0, 2, 3]
        backend.end(1)  # task 0: now 1 could run, too
        backend.end(3)
        assert run.wait(FOREVER_S)
    assert backend.calls_of("start") == [0, 2, 3, 1, 4]


def test_an_early_task_is_started_once_and_fails_with_its_run() -> None:
    backend = HandBackend(frozenset({0, 1}))
    with Engine(streams(2, [0, 1], [(0, 1)]), backend) as engine:
        run = engine.submit()
        backend.await_calls("start", 2)
        backend.end(1, OSError("gone"))
        assert not run.wait(0.02)
        backend.end(2)
        assert failure(run) == "'t0' on device s0 failed: gone"
        backend.by_hand = frozenset()
        assert engine.submit().wait(FOREVER_S)
    assert backend.calls_of("start") == [0, 1, 0, 1]


def test_a_graph_without_tasks_ends_at_once() -> None:
    with Engine(chain(0), HandBackend()) as engine:
        assert engine.submit().wait(FOREVER_S)


def test_a_task_that_ends_at_once_does_not_hold_up_another_device() -> None:
    backend = HandBackend()
    devices = (Resource("a", 0), Resource("b", 1))
    graph = TaskGraph(tuple("abcdef"), [0, 0, 0, 0, 1, 1], devices, [(0, 1), (1, 2), (2, 3), (4, 5)])
    with Engine(graph, backend) as engine:
        assert engine.submit().wait(FOREVER_S)
    assert set(backend.calls_of("start")[:2]) == {0, 4}


def test_the_reporting_thread_starts_the_next_task() -> None:
    backend = HandBackend(frozenset({0, 1}))
    with Engine(chain(2), backend) as engine:
        run = engine.submit()
        backend.await_calls("start")
        reporter = threading.Thread(target=backend.end, name="reporter")
        reporter.start()
        reporter.join()
        backend.end(2)
        run.wait(FOREVER_S)
    assert "reporter" in backend.threads


def test_the_engines_thread_alone_starts_tasks_where_a_resource_is_in_order() -> None:
    backend = HandBackend(frozenset({0, 1}))
    with Engine(streams(1, [0, 2], [(0, 1)]), backend) as engine:
        run = engine.submit()
        backend.end(1)
        backend.end(2)
        run.wait(FOREVER_S)
    assert backend.threads == {"hsdag-engine"}


def test_on_end_must_not_wait_for_another_run_and_may_close_the_engine_whoever_calls_it() -> None:
    refused: list[bool] = []

    def wait_and_close(_: Run) -> None:
        with pytest.raises(RuntimeError, match="must not wait"):
            second.wait()
        refused.append(True)
        engine.close()

    backend = HandBackend(frozenset({0}))
    engine = Engine(chain(1), backend)
    engine.submit(0, on_end=wait_and_close)
    backend.await_calls("start")
    second = engine.submit(1)
    backend.end()
    assert "was closed" in failure(second)
    engine.close()
    assert (refused, backend.calls_of("close")) == ([True], [0])


def test_on_end_may_submit_the_next_run_on_the_same_slot() -> None:
    ended, over = [], threading.Event()

    def again(run: Run) -> None:
        ended.append(run.number)
        over.set() if len(ended) == 50 else engine.submit(on_end=again)

    with Engine(chain(2), HandBackend()) as engine:
        engine.submit(on_end=again)
        assert over.wait(FOREVER_S)
    assert ended == list(range(1, 51))


@pytest.mark.parametrize("starts", [False, True])
def test_a_task_that_fails_is_named_with_its_device_on_one_line_and_nothing_more_is_started(starts: bool) -> None:
    backend = HandBackend(frozenset({1}) if starts else frozenset(), () if starts else ("start 1",))
    with Engine(chain(3, 2), backend) as engine:
        run = engine.submit()
        if starts:
            backend.end(error=RuntimeError("start is\n  broken"))
        assert failure(run) == "'t1' on device d1 failed: start is broken"
        cause = run.error and run.error.__cause__
        assert isinstance(cause, RuntimeError)
        assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)] == (["start", "note"] * (not starts))
        assert backend.calls_of("start") == [0, 1]


@pytest.mark.parametrize("grace_s", [FOREVER_S, 0.05])
def test_a_failed_run_waits_a_while_for_its_other_tasks_before_its_slot_is_put_away(grace_s: float) -> None:
    backend = HandBackend(frozenset({0, 1}))
    graph = TaskGraph(("t0", "t1"), [0, 1], (Resource("d0", 0), Resource("d1", 1)), [])
    with Engine(graph, backend, grace_s=grace_s) as engine:
        run = engine.submit()
        backend.await_calls("start", 2)
        backend.end(1, OSError("gone"))
        if grace_s == FOREVER_S:
            assert not run.wait(0.02)
            assert (backend.calls_of("cancel"), backend.calls_of("run_ended")) == ([1], [])
            backend.end(2)
        assert "gone" in failure(run)
        assert backend.calls_of("run_ended") == [0]


def test_a_hanging_task_is_named_and_its_device_taken_until_it_comes_back() -> None:
    backend = HandBackend(frozenset({1}))
    with Engine(chain(3, 2), backend, grace_s=0.01) as engine:
        run = engine.submit(limit_s=0.2)
        assert failure(run) == "the inference of 'tasks' took more than 0.2 s; it waited for 't1' on device d1"
        assert backend.calls_of("cancel") == [1]
        backend.by_hand = frozenset()
        second = engine.submit()  # whose limit, never, is not the next one
        assert failure(engine.submit(limit_s=0.02)).endswith("it waited for its turn")
        backend.end(error=OSError("late"))
        backend.end()
        assert second.wait(FOREVER_S)
        assert backend.calls_of("start") == [0, 1, 0, 0, 1, 2]


def test_an_end_told_twice_counts_once() -> None:
    backend = HandBackend(frozenset({0, 1}))
    with Engine(chain(3), backend) as engine:
        run = engine.submit()
        backend.end(1)
        backend.end(1)
        backend.await_calls("start", 2)
        backend.end(1)
        assert not run.wait(0.02)
        backend.end(2)
        assert run.wait(FOREVER_S)
        assert backend.calls_of("start") == [0, 1, 2]


@pytest.mark.parametrize("method", ["cancel", "run_ended", "close"])
def test_a_backend_that_breaks_while_a_run_is_taken_out_ends_no_thread(method: str, reported: list[str]) -> None:
    backend = HandBackend(frozenset({0}), raising=(method,))
    with Engine(chain(1), backend, grace_s=0.0) as engine:
        assert "took more than" in failure(engine.submit(limit_s=0.01))
        backend.by_hand = frozenset()
        backend.end()
        backend.raising.discard("run_ended")
        assert engine.submit().wait(FOREVER_S)
    assert reported == [f"{method} is broken"]


def test_a_run_that_cannot_be_put_away_has_failed() -> None:
    with Engine(chain(1), HandBackend(raising=("run_ended",))) as engine:
        assert failure(engine.submit()) == "the inference of 'tasks' could not be put away: run_ended is broken"


def test_what_on_end_raises_is_reported_and_the_next_run_works(reported: list[str]) -> None:
    def fail(_: Run) -> None:
        raise SystemExit(3)

    with Engine(chain(2), HandBackend()) as engine:
        assert engine.submit(on_end=fail).wait(FOREVER_S)
        assert engine.submit().wait(FOREVER_S)
    assert reported == ["3"]


def test_a_task_that_ends_the_thread_fails_all_runs_and_closes_the_engine(reported: list[str]) -> None:
    class Leaving(HandBackend):
        def start(self, attempt: Attempt, inbox: Inbox) -> bool:  # noqa: ARG002
            runs.append(engine.submit(1))
            raise SystemExit

    backend, runs = Leaving(), list[Run]()
    engine = Engine(chain(2), backend)
    runs.append(engine.submit(on_end=lambda _: engine.close()))
    assert "the executor broke down: SystemExit()" in failure(runs[0])
    assert "the executor broke down: SystemExit()" in failure(runs[1])
    engine.close()
    with pytest.raises(ExecutionError, match="is closed"):
        engine.submit()
    assert backend.calls_of("close") == [0]
    assert reported == [""]  # of the thread, and nothing of who closes within it


def test_a_run_that_is_cancelled_says_so_and_leaves_the_order_of_the_others_as_it_is() -> None:
    """However the tasks of both are queued: those of the other run start by rank, those of this one never."""
    priority = np.random.default_rng(0).permutation(41).astype(float)
    priority[0] = -1.0
    graph = TaskGraph(tuple(f"t{t}" for t in range(41)), [0] * 41, (Resource("d0", 0),), [])
    backend = HandBackend(frozenset({0}))
    with Engine(graph, backend, priority=priority) as engine:
        first, second = engine.submit(0), engine.submit(1)
        backend.await_calls("start")
        engine.cancel(first)
        backend.end(1)
        assert failure(first) == "the inference of 'tasks' was cancelled"
        backend.end(2)
        assert second.wait(FOREVER_S)
    assert backend.calls_of("start") == [0, *np.argsort(priority).tolist()]


@pytest.mark.parametrize("num_runs", [0, 3])
def test_whoever_closes_cancels_what_runs_and_comes_back_to_a_backend_that_was_closed_once(num_runs: int) -> None:
    backend = HandBackend(frozenset({0}))
    engine = Engine(chain(2), backend, grace_s=0.05)
    runs = [engine.submit(slot) for slot in range(num_runs)]
    backend.await_calls("start", min(num_runs, 1))

    def close(_: int) -> list[int]:
        engine.close()
        return backend.calls_of("close")

    with ThreadPoolExecutor(4) as closers:
        assert list(closers.map(close, range(num_runs + 1))) == [[0]] * (num_runs + 1)
    assert all("was closed while an inference ran" in failure(run) for run in runs)
    assert sorted(backend.calls_of("run_ended")) == list(range(num_runs))


def test_closing_goes_on_when_what_it_cancelled_has_come_back() -> None:
    backend = HandBackend(frozenset({0}))
    engine = Engine(chain(1), backend, grace_s=9 * FOREVER_S)
    engine.submit()
    backend.await_calls("start")
    with ThreadPoolExecutor(1) as closer:
        closed = closer.submit(engine.close)
        backend.await_calls("cancel")
        backend.end()
        closed.result(FOREVER_S)
    assert backend.calls_of("close") == [0]


@pytest.mark.parametrize("is_used", [False, True])
def test_an_engine_that_is_forgotten_closes_its_backend_and_no_callback_of_a_run_holds_it(is_used: bool) -> None:
    backend = HandBackend()
    gc.disable()
    try:
        engine = Engine(chain(2), backend)
        if is_used:
            run = engine.submit(on_end=engine.cancel)
            assert run.wait(FOREVER_S)
        del engine
        backend.await_calls("close")
    finally:
        gc.enable()


def test_a_program_that_ends_with_a_run_in_flight_cancels_it() -> None:
    program = """
from hsdag.runtime.executor.engine import Engine
from tests.hsdag.runtime.executor.hand_backend import HandBackend, chain
backend = HandBackend(frozenset({0}))
backend.close = lambda: print('closed', flush=True)
engine = Engine(chain(1), backend, grace_s=0.01)
run = engine.submit(on_end=lambda run: print(run.error is not None, flush=True))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert (done.stdout.split(), done.stderr) == (["True", "closed"], "")
