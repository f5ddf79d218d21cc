"""Faults: how an exception is handled that a task, a backend or a callback raises in the thread of an engine."""

from __future__ import annotations

import threading
import traceback
from typing import TypeVar

Error = TypeVar("Error", bound=BaseException)


def one_line(error: BaseException) -> str:
    """The text of an error on one line, or its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def without_own_frame(error: Error) -> Error:
    """The error without the frame that caught it, which would hold the run that holds the error."""
    behind = error.__traceback__
    return error.with_traceback(None if behind is None else behind.tb_next)


def forget_locals(error: BaseException) -> None:
    """Empty the frames behind an error, and behind those it came from: they may hold tensors of a device."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            traceback.clear_frames(link.__traceback__)
            chain += [link.__cause__, link.__context__]


def report(error: BaseException) -> None:
    """Show an error that nobody can catch as Python shows those that end a thread."""
    args = (type(error), error, error.__traceback__, threading.current_thread())
    threading.excepthook(threading.ExceptHookArgs(args))
