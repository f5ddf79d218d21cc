"""What is compiled before the clock of a search starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from numba.core import event

from hsdag.ir.kernels import compiling, is_interpreted
from hsdag.placers.base import Placer
from hsdag.runtime.problems.problem import Problem

ONCE = "compiling the search for this machine, once; this takes about a minute"
FEW_PLANS = 12
"""Plans, beside every single device, that a method of few plans has simulated at most."""


class _Compiling(event.Listener):
    """Says that something is compiled, when the first function is; and how long all of them took."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._depth, self._begin_s = say, 0, 0.0
        self.is_said, self.seconds = False, 0.0

    def on_start(self, _: event.Event) -> None:
        if not self.is_said:
            self.is_said = True
            self._say(ONCE)
        if self._depth == 0:
            self._begin_s = time.monotonic()
        self._depth += 1

    def on_end(self, _: event.Event) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.monotonic() - self._begin_s


def compile_search(
    placer: Placer[Any],
    problem: Problem,
    evaluate: Callable[[], object],
    *,
    takes_order: bool,
    say: Callable[[str], None],
    once: Callable[[], object] = lambda: None,
) -> float:
    """Have the kernels compiled of the placer and of ``evaluate``, which has some plan simulated; then call ``once``.

    What a method of few plans calls on a small problem is interpreted, and not compiled at all. The seconds of
    compiling, 0 where nothing was compiled. ``say`` hears of it when the first function is. Raises OptionError for a
    problem that the placer cannot search.
    """
    placer.check(problem)
    graph = problem.units.fine
    steps = float((graph.num_ops + len(graph.edge_src)) * problem.num_devices * (FEW_PLANS + problem.num_devices))
    listener = _Compiling(say)
    with event.install_listener("numba:compile", listener):
        with compiling(is_short=placer.tries_few and is_interpreted(steps)):
            evaluate()
        with compiling(is_short=is_interpreted(steps)):
            placer.prepare(problem, takes_order=takes_order)
        once()
    return listener.seconds
