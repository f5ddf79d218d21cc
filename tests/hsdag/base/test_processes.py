"""Processes of ours: what they answer, how long they may take, and what is said of one that ends."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from hsdag.base import processes
from hsdag.base.errors import HsdagError
from hsdag.base.processes import CandidateFailed, WorkerClient, WorkerDefect, _Watchdog, serve

COMMAND = (sys.executable, str(Path(__file__).with_name("odd_worker.py")))
COMPILE: Any = "self.channel.tell(Compiling('GPU.0')), time.sleep(600)"
FAIL = "self.fail(ExecutionError('it does not compile'))"
ONE: Any = "1"


def client_of(setup: Any = ONE) -> WorkerClient:
    """Of an OddWorker, on a machine with a third of a gigabyte."""
    return WorkerClient(setup, COMMAND, lambda: 1e9 / 3, "odd")


def test_one_worker_answers_whatever_its_candidates_do_and_asks_back() -> None:
    greet: Any = "self.channel.ask('who is there?')"
    score: Any = "Path('/proc/self/oom_score_adj').read_text()"
    failures: list[tuple[Any, type[Exception], str]] = [
        (FAIL, CandidateFailed, "^it does not compile$"),
        ("self.fail(MemoryError())", CandidateFailed, "the memory of the process does not suffice"),
        ("self.fail(HsdagError('no such device'))", HsdagError, "no such device"),
        ("{}['b']", WorkerDefect, r"in the worker process: KeyError in <module>, line \d+: 'b'"),
    ]
    with client_of() as client:
        client.on_question = {"who is there?": "me"}.get
        client.should_abandon = lambda: True  # but not at once
        for request, error, message in failures:
            assert client.call(greet, 60.0) == "me"
            with pytest.raises(error, match=message) as failure:
                client.call(request, 60.0)
            assert not getattr(failure.value, "lost_worker", False)
        assert client.call(score, 60.0) == "1000\n"  # which the kernel ends first
        assert (client.num_starts, client.is_running) == (1, True)


@pytest.mark.parametrize(
    ("request_", "memory_bytes", "reason"),
    [
        ("sys.stdout.write('first\\nlast'), sys.stdout.flush(), os.kill(os.getpid(), signal.SIGSEGV)", None,
         r"was ended by SIGSEGV \(last\)"),
        ("os._exit(3)", None, "exited with code 3"),
        ("[time.sleep(0.05) or b'x' * 20_000_000 for _ in range(999)]", None,
         r"took more than 0\.3 GB of memory and was killed"),
        ("[time.sleep(0.05) or b'x' * 20_000_000 for _ in range(999)]", 2e8,
         r"took more than 0\.2 GB of memory and was killed"),
        ("os.write(0, b'half'), time.sleep(600)", None, r"gave no answer within 2 s and was killed"),
        (COMPILE, None, r"gave no answer within 2 s while it compiled for GPU\.0 and was killed"),
    ],
)  # fmt: skip
def test_a_worker_that_ends_is_late_or_takes_all_memory_is_lost_with_the_reason_and_replaced(
    request_: Any, memory_bytes: float | None, reason: str
) -> None:
    is_late, heard = "no answer" in reason, list[str]()
    with client_of() as client:
        client.memory_bytes, client.on_wait = memory_bytes, heard.append
        client.call(ONE, 60.0)
        with pytest.raises(CandidateFailed, match=f"^the odd {reason}$") as failure:
            client.call(request_, 2.0 if is_late else 60.0, 60.0)
        assert (failure.value.lost_worker, failure.value.is_late, client.is_running) == (True, is_late, False)
        assert client.call(ONE, 60.0) == 1
        assert (client.num_starts, heard) == (2, [])


def test_what_takes_long_to_compile_is_told_once_and_an_interrupted_search_waits_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = list[str]()
    for name, seconds in (("POLL_S", 0.02), ("TOLD_AFTER_S", 0.0), ("PATIENCE_S", 0.5)):
        monkeypatch.setattr(processes, name, seconds)
    with client_of() as client:
        client.on_wait, client.should_abandon = heard.append, lambda: bool(heard)
        with pytest.raises(CandidateFailed, match="the odd was given up when the search was interrupted"):
            client.call(COMPILE, 60.0)
        assert heard == ["compiling for GPU.0; a GPU may take minutes the first time"]
        client.should_abandon = iter(()).__next__
        with pytest.raises(StopIteration):
            client.call(COMPILE, 60.0)
        assert not client.is_running


def test_a_worker_that_cannot_be_set_up_says_so_at_every_call() -> None:
    for setup, error, message in (
        (FAIL, HsdagError, "the odd process cannot start: it does not compile"),
        ("{}['b']", WorkerDefect, "'b'"),
    ):
        with client_of(setup) as client:
            for _ in range(2):
                with pytest.raises(error, match=message):
                    client.call(ONE, 60.0)
                assert not client.is_running


@pytest.mark.parametrize(
    ("compiling", "busy", "size_bytes", "ends_s"),
    [
        (None, 1.0, 100.0, [0.2, 0.4, 0.5]),
        ("GPU.0", 0.9 * processes.BUSY, 0.0, [0.2, 0.4, 0.5]),
        ("GPU.0", 1.1 * processes.BUSY, 0.0, [0.2, 0.4, 0.6, 0.8, 0.9]),
        (None, 1.0, 101.0, []),
    ],
)
def test_a_limit_stands_still_while_a_process_compiles_and_computes(
    monkeypatch: pytest.MonkeyPatch, compiling: str | None, busy: float, size_bytes: float, ends_s: list[float]
) -> None:
    """For 0.4 s at most."""
    now_s, killed = [0.0], list[Any]()
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: now_s[-1]))
    monkeypatch.setattr(processes, "kill_with_children", killed.append)
    monkeypatch.setattr(_Watchdog, "_used", lambda _: (busy * now_s[-1], size_bytes))
    process: Any = "process"
    watchdog = _Watchdog(process, 0.5, 0.4, 100.0)
    watchdog.compiling = compiling
    monkeypatch.setattr(watchdog._is_cancelled, "wait", lambda s: now_s.append(now_s[-1] + s))
    watchdog.run()
    assert now_s[1:] == pytest.approx(ends_s)
    assert (watchdog.is_overdue, watchdog.is_overfull, killed) == (bool(ends_s), not ends_s, [process])


def test_a_process_has_used_its_processor_time_and_memory_that_is_not_mapped() -> None:
    own: Any = SimpleNamespace(pid=os.getpid())
    used_s, size_bytes = _Watchdog(own, 1.0, 0.0, 0.0)._used()
    assert used_s == pytest.approx(time.process_time(), abs=0.05)
    assert 0 < size_bytes < psutil.Process().memory_info().rss


def test_a_worker_waits_for_its_setup_as_long_as_it_takes_and_then_for_so_many_seconds() -> None:
    waits = list[float | None]()

    def poll(seconds: float | None) -> bool:
        waits.append(seconds)
        return len(waits) < 3

    serve(lambda *_: SimpleNamespace(handle=str), SimpleNamespace(poll=poll, recv=str, send=str), 7.0)
    assert waits == [None, 7.0, 7.0]
