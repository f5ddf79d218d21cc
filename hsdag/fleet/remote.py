"""The worker as an actor of a Ray cluster: one thread computes, another one exchanges findings."""

from __future__ import annotations

import threading
from typing import Any

from hsdag.fleet.job import Findings, Job
from hsdag.fleet.messages import Keep, Outcome
from hsdag.fleet.worker import JobWorker
from hsdag.version import __version__


class RemoteWorker:
    """Computes jobs one after another; ``swap`` may be called meanwhile."""

    def __init__(self) -> None:
        self._worker, self._lock = JobWorker(), threading.Lock()
        self._known, self._own = Findings(), Findings()

    def version(self) -> str:
        """Of hsdag on this node."""
        return __version__

    def keep(self, value: Keep) -> None:
        """Keep a value for jobs."""
        self._worker.keep(value)

    def compute(self, job: Job[Any]) -> tuple[Outcome, Findings]:
        """What a job answers, or what it raises; and what it has found."""
        with self._lock:
            self._known = self._own = Findings()
        outcome = self._worker.run(job, self._exchange)
        return outcome, self._own

    def swap(self, known: Findings) -> Findings:
        """Take over what all have found; what the present job has."""
        with self._lock:
            self._known = known
            return self._own

    def _exchange(self, own: Findings) -> Findings:
        with self._lock:
            self._own = own
            return self._known.joined(own)
