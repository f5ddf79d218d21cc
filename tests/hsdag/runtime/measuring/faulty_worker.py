"""A worker that crashes for real over the n-th candidate that it opens, or the n-th if that is a placement."""

from __future__ import annotations

import os
import signal
import sys

from hsdag.ir.processes import Channel, main
from hsdag.runtime.measuring.candidate import Candidate, Opened
from hsdag.runtime.measuring.messages import WorkerSetup
from hsdag.runtime.measuring.worker import Worker


class FaultyWorker(Worker):
    """Argument "crash" ends it over whatever comes n-th, "divide" over a placement alone."""

    num_opened = 0

    def __init__(self, setup: WorkerSetup, channel: Channel) -> None:
        super().__init__(setup, channel.tell)

    def open(self, key: str, candidate: Candidate, inference_limit_s: float | None = None) -> Opened:
        """Compile, or crash as a plugin does."""
        self.num_opened += 1
        fault, nth = sys.argv[1], int(sys.argv[2])
        if self.num_opened == nth and (fault == "crash" or candidate.devices):
            os.kill(os.getpid(), signal.SIGSEGV if fault == "crash" else signal.SIGFPE)
        return super().open(key, candidate, inference_limit_s)


if __name__ == "__main__":
    main(FaultyWorker)
