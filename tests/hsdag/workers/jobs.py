"""Jobs for tests, in a module that workers can import."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hsdag.base.errors import OptionError, option
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.plan import Plan
from hsdag.workers.pool import Exchange, Findings, Job


@dataclass(frozen=True)
class Add(Job[int]):
    """Adds 100."""

    number: int

    def run(self, exchange: Exchange) -> int:  # noqa: ARG002
        return self.number + 100


@dataclass(frozen=True)
class Looks(Job[list[str]]):
    """Says where modules are looked for."""

    def run(self, exchange: Exchange) -> list[str]:  # noqa: ARG002
        return sys.path


@dataclass(frozen=True)
class Dies(Job[int]):
    """Ends its worker so many times, counted in a folder, then answers."""

    folder: Path
    times: int

    def run(self, exchange: Exchange) -> int:  # noqa: ARG002
        num_deaths = len(list(self.folder.iterdir()))
        if num_deaths < self.times:
            (self.folder / str(num_deaths)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return num_deaths


@dataclass(frozen=True)
class Raises(Job[int]):
    """A user's mistake, a defect, or what is too large for the memory."""

    error: type[Exception]

    def run(self, exchange: Exchange) -> int:  # noqa: ARG002
        raise OptionError(f"{option('budget')} must be more") if self.error is OptionError else self.error("a test")


@dataclass(frozen=True)
class Sleeps(Job[int]):
    """Takes so many seconds, whatever others find."""

    seconds: float

    def run(self, exchange: Exchange) -> int:  # noqa: ARG002
        time.sleep(self.seconds)
        return 0


@dataclass(frozen=True)
class Finds(Job[float]):
    """Finds a plan, and waits until another job has found a better one."""

    value: float

    def run(self, exchange: Exchange) -> float:
        own = Findings(Plan(np.array([0, 1])), self.value, Bound(self.value / 2, "a test"))
        while (known := exchange(own)).value >= 3.0 and not known.is_over:
            time.sleep(0.05)
        return known.value
