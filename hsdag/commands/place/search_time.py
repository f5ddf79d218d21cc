"""The seconds of a search: how many there are between the steps before it and the final comparison."""

from __future__ import annotations

import time
from dataclasses import replace

from hsdag.base.errors import option
from hsdag.commands.place.pace import RUNS_EACH_ROUND, Pace
from hsdag.commands.place.session import Session
from hsdag.commands.place.wanted import Wanted
from hsdag.runtime.measuring.inferences import REQUESTS_IN_FLIGHT
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.objectives import Quantity
from hsdag.search.driver import ENOUGH_PLACEMENTS, Watcher, shortage
from hsdag.search.evaluators.recording import Event, RecordingEvaluator
from hsdag.search.options import PlaceOptions


class SearchTime:
    """Seconds of a search within its budget.

    Args:
        wanted: Collects what there is no time for.
        begin_s: ``time.monotonic`` from which the budget runs.

    Attributes:
        profile: Profile of the model; None before it is profiled, or without one.
        left_s: Seconds for the search when it began, without those for the final comparison.
    """

    def __init__(
        self, session: Session, options: PlaceOptions, watcher: Watcher, wanted: Wanted, begin_s: float
    ) -> None:
        self._session = session
        self._options = options
        self._watcher = watcher
        self._wanted = wanted
        self.begin_s = begin_s
        self.left_s = 0.0
        self.profile: ModelProfile | None = None
        self._before_s = 0.0  # seconds of the budget before the search

    @property
    def spent_s(self) -> float:
        """Return the seconds of the budget that have passed."""
        return time.monotonic() - self.begin_s

    @property
    def pace(self) -> Pace:
        """Return the seconds of the steps of the final comparison, by the profile and what was measured so far."""
        taken = self._session.runner.taken
        is_steady = Quantity.PERIOD in self._options.objective.quantities
        runs = (REQUESTS_IN_FLIGHT, taken.value_s / RUNS_EACH_ROUND) if is_steady else (1, taken.value_s)
        return Pace.of(self.profile, taken.slowest_open_s, *runs, self._session.client.start_s, taken.part_s)

    @property
    def most_s(self) -> float:
        """Return the seconds of the budget before the final comparison."""
        options = self._options
        return options.budget_s - self.pace.comparison_s(options.budget_s, options.protocol)[0]

    def begin_search(self) -> None:
        """Begin the search now: the steps before it are over."""
        self._before_s = self.spent_s
        self.left_s = self._for_search_s
        self._watcher.on_left(self.left_s + self._options.budget_s - self.most_s)

    @property
    def _for_search_s(self) -> float:
        """Return the seconds of the budget between the steps before the search and the final comparison."""
        return max(self.most_s - self._before_s, 0.0)

    @property
    def unspent_s(self) -> float:
        """Return the seconds for the search that are left now; negative after its end."""
        return self._for_search_s - (self.spent_s - self._before_s)

    def is_short(self, num_devices: int) -> bool:
        """Return whether there is no time to measure before the comparison, and add a note if so."""
        num_first = num_devices + 1
        pace = Pace.of(self.profile)
        measurement = self._options.chosen_preset.measurement
        each_s = pace.compile_s + (measurement.warm_ups + measurement.runs) * pace.run_s
        if self._options.resolved_reward != "hybrid" or self.left_s >= num_first * each_s:
            return False
        lack = self._lacks(each_s, self.left_s, max(ENOUGH_PLACEMENTS, num_first))
        self._watcher.note(f"{lack}; nothing is measured before the comparison")
        return True

    def note_if_over(self, recorder: RecordingEvaluator) -> None:
        """Add a note if the parts of a search that is resumed have already taken its time."""
        if recorder.events and recorder.elapsed_s >= self.left_s:
            budget = option("budget")
            self._watcher.note(
                f"the search has already taken the time that {budget} {self._options.budget_s:.0f}s leaves for it; "
                f"raise {budget} to go on"
            )

    def heed(self, event: Event, recorder: RecordingEvaluator) -> None:
        """Report an event, and reserve more time for the comparison if measuring takes longer than the profile says.

        After the first event, which is mostly compilation, add a note if the budget is too short.
        """
        self._watcher.on_event(event, recorder)
        recorder.budget = replace(recorder.budget, seconds=min(self.left_s, self._for_search_s))
        if recorder.num_evaluations == 1:
            left_s = recorder.budget.seconds - recorder.elapsed_s
            lack = self._lacks(recorder.elapsed_s, left_s)
            if lack is not None:
                self._watcher.note(f"{lack}: few are measured")

    def _lacks(self, each_s: float, left_s: float, enough: int = ENOUGH_PLACEMENTS) -> str | None:
        """Return why the time left is too short to measure ``enough`` placements; None if it is not.

        The lack is added to ``wanted``.
        """
        lack = shortage(each_s, left_s, enough)
        if lack is None:
            return None
        words, missing_s = lack
        self._wanted.add(f"measure {enough} placements", self._options.budget_s + missing_s)
        return words
