"""Hosts without a process of their own."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any

from hsdag.fleet.job import Exchange, Job, JobLost
from hsdag.fleet.pool import Host


class Here(Host):
    """Computes jobs in the thread of the pool."""

    name = "here"

    def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:  # noqa: ARG002
        return job.run(tuple(pickle.loads(shared.content) for shared in job.needs), exchange)

    def revive(self) -> bool:
        return True


class Silent(Host):
    """Computes until nobody needs the answer, and gives none."""

    name = "silent"

    def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:  # noqa: ARG002
        while not is_over():
            time.sleep(0.01)
        raise JobLost("nobody needs it")

    def revive(self) -> bool:
        return True
