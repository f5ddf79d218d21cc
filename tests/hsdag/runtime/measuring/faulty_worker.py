"""A worker in which things go wrong for real at its n-th compilation, as the command line says."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from hsdag.ir.processes import Channel, main
from hsdag.runtime.measuring.candidate import Candidate, Opened
from hsdag.runtime.measuring.messages import WorkerSetup
from hsdag.runtime.measuring.worker import Worker


def refuse() -> None:
    """As a plugin does that cannot run a model."""
    raise RuntimeError("the device refuses this model")


def mistake() -> None:
    """As a defect of ours does."""
    _ = {"a": 1}["b"]


def end_by(number: signal.Signals) -> Callable[[], None]:
    """As a crash in a plugin does."""
    return lambda: os.kill(os.getpid(), number)


FAULTS: dict[str, Callable[[], object]] = {
    "crash": end_by(signal.SIGSEGV),
    "divide": end_by(signal.SIGFPE),
    "raise": refuse,
    "defect": mistake,
}


class FaultyCore:
    """A core whose n-th compilation goes wrong."""

    def __init__(self, core: Any, fault: str, nth: int) -> None:
        self._core, self._fault, self._left = core, fault, nth

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def compile_model(self, *args: Any) -> Any:
        self._left -= 1
        if self._left == 0 and self._fault in FAULTS:
            FAULTS[self._fault]()
        return self._core.compile_model(*args)


class FaultyWorker(Worker):
    """Its core fails; "defect" and "divide" are outside of it."""

    num_opened = 0

    def __init__(self, setup: WorkerSetup, channel: Channel) -> None:
        fault, nth = sys.argv[1], int(sys.argv[2])
        super().__init__(setup, channel.tell)
        self.core = FaultyCore(self.core, fault, 0 if fault == "divide" else nth)

    def open(self, key: str, candidate: Candidate, inference_limit_s: float | None = None) -> Opened:
        """Compile; make a mistake where the fault is a defect, divide by zero over a placement that comes n-th."""
        self.num_opened += 1
        is_nth_placement = candidate.devices and self.num_opened == int(sys.argv[2])
        if sys.argv[1] == "defect" or (sys.argv[1] == "divide" and is_nth_placement):
            FAULTS[sys.argv[1]]()
        return super().open(key, candidate, inference_limit_s)


if __name__ == "__main__":
    main(FaultyWorker)
