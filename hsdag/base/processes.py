"""Worker processes that serve requests in order and are restarted after a crash or hang.

Requests and answers go through a connection of their own; libraries print to a file. An answer is the value that was
asked for, or an exception that the client raises. An answer that nobody waits for any more can only come from a
process that has been ended.
"""

from __future__ import annotations

import contextlib
import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Generic, NoReturn, Protocol, Self, TypeVar, cast

from hsdag.base.errors import ExecutionError, HsdagError
from hsdag.base.host import connection_to_parent, die_first, die_with_parent, kill_with_children, start_process

A = TypeVar("A")

START_LIMIT_S = 600.0
"""Seconds in which a worker must import OpenVINO, read the model and load the plugins."""

POLL_S, PATIENCE_S = 0.5, 5.0
"""Seconds between a waiting call's checks whether to go on, and seconds after which it gives up if it should not."""

COMPILING_LIMIT_S = 1800.0
"""Seconds for which a busy worker may compile beyond the limit of its call: GPUs may take minutes the first time."""

TOLD_AFTER_S = 5.0
"""Tell the user after this number of seconds of compilation."""

BUSY = 0.02
"""Seconds of processor time per second, at or below which a process does not count as computing."""

WATCH_S = 0.2
"""Seconds between two looks at a working process."""
MEMORY_SHARE = 0.9
"""Largest share of the memory that is free when a process starts that it may take."""

EXIT_LIMIT_S = 10.0
"""Seconds in which a process must end."""


class Request(Generic[A]):
    """A request to a worker, answered by an ``A``."""


@dataclass(frozen=True)
class Compiling:
    """A note that a worker sends before its answer: the devices for which it compiles now, None once that is done."""

    target: str | None


@dataclass(frozen=True)
class Question:
    """A question of the worker to its client before its answer; the reply is the bare content."""

    content: Any


