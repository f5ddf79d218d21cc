"""The worker: computes jobs, one after another, and keeps what several of them need."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from hsdag.fleet.job import Exchange, Findings, Job
from hsdag.fleet.messages import Keep, Outcome, RunJob
from hsdag.ir.errors import ExecutionError, HsdagError
from hsdag.ir.processes import Channel, Request, WorkerDefect, main


class JobWorker:
    """Computes jobs with the values that they need."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def keep(self, value: Keep) -> None:
        """Keep a value, and perhaps forget all others."""
        if value.is_only:
            self._values.clear()
        self._values[value.key] = pickle.loads(value.content)

    def run(self, job: Job[Any], exchange: Exchange) -> Outcome:
        """What a job answers, or what it raises."""
        try:
            return job.run(tuple(self._values[shared.key] for shared in job.needs), exchange), None
        except MemoryError:
            return None, ExecutionError(f"the memory of a worker does not suffice for {type(job).__name__}")
        except HsdagError as error:
            return None, error
        except Exception as error:  # noqa: BLE001 - a defect, which who waits for the answer raises again
            where = traceback.extract_tb(error.__traceback__)[-1]
            return None, WorkerDefect(
                f"in a worker: {type(error).__name__} in {where.name}, line {where.lineno}: {error}"
            )


class LocalWorker:
    """A worker in a process of this machine; its client knows what others have found."""

    def __init__(self, channel: Channel) -> None:
        self._worker, self._channel = JobWorker(), channel

    def handle(self, request: Request[Any]) -> Any:
        """The answer to a request, by its type."""
        if isinstance(request, Keep):
            return self._worker.keep(request)
        assert isinstance(request, RunJob)
        return self._worker.run(request.job, self._exchange)

    def _exchange(self, own: Findings) -> Findings:
        found: Findings = self._channel.ask(own)
        return found


if __name__ == "__main__":
    main(lambda _, channel: LocalWorker(channel))
