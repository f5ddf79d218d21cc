"""The larger budget that a search advises, with what there was no time for."""

from __future__ import annotations

import math

from hsdag.base.errors import option

STEP_S = 10.0
"""Multiple in seconds to which an advised budget is rounded up."""


class Wanted:
    """Steps for which a search of ``budget_s`` seconds had no time, each with a budget that would be enough."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._enough_s = dict[str, float]()

    def add(self, what: str, enough_s: float | None = None) -> None:
        """Note that there was no time to do ``what``.

        Args:
            enough_s: Budget in seconds that would have been enough; by default twice the budget.
        """
        enough_s = 2 * self._budget_s if enough_s is None else enough_s
        self._enough_s[what] = max(enough_s, self._enough_s.get(what, 0.0))

    @property
    def seconds(self) -> float | None:
        """Return the budget in seconds that is enough for all steps; None if there was time for all."""
        if not self._enough_s:
            return None
        return STEP_S * math.ceil(max(*self._enough_s.values(), self._budget_s + STEP_S) / STEP_S)

    @property
    def words(self) -> str:
        """Return advice with its reasons, as a sentence; empty if there was time for all."""
        if self.seconds is None:
            return ""
        *others, last = self._enough_s
        what = f"{', to '.join(others)} and to {last}" if others else last
        return f"With {option('budget')} {self.seconds:.0f}s there is time to {what}."
