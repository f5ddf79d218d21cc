"""A host without a process of its own."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from hsdag.fleet.job import Exchange, Job
from hsdag.fleet.pool import Host


class Here(Host):
    """Computes jobs in the thread of the pool."""

    name = "here"

    def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:  # noqa: ARG002
        return job.run(tuple(pickle.loads(shared.content) for shared in job.needs), exchange)

    def revive(self) -> bool:
        return True
