"""Lane: what carries out the tasks of one resource, one after another."""

from __future__ import annotations

from abc import ABC, abstractmethod

from hsdag.runtime.executor import Attempt, Inbox
from hsdag.runtime.torch_backend.state import RunState


class Lane(ABC):
    """Starts tasks in order. One thread at a time calls the methods."""

    @abstractmethod
    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:
        """Start a task; True when it has ended already."""

    def poll(self, inbox: Inbox) -> None:  # noqa: B027 - lanes with threads report by themselves
        """Report tasks that have ended."""

    def abandon(self, attempt: Attempt) -> None:  # noqa: B027 - lanes that end at once have none running
        """Let the tasks behind this one go on without it."""

    def close(self) -> None:  # noqa: B027 - nothing to free
        """Free threads and memory."""


class InlineLane(Lane):
    """Results that are shared, not moved: there is nothing to wait for."""

    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:  # noqa: ARG002
        """Do it at once."""
        state.perform(attempt.task)
        return True
