"""Time of the final comparison: what its steps will take, and when they have to end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hsdag.runtime.measuring.latency import Protocol
from hsdag.runtime.measuring.messages import Candidate
from hsdag.runtime.measuring.profile import ModelProfile

FINAL_SHARE = 0.25
"""Share of the budget for the final comparison, unless FINAL_LEAST_S or a slow model asks for more."""
FINAL_LEAST_S = 8.0
"""Least seconds for the final comparison, as far as FINAL_MOST_SHARE allows."""
FINAL_MOST_SHARE = 0.6
"""Largest share of the budget for the final comparison, however slow the model is."""
FINAL_CANDIDATES = 4
"""Number of candidates for which time to compile, warm up and measure is reserved."""
WARM_UP_RUNS = 4
"""Inferences reserved to warm up each of these candidates."""
RUNS_EACH_ROUND = 2
"""Inferences of each candidate in one round."""
LEAST_FINAL_SHARE = 0.5
"""Share of the comparison's time that rounds keep even where checking outputs needs more than the rest."""
LEAST_LATE_SHARE = 0.1
"""Share of the budget that the comparison keeps even where all steps before it overran."""
PROCESS_S = 1.5
"""Least seconds to start a process that loads OpenVINO."""
CHECK_RUNS = 8
"""Inferences, of candidate and reference together, in one check of outputs."""
TIMELINE_SHARE = 0.05
"""Largest share of the budget that measuring a timeline of the answer may take; otherwise none is measured."""
TIMELINE_INFERENCES = 14
"""Inferences reserved for measuring a timeline."""
PART_S = 0.06
"""Least seconds, roughly, that OpenVINO takes to compile one of many parts of a model."""


@dataclass(frozen=True)
class Deadline:
    """Moment by which something has to end, or an earlier wish to stop.

    Attributes:
        end_s: ``time.monotonic`` of that moment.
        should_stop: Returns True to end earlier.
    """

    end_s: float = math.inf
    should_stop: Callable[[], bool] = lambda: False

    def is_over(self, takes_s: float = 0.0) -> bool:
        """Return whether a step that takes this many seconds would end too late, or should not begin."""
        return self.should_stop() or takes_s > self.end_s - time.monotonic()


@dataclass(frozen=True)
class Pace:
    """Estimated seconds of the steps of the final comparison.

    Attributes:
        compile_s: To compile the whole model, on the slowest device.
        run_s: For an inference, on the fastest device.
        open_s: To open the slowest candidate.
        process_s: To start a worker process.
        part_s: To compile one of many parts of the model.
    """

    compile_s: float = 0.0
    run_s: float = 0.0
    open_s: float = 0.0
    process_s: float = PROCESS_S
    part_s: float = PART_S

    @staticmethod
    def of(
        profile: ModelProfile | None,
        slowest_open_s: float = 0.0,
        in_flight: int = 1,
        least_run_s: float = 0.0,
        process_s: float = PROCESS_S,
        part_s: float = PART_S,
    ) -> Pace:
        """Return the pace by a profile and by what was measured since.

        Args:
            slowest_open_s: Seconds of the slowest candidate opened so far.
            in_flight: Number of inferences that run at a time, by which each takes longer.
            least_run_s: Measured seconds of an inference, which count where the profile says less.
        """
        process_s, part_s = max(process_s, PROCESS_S), max(part_s, PART_S)
        if profile is None:
            return Pace(slowest_open_s, least_run_s, slowest_open_s, process_s, part_s)
        compile_s = max(times.compile_s for times in profile.times)
        run_s = in_flight * min(float(np.nansum(times.time_s)) for times in profile.times)
        return Pace(compile_s, max(run_s, least_run_s), max(compile_s, slowest_open_s), process_s, part_s)

    def opening_s(self, candidate: Candidate) -> float:
        """Estimate the seconds to compile a candidate: a whole model, or parts, which OpenVINO compiles in turn."""
        if candidate.devices is None:
            return self.compile_s
        return max(2 * self.compile_s + PART_S * candidate.num_parts, self.part_s * candidate.num_parts)

    @property
    def check_s(self) -> float:
        """Return the seconds to check the answer in a running process: the reference compiles, then both run."""
        return self.compile_s + CHECK_RUNS * self.run_s

    def timeline_s(self, budget_s: float) -> float:
        """Return the seconds to measure a timeline; 0 where they exceed TIMELINE_SHARE, and none is measured."""
        takes_s = 2 * self.open_s + TIMELINE_INFERENCES * self.run_s
        return takes_s if takes_s <= TIMELINE_SHARE * budget_s else 0.0

    def comparison_s(
        self, budget_s: float, protocol: Protocol | None = None, left_s: float = math.inf
    ) -> tuple[float, float]:
        """Return the seconds for the final comparison when ``left_s`` are left, and how many of these rounds get.

        The others are for what follows the last round: running the answer in a process of its own, checking it against
        the reference, and measuring a timeline.
        """
        protocol = protocol or Protocol()
        each_s = self.compile_s + (WARM_UP_RUNS + RUNS_EACH_ROUND * protocol.min_rounds) * self.run_s
        checking_s = self.process_s + self.open_s + self.check_s + self.timeline_s(budget_s)
        needed_s = FINAL_CANDIDATES * each_s + self.open_s - self.compile_s + checking_s
        wanted_s = max(min(max(FINAL_SHARE * budget_s, FINAL_LEAST_S), protocol.limit_s), needed_s)
        whole_s = min(wanted_s, FINAL_MOST_SHARE * budget_s)
        whole_s = min(whole_s, max(left_s, LEAST_LATE_SHARE * budget_s))
        return whole_s, max(whole_s - checking_s, LEAST_FINAL_SHARE * whole_s)
