"""NullBackend: tasks that do nothing, for tests and for measuring the engine itself."""

from __future__ import annotations

from hsdag.runtime.executor.backend import Attempt, Backend, Inbox


class NullBackend(Backend):
    """Tasks that end when they start; ``started`` lists each with its slot."""

    def __init__(self) -> None:
        self.started: list[tuple[int, int]] = []

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:  # noqa: ARG002
        """Note the task and its slot."""
        self.started.append((attempt.task, attempt.slot))
        return True
