"""Jobs for tests, in a module that workers can import."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hsdag.fleet.job import Exchange, Findings, Job, Shared
from hsdag.ir.errors import OptionError
from hsdag.runtime.problems.bounds import Bound
from hsdag.runtime.problems.plan import Plan


@dataclass(frozen=True)
class Add(Job[int]):
    """Adds to what is shared."""

    number: int
    needs: tuple[Shared, ...] = ()

    def run(self, values: tuple[Any, ...], exchange: Exchange) -> int:  # noqa: ARG002
        return int(self.number + sum(values))


def _fill_memory() -> None:
    raise MemoryError


class TooLarge:
    """A value for which no worker has the memory."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _fill_memory, ()


@dataclass(frozen=True)
class Where(Job[str]):
    """Says where it is computed, which the host knows."""

    def run(self, values: tuple[Any, ...], exchange: Exchange) -> str:  # noqa: ARG002
        return "in a worker"


@dataclass(frozen=True)
class Dies(Job[int]):
    """Ends its worker so many times, counted in a folder, then answers."""

    folder: Path
    times: int

    def run(self, values: tuple[Any, ...], exchange: Exchange) -> int:  # noqa: ARG002
        num_deaths = len(list(self.folder.iterdir()))
        if num_deaths < self.times:
            (self.folder / str(num_deaths)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return num_deaths


@dataclass(frozen=True)
class Refuses(Job[int]):
    """A user's mistake, or a defect."""

    is_defect: bool

    def run(self, values: tuple[Any, ...], exchange: Exchange) -> int:  # noqa: ARG002
        if self.is_defect:
            raise ZeroDivisionError("by zero")
        raise OptionError("--budget must be more")


@dataclass(frozen=True)
class Slow(Job[int]):
    """Sleeps the first time that a file is missing, and answers at once afterwards."""

    flag: Path
    seconds: float

    def run(self, values: tuple[Any, ...], exchange: Exchange) -> int:  # noqa: ARG002
        if not self.flag.exists():
            self.flag.touch()
            time.sleep(self.seconds)
            return 1
        return 2


@dataclass(frozen=True)
class Finds(Job[float]):
    """Finds a plan, and waits until another job has found a better one."""

    value: float

    def run(self, values: tuple[Any, ...], exchange: Exchange) -> float:  # noqa: ARG002
        own = Findings(Plan(np.array([0, 1])), self.value, Bound(self.value / 2, "a test"))
        while (known := exchange(own)).value >= 3.0 and not known.is_over:
            time.sleep(0.05)
        return known.value
