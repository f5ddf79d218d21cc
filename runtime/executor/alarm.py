"""Alarm: wakes one thread; unlike ``threading.Event`` it may be set by a finalizer, whatever it interrupts."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue


class Alarm:
    """One thread waits and clears, any may set. Setting takes no lock that the same thread could hold already."""

    def __init__(self) -> None:
        self._tokens: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """End the wait, or the next one."""
        if self._tokens.empty():
            self._tokens.put(None)

    def clear(self) -> None:
        """Forget what was set so far."""
        with suppress(Empty):
            while True:
                self._tokens.get_nowait()

    def wait(self, timeout_s: float) -> None:
        """Wait until it is set."""
        with suppress(Empty):
            self._tokens.get(timeout=timeout_s)
