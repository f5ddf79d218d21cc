"""The budget that a search advises: one figure, whatever it is wanted for."""

from __future__ import annotations

import math

STEP_S = 10.0
"""To multiples of which an advised budget is rounded up, in seconds."""


class Wanted:
    """What there was no time for in a search of ``budget_s`` seconds, and the budgets that would do."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._enough_s = dict[str, float]()

    def add(self, what: str, enough_s: float | None = None) -> None:
        """There was no time to do ``what``; ``enough_s`` would have been enough, or where that is None, twice it."""
        enough_s = 2 * self._budget_s if enough_s is None else enough_s
        self._enough_s[what] = max(enough_s, self._enough_s.get(what, 0.0))

    @property
    def seconds(self) -> float | None:
        """Of the budget that is enough for all of it; None where nothing was left out."""
        if not self._enough_s:
            return None
        return STEP_S * math.ceil(max(*self._enough_s.values(), self._budget_s + STEP_S) / STEP_S)

    @property
    def words(self) -> str:
        """The advice, with what it is for; empty where nothing was left out."""
        if self.seconds is None:
            return ""
        *others, last = self._enough_s
        what = f"{', to '.join(others)} and to {last}" if others else last
        return f"With --budget {self.seconds:.0f}s there is time to {what}."
