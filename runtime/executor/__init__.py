"""One work-conserving engine for all devices: tasks, resources, an event loop, back ends."""

from hsdag.runtime.executor.engine import Engine
from hsdag.runtime.executor.tasks import (
    Attempt,
    Backend,
    Inbox,
    NullBackend,
    Resource,
    Run,
    RunStatus,
    TaskGraph,
    TaskTimes,
)

__all__ = [
    "Attempt",
    "Backend",
    "Engine",
    "Inbox",
    "NullBackend",
    "Resource",
    "Run",
    "RunStatus",
    "TaskGraph",
    "TaskTimes",
]
