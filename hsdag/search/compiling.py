"""What is compiled before the clock of a search starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from numba.core import event

from hsdag.placers.base import Placer
from hsdag.runtime.problems.problem import Problem

ONCE = "compiling the search for this machine, once; this takes about a minute"


class _First(event.Listener):
    """Says that something is compiled, when the first function is."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self.is_said = say, False

    def on_start(self, _: event.Event) -> None:
        if not self.is_said:
            self.is_said = True
            self._say(ONCE)

    def on_end(self, _: event.Event) -> None:
        pass


def compile_search(
    placer: Placer[Any],
    problem: Problem,
    evaluate: Callable[[], object],
    *,
    takes_order: bool,
    say: Callable[[str], None],
) -> float:
    """Have the kernels compiled of the placer and of ``evaluate``, which has some plan simulated.

    The seconds which that took, 0 where all of them had been compiled before. ``say`` hears of it when the first one is
    compiled. Raises OptionError for a problem that the placer cannot search.
    """
    placer.check(problem)
    listener, begin_s = _First(say), time.monotonic()
    with event.install_listener("numba:compile", listener):
        evaluate()
        placer.prepare(problem, takes_order=takes_order)
    return time.monotonic() - begin_s if listener.is_said else 0.0
