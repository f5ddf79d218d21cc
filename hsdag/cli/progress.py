"""Show progress on stderr (phase, per cent, time left, best so far), and turn Ctrl-C into a request to stop."""

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

    from hsdag.search.driver import Watcher
    from hsdag.search.evaluators.recording import Event, RecordingEvaluator

LOG_EVERY_S = 5.0
"""Seconds between two lines of progress where stderr is not a terminal."""

WAITING = ("compiling the search", "loading the method")  # beginnings of phases that do not count as part of the budget

LATE_S = 2.0
"""Report work as late once it takes this many seconds longer than planned; the time left is then unknown."""

LEAST_COLUMNS = 60
"""Draw a bar beside the words on terminals of at least this width."""

NUM_FIRST = 64
"""Look for the measurements of single devices among this many first events."""

_COUNTED = re.compile(r"(\d+) of (\d+)$")


class Estimate:
    """Estimate of how much of the work is done and how long the rest takes.

    The work is one search of about ``budget_s`` seconds, or several in turn. Where updates are counted, each is
    expected to take as long as the mean of those before; without a budget nothing is known until then. Once the work
    takes longer than planned, only its lateness is reported, until ``plan`` is told how long the rest takes.
    """

    def __init__(self, budget_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._each_s = budget_s or 0.0
        self._clock = clock
        self._begin_s = self._began_s = clock()
        self._waits_from_s: float | None = None
        self._done, self._count = 0, 1
        self._is_known = bool(self._each_s)

    def begin(self, number: int, count: int) -> None:
        """Begin search ``number``, counted from 1, of ``count`` searches."""
        self._done, self._count = number - 1, count
        self._began_s = self._clock()

    def wait(self, *, waits: bool) -> None:
        """Begin a phase; ``waits`` says that its time does not count as work."""
        now_s = self._clock()
        waited_s = 0.0 if self._waits_from_s is None else now_s - self._waits_from_s
        self._begin_s, self._began_s = self._begin_s + waited_s, self._began_s + waited_s
        self._waits_from_s = now_s if waits else None

    def plan(self, left_s: float) -> None:
        """Set the remaining time of the present search."""
        self._each_s = self._clock() - self._began_s + left_s

    def update(self, done: int, count: int) -> None:
        """Record that ``done`` of ``count`` updates are done."""
        self._done, self._count = done, count
        self._began_s = self._clock()
        self._is_known = True
        self._each_s = (self._began_s - self._begin_s) / max(done, 1)

    @property
    def left_s(self) -> float:
        """Return the remaining seconds, by plan; zero once the planned time is over."""
        return (self._count - self._done) * self._each_s - self._spent_s

    @property
    def share(self) -> float:
        """Return the share of the work that is done, 0 to 1."""
        return (self._done + (self._spent_s / self._each_s if self._each_s else 0.0)) / max(self._count, 1)

    @property
    def over_s(self) -> float:
        """Return the seconds by which the work exceeds the planned time."""
        return max(self._clock() - self._began_s - (self._count - self._done) * self._each_s, 0.0)

    @property
    def words(self) -> str:
        """Return the share and the remaining time in words, or the lateness; empty if nothing is known."""
        if not self._is_known:
            return ""
        if self.over_s > LATE_S:
            return f"{duration_in_words(self.over_s)} longer than planned"
        return f"{100 * self.share:.0f}%, {duration_in_words(self.left_s)} left"

    @property
    def _spent_s(self) -> float:
        return min(self._clock() - self._began_s, self._each_s)


class SearchProgress:
    """Context manager that shows the progress of one or several searches.

    A phase that ends in "2 of 5" begins the second of five searches; a step that does so is an update. The first Ctrl-C
    asks the search to end with its best so far, the second ends the program. ``text`` formats a value with its unit.
    """

    def __init__(
        self,
        budget_s: float | None,
        text: Callable[[float], str] = lambda seconds: f"{milliseconds(seconds)} ms",
    ) -> None:
        from rich.live import Live

        self._text = text
        self._estimate = Estimate(budget_s)
        self._phase, self._detail = "starting", ""
        self._stop = False
        self._last_log = time.monotonic()
        self._handler: Any = None
        self._is_shown = sys.stderr.isatty()
        self._console = console(is_error=True)
        self._live = Live(console=self._console, transient=True, get_renderable=self._drawn)

    @property
    def watcher(self) -> Watcher:
        """Return the callbacks for the search."""
        from hsdag.search.driver import Watcher

        heard = self.on_phase, self._on_event, self._on_step
        return Watcher(*heard, should_stop=lambda: self._stop, on_note=self.note, on_left=self._estimate.plan)

    def __enter__(self) -> SearchProgress:
        self._handler = signal.signal(signal.SIGINT, self._interrupt)
        if self._is_shown:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        signal.signal(signal.SIGINT, self._handler)

    def note(self, text: str) -> None:
        """Print a message that remains, above the bar if there is one."""
        if self._is_shown:
            self._console.print(text, markup=False, highlight=False)
        else:
            say(text)

    @property
    def line(self) -> str:
        """Return the progress in one line; the time comes first because narrow terminals cut off the end."""
        words = self._estimate.words
        said = ", ".join(filter(None, [self._phase, self._detail]))
        return f"{words}: {said}" if words else said

    def _drawn(self) -> Table:
        """Return what is drawn several times a second: a bar and the line, or just the line on narrow terminals."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        line = Text(self.line, no_wrap=True, overflow="ellipsis")
        grid = Table.grid(padding=(0, 1))
        if self._console.width < LEAST_COLUMNS:
            grid.add_row(line)
        else:
            grid.add_row(ProgressBar(total=1.0, completed=self._estimate.share, width=20), line)
        return grid

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        self.note("interrupted: ending with the best so far (Ctrl-C again to give up)")

    def on_phase(self, phase: str) -> None:
        """Show a new phase. May be called before ``watcher``, which takes seconds to import."""
        self._phase, self._detail = phase, ""
        self._estimate.wait(waits=phase.startswith(WAITING))
        if (counted := _COUNTED.search(phase)) is not None:
            self._estimate.begin(int(counted[1]), int(counted[2]))
        if not self._is_shown:
            say(phase)

    def _on_event(self, _event: Event, recorder: RecordingEvaluator) -> None:
        best = recorder.best()
        shown = f"best {self._text(best[0].score.value)}" if best else "nothing has run yet"
        first = [e.score.value for e in recorder.events[:NUM_FIRST] if not (e.score.failure or e.plan.is_split)]
        gained = 100 * (1 - best[0].score.value / min(first)) if best and first else 0.0
        if gained >= 0.5:
            shown += f", {gained:.0f}% less than the best device alone"
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


def duration_in_words(seconds: float) -> str:
    """Format a duration as ``45 s``, ``2 min 5 s`` or ``1 h 20 min``."""
    whole = round(max(seconds, 0.0))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
