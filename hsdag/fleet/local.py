"""Workers in processes of this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hsdag.fleet.job import Exchange, Job, JobLost
from hsdag.fleet.messages import RunJob, Setup, answer_of, missing
from hsdag.fleet.pool import Host
from hsdag.ir.errors import ExecutionError, HsdagError
from hsdag.ir.processes import CandidateFailed
from hsdag.runtime.measuring.messages import worker_client

NAME = "this machine"
COMMAND = (sys.executable, "-m", "hsdag.fleet.worker")
LONGEST_S = 30 * 24 * 3600.0
"""Jobs have limits of their own."""


class LocalHost(Host):
    """A process that is started for the first job, and again after it was lost."""

    is_here = True

    def __init__(self) -> None:
        self.name = NAME
        self._client = worker_client(Setup(), COMMAND)
        self._kept: set[str] = set()

    def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:
        """As Host says."""
        self._client.on_question, self._client.should_abandon = exchange, is_over
        if not self._client.is_running:
            self._kept.clear()
        try:
            for value in missing(self._kept, job.needs):
                self._client.call(value, LONGEST_S)
            outcome = self._client.call(RunJob(job), LONGEST_S)
        except CandidateFailed as failure:
            if failure.lost_worker:
                raise JobLost(failure.reason) from failure
            self._kept.clear()  # of which one may have been too large
            raise ExecutionError(failure.reason) from failure
        except HsdagError as error:  # which no job raises here: the process was lost as it started
            raise JobLost(str(error)) from error
        return answer_of(outcome)

    def revive(self) -> bool:
        """A process can always be started again."""
        return True

    def close(self) -> None:
        """End the process."""
        self._client.close()
