"""A worker that divides by zero, as a plugin may, over a placement that it opens first."""

from __future__ import annotations

import os
import signal

from hsdag.base.processes import Channel, main
from hsdag.runtime.measuring.messages import Candidate, Opened, WorkerSetup
from hsdag.runtime.measuring.worker import Worker


class FaultyWorker(Worker):
    """Ends itself."""

    num_opened = 0

    def __init__(self, setup: WorkerSetup, channel: Channel) -> None:
        super().__init__(setup, channel.tell)

    def open(self, key: str, candidate: Candidate, inference_limit_s: float | None = None) -> Opened:
        """Compile, or crash."""
        self.num_opened += 1
        if candidate.devices and self.num_opened == 1:
            os.kill(os.getpid(), signal.SIGFPE)
        return super().open(key, candidate, inference_limit_s)


if __name__ == "__main__":
    main(FaultyWorker)
