"""A worker whose plugin crashes or hangs for real: candidates are told apart by the device of their first op."""

from __future__ import annotations

import os
import signal
import sys
import time

from hsdag.runtime.measuring.worker import Answer, Request, Worker, main


class FaultyWorker(Worker):
    """Kills itself, sleeps, or raises at its n-th compilation, as the command line says."""

    compilations = 0

    def open(self, request: Request) -> Answer:
        """Compile, or fail the way a device plugin does."""
        fault, nth = sys.argv[1], int(sys.argv[2])
        self.compilations += 1
        if self.compilations == nth:
            if fault == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            if fault == "hang":
                time.sleep(3600)
            if fault == "divide" and request.get("devices"):
                os.kill(os.getpid(), signal.SIGFPE)
            if fault == "raise":
                raise RuntimeError("the device refuses this model")
        return super().open(request)


if __name__ == "__main__":
    main(FaultyWorker)