class CandidateFailed(Exception):  # noqa: N818 - an expected ending, not an error
    """A candidate that did not compile or run.

    ``lost_worker`` says that the worker process died or was killed, ``is_late`` that it was killed at its time limit.
    """

    def __init__(self, reason: str, *, lost_worker: bool = False, is_late: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.lost_worker = lost_worker
        self.is_late = is_late


class WorkerDefect(Exception):  # noqa: N818 - not the user's error
    """An error in the worker's own code, with its traceback as a note. Ends with exit code 1."""


class Channel:
    """A worker's connection to the client while it answers a request."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def tell(self, content: Any) -> None:
        """Send a note before the answer, or the answer itself."""
        self._connection.send(content)

    def ask(self, content: Any) -> Any:
        """Ask the client and return its reply. Raises EOFError when the client has gone."""
        self.tell(Question(content))
        return self._connection.recv()


class Handler(Protocol):
    """An object that answers the requests after the setup."""

    def handle(self, request: Any) -> Any:
        """Answer a request. Raises ExecutionError for a failure, HsdagError for a user's mistake."""


def serve(make_worker: Callable[[Any, Channel], Handler], connection: Any, idle_s: float | None = None) -> None:
    """Answer requests, the setup first, until the connection is closed or no request comes for ``idle_s`` seconds."""
    worker: Handler | None = None
    channel = Channel(connection)
    with contextlib.suppress(EOFError):
        while connection.poll(None if worker is None else idle_s):
            request: Any = connection.recv()
            answer: Any = None
            try:
                if worker is None:
                    worker = make_worker(request, channel)
                else:
                    answer = worker.handle(request)
            except (ExecutionError, MemoryError) as error:
                answer = CandidateFailed(str(error) or "the memory of the process does not suffice")
            except HsdagError as error:
                answer = HsdagError(str(error))
            except Exception as error:  # noqa: BLE001 - whatever else is raised is a defect, which the client raises again
                where = traceback.extract_tb(error.__traceback__)[-1]
                summary = f"{type(error).__name__} in {where.name}, line {where.lineno}: {error}"
                answer = WorkerDefect(f"in the worker process: {summary}")
                answer.add_note(traceback.format_exc())
            channel.tell(answer)


def python_command(code: str) -> tuple[str, ...]:
    """Return the command of a Python process with code that imports this hsdag, be it installed or not.

    With -P, Python looks for no module in the current folder, where an openvino.py may lie beside a downloaded model.
    """
    home = str(Path(sys.modules["hsdag"].__path__[0]).parent)
    return sys.executable, "-P", "-c", f"import sys; {home!r} in sys.path or sys.path.insert(0, {home!r}); {code}"


def process_command(module: str) -> tuple[str, ...]:
    """Return the command of a process that runs a module which reads models but converts none.

    The module of OpenVINO's converter is blocked, as importing it takes as long as all other imports together.
    """
    without = "sys.modules['openvino.tools.ovc'] = None"
    run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return python_command(f"import runpy; {without}; {run}")


def main(make_worker: Callable[[Any, Channel], Handler]) -> None:
    """Serve the process that started this one, for as long as that lives."""
    die_with_parent()
    die_first()
    serve(make_worker, connection_to_parent())


class Closing(ABC):
    """Base of context managers that close themselves at the end."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(eq=False)
class WorkerClient(Closing):
    """A client that calls a worker process, each call with a time limit.

    A worker that dies, misses a limit, or takes more than ``memory_bytes`` is killed with all its children; the call
    raises CandidateFailed and the next one starts a new worker. Use it as a context manager.

    Attributes:
        setup: The first request to each worker process.
        command: The command that starts it.
        usable_bytes: Returns the free memory when a worker starts; it may take MEMORY_SHARE of it.
        memory_bytes: The memory that a worker may take instead, if not None.
        start_s: The seconds that the last start took.
        should_abandon: While it returns True, a call gives up after PATIENCE_S.
        on_wait: Called with a message when a compilation takes long.
        on_question: Replies to a question of the worker.
    """

    setup: Request[None]
    command: Sequence[str]
    usable_bytes: Callable[[], float] = lambda: float("inf")
    name: str = "worker"
    num_starts: int = field(default=0, init=False)
    start_s: float = field(default=0.0, init=False)
    memory_bytes: float | None = field(default=None, init=False)
    should_abandon: Callable[[], bool] = lambda: False
    on_wait: Callable[[str], None] = lambda _: None
    on_question: Callable[[Any], Any] = lambda _: None
    _most_bytes: float = field(default=math.inf, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _connection: Connection | None = field(default=None, init=False)
    _is_set_up: bool = field(default=False, init=False)
    _log: IO[bytes] = field(default_factory=tempfile.TemporaryFile, init=False)  # closed with the client

    @property
    def is_running(self) -> bool:
        """Return whether a worker process is up."""
        return self._process is not None

    def call(self, request: Request[A], limit_s: float, compiling_s: float = 0.0) -> A:
        """Send a request and wait for its answer.

        For up to ``compiling_s`` seconds, while the worker compiles and computes, the limit stands still.

        Raises CandidateFailed when the candidate fails, or the worker dies or takes more than ``limit_s``; HsdagError
        when the worker cannot even start on this model and these devices; WorkerDefect for an error in its own code.
        """
        self.begin()
        if not self._is_set_up:
            begin_s = time.monotonic()
            try:
                self._exchange(self.setup, START_LIMIT_S)
                self._is_set_up, self.start_s = True, time.monotonic() - begin_s
            except CandidateFailed as failure:
                raise HsdagError(f"the {self.name} process cannot start: {failure.reason}") from failure
            finally:
                if not self._is_set_up:
                    self.restart()
        return self._exchange(request, limit_s, compiling_s)

    def close(self) -> None:
        """End the worker."""
        self.restart()
        self._log.close()

    def begin(self) -> None:
        """Start the process, if there is none, without waiting for it."""
        if self._process is not None:
            return
        self._log.seek(0)
        self._log.truncate()
        self.num_starts += 1
        self._most_bytes = MEMORY_SHARE * self.usable_bytes() if self.memory_bytes is None else self.memory_bytes
        self._process, self._connection = start_process(self.command, self._log)

    def _exchange(self, request: Request[A], limit_s: float, compiling_s: float = 0.0) -> A:
        """Send and wait; a watchdog kills a worker that is late, which ends any wait, even in mid-message."""
        assert self._process is not None
        watchdog = _Watchdog(self._process, limit_s, compiling_s, self._most_bytes)
        watchdog.start()
        has_ended = False
        try:
            answer = self._answer_to(request, watchdog)
        except (EOFError, OSError):
            has_ended = True
        except BaseException:  # half an answer may be left
            self.restart()
            raise
        finally:
            watchdog.cancel()
            watchdog.join()
        if watchdog.is_overfull:
            self._lost(f"took more than {self._most_bytes / 1e9:.1f} GB of memory and was killed")
        if watchdog.is_overdue:
            meanwhile = f" while it compiled for {watchdog.compiling}" if watchdog.compiling else ""
            self._lost(f"gave no answer within {limit_s:g} s{meanwhile} and was killed", is_late=True)
        if has_ended:
            self._lost(self._epitaph())
        if isinstance(answer, Exception):
            raise answer
        return cast(A, answer)

    def _answer_to(self, request: Request[Any], watchdog: _Watchdog) -> object:
        """Send a request, and read on until its answer comes. Raises EOFError or OSError when the worker ends."""
        assert self._connection is not None
        begin_s = time.monotonic()
        tell_s = math.inf
        self._connection.send(request)
        while True:
            if self._connection.poll(POLL_S):
                answer: object = self._connection.recv()
                if isinstance(answer, Question):
                    self._connection.send(self.on_question(answer.content))
                elif isinstance(answer, Compiling):
                    watchdog.compiling = answer.target
                    tell_s = time.monotonic() + TOLD_AFTER_S
                else:
                    return answer
            if watchdog.compiling and time.monotonic() > tell_s:
                minutes = "; a GPU may take minutes the first time" if "GPU" in watchdog.compiling else ""
                self.on_wait(f"compiling for {watchdog.compiling}{minutes}")
                tell_s = math.inf
            if self.should_abandon() and time.monotonic() - begin_s > PATIENCE_S:
                self._lost("was given up when the search was interrupted")

    def _lost(self, reason: str, *, is_late: bool = False) -> NoReturn:
        self.restart()
        raise CandidateFailed(f"the {self.name} {reason}", lost_worker=True, is_late=is_late)

    def _epitaph(self) -> str:
        """Return how the process ended, with the last line it printed."""
        assert self._process is not None
        try:
            code = self._process.wait(EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            return "closed its connection and went on"
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"{how} ({lines[-1].strip()[:200]})" if lines else how

    def restart(self) -> None:
        """End the process; the next call starts another one."""
        process, self._process = self._process, None
        self._is_set_up = False
        if process is None:
            return
        kill_with_children(process)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in a driver that cannot be interrupted
            process.wait(EXIT_LIMIT_S)
        assert self._connection is not None
        self._connection.close()


class _Watchdog(threading.Thread):
    """A thread that kills a process when it takes too much memory or its time limit is over.

    The limit stands still while the process compiles and computes. ``compiling`` is the target that it compiles for,
    as it last told.
    """

    def __init__(self, process: subprocess.Popen[bytes], limit_s: float, compiling_s: float, most_bytes: float) -> None:
        super().__init__(daemon=True)
        self.compiling: str | None = None
        self.is_overdue = self.is_overfull = False
        self._process = process
        self._left_s = limit_s
        self._compiling_s = compiling_s
        self._most_bytes = most_bytes
        self._is_cancelled = threading.Event()

    def cancel(self) -> None:
        """Stop watching and let the process live."""
        self._is_cancelled.set()

    def run(self) -> None:
        """Wait until a limit is passed or the watchdog is cancelled."""
        now_s = time.monotonic()
        used_s, size_bytes = self._used()
        while self._left_s > 0 and size_bytes <= self._most_bytes:
            if self._is_cancelled.wait(min(self._left_s, WATCH_S)):
                return
            begin_s, before_s = now_s, used_s
            now_s = time.monotonic()
            used_s, size_bytes = self._used()
            passed_s = now_s - begin_s
            if self.compiling and self._compiling_s > 0 and used_s - before_s > BUSY * passed_s:
                self._compiling_s -= passed_s
            else:
                self._left_s -= passed_s
        self.is_overfull = size_bytes > self._most_bytes
        self.is_overdue = not self.is_overfull
        kill_with_children(self._process)

    def _used(self) -> tuple[float, float]:
        """Return the processor seconds that the process has taken, and its bytes of memory without mapped files."""
        import psutil  # slow to import

        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            times, memory = process.cpu_times(), process.memory_info()
            return float(times.user + times.system), float(memory.rss - getattr(memory, "shared", 0))
        return 0.0, 0.0
