"""What only some operating systems have, with a fallback where it is missing: locks, limits, groups of processes.

Linux is what tests run on. A test takes all of it away, as on Windows, and has commands do their work all the same.
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
"""Where Linux tells of processes and of the machine; nothing is there elsewhere."""

HIGHEST_SCORE = 1000
"""Of processes that Linux ends where memory runs out; the highest one goes first."""

HANDLE = "HSDAG_CONNECTION"
"""The environment variable that tells a process on Windows which handle leads to the one that started it."""


def own_cpus() -> set[int]:
    """The processors that this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def command_line(words: Sequence[str]) -> str:
    """Words as they are typed at the shell of the system."""
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def lock_file(descriptor: int) -> None:
    """Lock an open file until it is closed; nobody is kept out where there are no locks.

    Raises BlockingIOError where another process has it, another OSError where its file system has no locks.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def limit_memory(size_bytes: int) -> int:
    """Have this process get no more memory than so many bytes, or than it may anyway; how many that is."""
    if resource is not None:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        size_bytes = size_bytes if most == resource.RLIM_INFINITY else min(size_bytes, most)
        resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, most))
    return size_bytes


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """End this process, even where it hangs in a library, unless what is inside ends within so many seconds."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def die_with_parent() -> None:
    """On Linux, have the kernel end this process when the one that started it is killed."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def die_first() -> None:
    """On Linux, have the kernel end this process before others where the memory of the machine runs out."""
    with suppress(OSError):
        (PROC / "self" / "oom_score_adj").write_text(str(HIGHEST_SCORE), encoding="ascii")


def start_process(command: Sequence[str], log: IO[bytes]) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a process that prints to a file; it, and the way to it, which ``connection_to_parent`` is at its end."""
    ours, theirs = multiprocessing.Pipe()
    with theirs:
        if sys.platform == "win32":  # where a connection is no file that a process could have as stdin
            os.set_handle_inheritable(theirs.fileno(), True)
            environment = {**os.environ, HANDLE: str(theirs.fileno())}
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            apart = subprocess.CREATE_NEW_PROCESS_GROUP  # which a Ctrl-C at the console does not reach
            return subprocess.Popen(command, **streams, close_fds=False, env=environment, creationflags=apart), ours
        return subprocess.Popen(command, stdin=theirs.fileno(), stdout=log, stderr=log, start_new_session=True), ours


def connection_to_parent() -> Connection:
    """The way to the process that started this one by ``start_process``."""
    if sys.platform == "win32":
        return multiprocessing.connection.PipeConnection(int(os.environ.pop(HANDLE)))
    return Connection(os.dup(0))


def kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """Kill a process of ``start_process`` and those that it started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return
    import psutil  # takes long to load

    killed: list[psutil.Process] = []
    with suppress(psutil.Error):
        parent = psutil.Process(process.pid)
        killed = [parent, *parent.children(recursive=True)]
    for each in killed:  # the parent first, which would else go on when its child ends
        with suppress(psutil.Error):
            each.kill()
