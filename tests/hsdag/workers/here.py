"""Hosts without a process of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hsdag.workers.pool import Exchange, Host, HostLost, Job, JobLost


class Here(Host):
    """Computes jobs in the thread of the pool; it is lost for good after ``left`` of them."""

    def __init__(self, name: str = "here", left: float = float("inf")) -> None:
        self.name, self.left, self.is_closed = name, left, False

    def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:  # noqa: ARG002
        if self.left <= 0:
            raise HostLost("the node is gone")
        self.left -= 1
        return job.run(exchange)

    def close(self) -> None:
        self.is_closed = True


class Silent(Host):
    """Computes until nobody needs the answer, and gives none."""

    name = "silent"

    def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:  # noqa: ARG002
        while not is_over():
            time.sleep(0.01)
        raise JobLost("nobody needs it")
