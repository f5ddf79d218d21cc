"""Serving: a process that answers requests, one after another.

Requests and answers go through the socket that it has as stdin; what libraries print goes to stdout and stderr.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol

from hsdag.ir.errors import ExecutionError, HsdagError
from hsdag.runtime.measuring.child_process import die_with_parent, go_first
from hsdag.runtime.measuring.messages import Numbered, Question
from hsdag.runtime.measuring.worker_client import CandidateFailed, WorkerDefect


class Channel:
    """The way to the client, while the request of a number is being answered."""

    def __init__(self, connection: Any) -> None:
        self._connection, self.number = connection, 0

    def tell(self, content: Any) -> None:
        """Send a note, ahead of the answer, or the answer itself."""
        self._connection.send(Numbered(self.number, content))

    def ask(self, content: Any) -> Any:
        """What the client replies. Raises EOFError when it has gone."""
        self.tell(Question(content))
        return self._connection.recv()


class Handler(Protocol):
    """What answers the requests that follow the setup."""

    def handle(self, request: Any) -> Any:
        """The answer. Raises ExecutionError for what fails, HsdagError for a user's mistake."""


def serve(make_worker: Callable[[Any, Channel], Handler], connection: Any) -> None:
    """Answer requests until they end. The first one is the setup."""
    worker: Handler | None = None
    channel = Channel(connection)
    with contextlib.suppress(EOFError):
        while True:
            request: Numbered = connection.recv()
            channel.number = request.number
            answer: Any = None
            try:
                if worker is None:
                    worker = make_worker(request.content, channel)
                else:
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
            channel.tell(answer)


def main(make_worker: Callable[[Any, Channel], Handler]) -> None:
    """Serve over the socket that the process has as stdin."""
    die_with_parent()
    go_first()
    serve(make_worker, Connection(os.dup(0)))
