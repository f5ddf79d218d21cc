"""NullBackend: tasks that do nothing, at once or after a time, for tests and for measuring the engine itself."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from hsdag.ir.graph import FloatArray
from hsdag.runtime.executor.backend import Attempt, Backend, Inbox


class NullBackend(Backend):
    """Tasks of no work. ``duration_s`` [T] makes them take time on a timer; without, they end when they start.

    ``failures`` are tasks that raise, with their message; ``hanging`` are tasks that never end.
    """

    def __init__(
        self,
        duration_s: FloatArray | None = None,
        failures: Mapping[int, str] | None = None,
        hanging: frozenset[int] = frozenset(),
    ) -> None:
        self._duration_s: list[float] | None = None if duration_s is None else duration_s.tolist()
        self._failures = dict(failures or {})
        self._hanging = hanging
        self.started: list[tuple[int, int]] = []
        self.abandoned: list[int] = []
        self.cancelled: list[int] = []
        self.is_closed = False

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:
        """Note the task and its slot."""
        self.started.append((attempt.task, attempt.slot))
        if attempt.task in self._failures:
            raise RuntimeError(self._failures[attempt.task])
        if attempt.task in self._hanging:
            return False
        if self._duration_s is None:
            return True
        timer = threading.Timer(self._duration_s[attempt.task], inbox.done, (attempt,))
        timer.daemon = True
        timer.start()
        return False

    def cancel(self, attempt: Attempt) -> None:
        """Note it."""
        self.cancelled.append(attempt.task)

    def abandon(self, attempt: Attempt) -> None:
        """Note it."""
        self.abandoned.append(attempt.task)

    def close(self) -> None:
        """Note it."""
        self.is_closed = True
