"""A worker that does what an expression says, which it is set up with or asked for."""

from __future__ import annotations

import os  # noqa: F401 - expressions use these
import signal  # noqa: F401
import sys  # noqa: F401
import time  # noqa: F401
from pathlib import Path  # noqa: F401

from hsdag.base.errors import ExecutionError, HsdagError  # noqa: F401
from hsdag.base.processes import Channel, Compiling, main  # noqa: F401


class OddWorker:
    """Evaluates."""

    def __init__(self, setup: str, channel: Channel) -> None:
        self.channel = channel
        self.handle(setup)

    def fail(self, error: BaseException) -> None:
        """Raise an error."""
        raise error

    def handle(self, request: str) -> object:
        """The value of an expression; ``self`` is the worker."""
        return eval(request, {**globals(), "self": self})


if __name__ == "__main__":
    main(OddWorker)
