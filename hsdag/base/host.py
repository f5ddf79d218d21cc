"""Functions that only some operating systems have, with fallbacks: file locks, limits, process groups.

Tests run on Linux. One of them removes all these functions, as on Windows, and checks that commands still work.
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing.connection
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

try:
    import fcntl
    import resource
except ImportError:  # not on POSIX
    fcntl = resource = None  # type: ignore[assignment]

PROC, SYS = Path("/proc"), Path("/sys")
"""Folders in which Linux describes processes and the machine; other systems have none."""

HIGHEST_SCORE = 1000
"""Highest oom_score_adj on Linux: the process with the highest score is killed first when memory runs out."""

HANDLE = "HSDAG_CONNECTION"
"""Environment variable with the handle that connects a process on Windows to the process that started it."""


def own_cpus() -> set[int]:
    """Return the numbers of the processors on which this process may run."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def command_line(words: Sequence[str]) -> str:
    """Return words as one types them at the system's shell."""
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def lock_file(descriptor: int) -> None:
    """Lock an open file until it is closed; without effect on systems that have no locks.

    Raises BlockingIOError where another process has it, another OSError where its file system has no locks.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def limit_memory(size_bytes: int) -> int:
    """Limit the memory of this process to ``size_bytes``, or to its present limit if lower; return the limit."""
    if resource is not None:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        size_bytes = size_bytes if most == resource.RLIM_INFINITY else min(size_bytes, most)
        resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, most))
    return size_bytes


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """End this process if the body takes more than ``seconds``, even where it hangs in a library."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def die_with_parent() -> None:
    """Make the kernel end this process when its parent is killed; on Linux only."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def die_first() -> None:
    """Make the kernel end this process before others when the machine runs out of memory; on Linux only."""
    with suppress(OSError):
        (PROC / "self" / "oom_score_adj").write_text(str(HIGHEST_SCORE), encoding="ascii")


def start_process(command: Sequence[str], log: IO[bytes]) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a process that prints to ``log``; return it and the connection that is its ``connection_to_parent``."""
    ours, theirs = multiprocessing.Pipe()
    with theirs:
        if sys.platform == "win32":  # a connection is no file there that could be stdin
            os.set_handle_inheritable(theirs.fileno(), True)
            environment = {**os.environ, HANDLE: str(theirs.fileno())}
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            apart = subprocess.CREATE_NEW_PROCESS_GROUP  # a Ctrl-C at the console does not reach it
            return subprocess.Popen(command, **streams, close_fds=False, env=environment, creationflags=apart), ours
        return subprocess.Popen(command, stdin=theirs.fileno(), stdout=log, stderr=log, start_new_session=True), ours


def connection_to_parent() -> Connection:
    """Return the connection to the process that started this one by ``start_process``."""
    if sys.platform == "win32":
        return multiprocessing.connection.PipeConnection(int(os.environ.pop(HANDLE)))
    return Connection(os.dup(0))


def kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """Kill a process of ``start_process`` and all its descendants."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return
    import psutil  # takes long to load

    killed: list[psutil.Process] = []
    with suppress(psutil.Error):
        parent = psutil.Process(process.pid)
        killed = [parent, *parent.children(recursive=True)]
    for target in killed:  # the parent first, as it might go on when its child ends
        with suppress(psutil.Error):
            target.kill()
