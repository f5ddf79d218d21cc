"""Serving: a process that answers requests, one after another.

Requests and answers go through the socket that it has as stdin; what libraries print goes to stdout and stderr.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol

from hsdag.ir.errors import ExecutionError, HsdagError
from hsdag.runtime.measuring.messages import Compiling, Numbered
from hsdag.runtime.measuring.worker_client import CandidateFailed, WorkerDefect


class Handler(Protocol):
    """What answers the requests that follow the setup; ``tell`` sends the client notes ahead of an answer."""

    tell: Callable[[Compiling], None]

    def handle(self, request: Any) -> Any:
        """The answer. Raises ExecutionError for what fails, HsdagError for a user's mistake."""


def serve(make_worker: Callable[[Any], Handler], connection: Any) -> None:
    """Answer requests until they end. The first one is the setup."""
    worker: Handler | None = None
    with contextlib.suppress(EOFError):
        while True:
            request: Numbered = connection.recv()
            answer: Any = None
            try:
                if worker is None:
                    worker = make_worker(request.content)
                else:
                    worker.tell = partial(_send, connection, request.number)
                    answer = worker.handle(request.content)
            except (ExecutionError, MemoryError) as error:
                answer = CandidateFailed(str(error) or "the memory of the process does not suffice")
            except HsdagError as error:
                answer = HsdagError(str(error))
            except Exception as error:  # noqa: BLE001 - whatever else is raised is a defect, which the client raises again
                where = traceback.extract_tb(error.__traceback__)[-1]
                summary = f"{type(error).__name__} in {where.name}, line {where.lineno}: {error}"
                answer = WorkerDefect(f"in the measuring process: {summary}")
                answer.add_note(traceback.format_exc())
            _send(connection, request.number, answer)


def _send(connection: Any, number: int, content: Any) -> None:
    connection.send(Numbered(number, content))


def main(make_worker: Callable[[Any], Handler]) -> None:
    """Serve over the socket that the process has as stdin."""
    _die_with_parent()
    serve(make_worker, Connection(os.dup(0)))


def _die_with_parent() -> None:
    """On Linux, have the kernel end this process when the one that started it is killed."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
