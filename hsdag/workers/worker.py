"""The worker in a process of this machine: computes jobs, one after another."""

from __future__ import annotations

from typing import Any

from hsdag.ir.processes import Channel, main
from hsdag.workers.pool import Job


class LocalWorker:
    """Computes jobs; the client replies with what others have found."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def handle(self, job: Job[Any]) -> Any:
        """The answer of the job."""
        return job.run(self._channel.ask)


if __name__ == "__main__":
    main(lambda _, channel: LocalWorker(channel))
