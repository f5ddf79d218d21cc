"""Progress of a search on stderr: phase, time left, best so far; and Ctrl-C, which asks it to end."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

from hsdag.cli.output import console, milliseconds, say

if TYPE_CHECKING:
    from hsdag.evaluators.recording import Event, RecordingEvaluator
    from hsdag.search.driver import Watcher

LOG_EVERY_S = 5.0
"""Between two lines where stderr is not a terminal."""


class SearchProgress:
    """Shows a search while it runs. Use as a context manager.

    The first Ctrl-C asks the search to end with its best so far; the second one ends the program.
    """

    def __init__(self, budget_s: float) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._budget_s = budget_s
        self._stop = False
        self._last_log = 0.0
        self._handler: Any = None
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[detail]}"))
        shown = console(is_error=True)
        self._bar = Progress(*columns, console=shown, transient=True, disable=not sys.stderr.isatty())
        self._task = self._bar.add_task("starting", total=budget_s, detail="")

    @property
    def watcher(self) -> Watcher:
        """What to hand to the search."""
        from hsdag.search.driver import Watcher

        return Watcher(self._phase, self._event, self._step, self._simulated, lambda: self._stop)

    def __enter__(self) -> SearchProgress:
        self._handler = signal.signal(signal.SIGINT, self._interrupt)
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        signal.signal(signal.SIGINT, self._handler)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        say("interrupted: ending with the best so far (Ctrl-C again to give up)")

    def _phase(self, phase: str) -> None:
        self._bar.update(self._task, description=phase, detail="")
        if self._bar.disable:
            say(phase)

    def _event(self, _event: Event, recorder: RecordingEvaluator) -> None:
        left_s = max(self._budget_s - recorder.elapsed_s, 0.0)
        best = recorder.best()
        shown = f"best {milliseconds(best[0].score.value)} ms" if best else "nothing has run yet"
        detail = f"{recorder.num_evaluations} placements, {shown}, {left_s:.0f} s left"
        self._bar.update(self._task, completed=recorder.elapsed_s, detail=detail)
        self._say_now_and_then(detail)

    def _step(self, step: str) -> None:
        self._bar.update(self._task, detail=step)
        self._say_now_and_then(step)

    def _say_now_and_then(self, detail: str) -> None:
        if self._bar.disable and time.monotonic() - self._last_log > LOG_EVERY_S:
            self._last_log = time.monotonic()
            say(detail)

    def _simulated(self, simulated: int, measured: int) -> None:
        self._last_log = -LOG_EVERY_S  # always worth a line
        self._step(f"{simulated} placements simulated, {measured} measured")
