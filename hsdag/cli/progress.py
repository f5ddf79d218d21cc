"""Progress on stderr: phase, per cent, time left, best so far; and Ctrl-C, which asks a search to end."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from hsdag.cli.output import console, milliseconds, say

if TYPE_CHECKING:
    from rich.table import Table

    from hsdag.scoring.recording import Event, RecordingEvaluator
    from hsdag.search.driver import Watcher

LOG_EVERY_S = 5.0
"""Between two lines where stderr is not a terminal."""

COMPARING = "comparing"  # what the phases of the final comparison begin with
WAITING = ("compiling the search", "loading the method")  # and those that are no part of the budget

NUM_FIRST = 64
"""Events among which are those of devices alone."""

_COUNTED = re.compile(r"(\d+) of (\d+)$")


class Estimate:
    """How far the work is, and how long it still takes.

    The work is one search of about ``budget_s`` seconds and a comparison of ``final_s``, or several of them, unless
    updates are counted, which then take as long as those before. Without a budget nothing is known before that.
    """

    def __init__(
        self, budget_s: float | None, final_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._budget_s = budget_s or 0.0
        self._each_s = (budget_s or 0.0) + final_s
        self._clock = clock
        self._begin_s = self._began_s = clock()
        self._waits_from_s: float | None = None
        self._done, self._count = 0, 1
        self._is_known = bool(self._each_s)

    def begin(self, number: int, count: int) -> None:
        """One more search begins."""
        self._done, self._count = number - 1, count
        self._began_s = self._clock()

    def wait(self, *, waits: bool) -> None:
        """Whether what begins now is not part of the work."""
        now_s = self._clock()
        waited_s = 0.0 if self._waits_from_s is None else now_s - self._waits_from_s
        self._begin_s, self._began_s = self._begin_s + waited_s, self._began_s + waited_s
        self._waits_from_s = now_s if waits else None

    def compare(self) -> None:
        """The search is over, early or late; the comparison begins."""
        self._began_s = self._clock() - self._budget_s

    def update(self, done: int, count: int) -> None:
        """So many updates are done."""
        self._done, self._count = done, count
        self._began_s = self._clock()
        self._is_known = True
        self._each_s = (self._began_s - self._begin_s) / max(done, 1)

    @property
    def left_s(self) -> float:
        """Seconds that are left; none where it takes longer than was planned."""
        return (self._count - self._done) * self._each_s - self._spent_s

    @property
    def share(self) -> float:
        """Of the work, from 0 to 1."""
        return (self._done + (self._spent_s / self._each_s if self._each_s else 0.0)) / max(self._count, 1)

    @property
    def words(self) -> str:
        """Both, as progress has them; empty where nothing is known."""
        return f"{100 * self.share:.0f}%, {in_words(self.left_s)} left" if self._is_known else ""

    @property
    def _spent_s(self) -> float:
        return min(self._clock() - self._began_s, self._each_s)


class SearchProgress:
    """Shows a search, or several, while they run. Use as a context manager.

    A phase that ends in "2 of 5" begins the second of five searches, a step that does so is an update. The first Ctrl-C
    asks the search to end with its best so far; the second one ends the program. ``text`` says a value with its unit.
    """

    def __init__(
        self,
        budget_s: float | None,
        final_s: float = 0.0,
        text: Callable[[float], str] = lambda seconds: f"{milliseconds(seconds)} ms",
    ) -> None:
        from rich.live import Live

        self._text = text
        self._estimate = Estimate(budget_s, final_s)
        self._phase, self._detail = "starting", ""
        self._stop = False
        self._last_log = time.monotonic()
        self._handler: Any = None
        self._is_shown = sys.stderr.isatty()
        self._live = Live(console=console(is_error=True), transient=True, get_renderable=self._drawn)

    @property
    def watcher(self) -> Watcher:
        """What to hand to the search."""
        from hsdag.search.driver import Watcher

        heard = self.on_phase, self._on_event, self._on_step
        return Watcher(*heard, should_stop=lambda: self._stop, on_note=say)

    def __enter__(self) -> SearchProgress:
        self._handler = signal.signal(signal.SIGINT, self._interrupt)
        if self._is_shown:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        signal.signal(signal.SIGINT, self._handler)

    @property
    def line(self) -> str:
        """All that is known, in one line."""
        return ", ".join(filter(None, [self._phase, self._estimate.words, self._detail]))

    def _drawn(self) -> Table:
        """A bar and the line, drawn several times a second; what does not fit is left out at the end."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=1.0, completed=self._estimate.share, width=20)
        grid.add_row(bar, Text(self.line, no_wrap=True, overflow="ellipsis"))
        return grid

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        say("interrupted: ending with the best so far (Ctrl-C again to give up)")

    def on_phase(self, phase: str) -> None:
        """What begins now; also before there is a watcher, which takes seconds to load."""
        self._phase, self._detail = phase, ""
        self._estimate.wait(waits=phase.startswith(WAITING))
        if (counted := _COUNTED.search(phase)) is not None:
            self._estimate.begin(int(counted[1]), int(counted[2]))
        elif phase.startswith(COMPARING):
            self._estimate.compare()
        if not self._is_shown:
            say(phase)

    def _on_event(self, _event: Event, recorder: RecordingEvaluator) -> None:
        best = recorder.best()
        shown = f"best {self._text(best[0].score.value)}" if best else "nothing has run yet"
        first = [e.score.value for e in recorder.events[:NUM_FIRST] if not (e.score.failure or e.plan.is_split)]
        if best and best[0].score.value < min(first, default=0.0):
            shown += f", {100 * (1 - best[0].score.value / min(first)):.0f}% less than the best device alone"
        self._tell(f"{recorder.num_evaluations} placements, {shown}")

    def _on_step(self, step: str) -> None:
        if (counted := _COUNTED.search(step)) is not None:
            self._estimate.update(int(counted[1]), int(counted[2]))
        self._tell(step)

    def _tell(self, detail: str) -> None:
        self._detail = detail
        if not self._is_shown and time.monotonic() - self._last_log > LOG_EVERY_S:
            self._last_log = time.monotonic()
            say(self.line)


def in_words(seconds: float) -> str:
    """A time that is left: ``45 s``, ``2 min 5 s`` or ``1 h 20 min``."""
    whole = round(max(seconds, 0.0))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
