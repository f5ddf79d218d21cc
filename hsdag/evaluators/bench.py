"""Bench: runs candidates in a measuring process, one at a time, alone or beside a reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from hsdag.evaluators.base import Score
from hsdag.evaluators.measurement import Run, SearchMeasurement
from hsdag.ir.processes import CandidateFailed
from hsdag.runtime.measuring.candidate import Candidate, CandidateRunner

_KEY, _BESIDE = "search", "beside"

Objection: TypeAlias = Callable[[str], str | None]
"""Says of an open candidate why it is none, and then it is not timed."""


@dataclass(frozen=True)
class Relative:
    """The value of a candidate over that of a reference in the same run, or infinity and why there is none.

    ``is_unfit`` says that it is the reference that does not run here.
    """

    ratio: float = math.inf
    failure: str | None = None
    is_unfit: bool = False


class Bench:
    """Measures what a runner opens; a reference stays open from one candidate to the next."""

    def __init__(
        self, runner: CandidateRunner, measurement: SearchMeasurement | None = None, objection: Objection | None = None
    ) -> None:
        self._runner, self._measurement = runner, measurement or SearchMeasurement()
        self._objection = objection or (lambda _: None)
        self._reference: Candidate | None = None

    def alone(self, candidate: Candidate, best: float) -> Score:
        """The value of a candidate, where that of the best so far is ``best``; if it fails, crashes or hangs, why."""
        try:
            return Score(self._value(candidate, lambda run: self._measurement.seconds(run, best)))
        except CandidateFailed as failure:
            return Score.failed(failure.reason)

    def beside(self, candidate: Candidate, reference: Candidate, best_ratio: float) -> Relative:
        """The same over a reference, which runs before and after the candidate."""
        try:
            run_reference = self._opened(reference)
        except CandidateFailed as failure:
            return Relative(failure=f"what candidates are compared with does not run: {failure.reason}", is_unfit=True)
        try:
            return Relative(self._value(candidate, lambda run: self._measurement.ratio(run, run_reference, best_ratio)))
        except CandidateFailed as failure:
            return Relative(failure=failure.reason)

    def reference_value(self, reference: Candidate) -> float:
        """The value of a reference, which stays open. Raises CandidateFailed."""
        return self._measurement.value(self._opened(reference))

    def close(self) -> None:
        """Forget the reference."""
        if self._reference is not None:
            self._reference = None
            self._runner.close(_BESIDE)

    def _opened(self, reference: Candidate) -> Run:
        """What runs the reference, which has run already to warm up. Raises CandidateFailed."""
        if self._reference != reference:
            self.close()
            self._runner.open(_BESIDE, reference)
            self._reference = reference
        run = partial(self._runner.run, _BESIDE)
        try:
            run(self._measurement.warm_ups)
        except CandidateFailed as failure:
            if not failure.lost_worker:
                raise
            run(self._measurement.warm_ups)  # in a new process: the one before ended meanwhile
        return run

    def _value(self, candidate: Candidate, measure: Callable[[Run], float]) -> float:
        """Compile a candidate and measure it. Raises CandidateFailed, for what there is to object to as well."""
        self._runner.open(_KEY, candidate)
        reason = self._objection(_KEY)
        value = measure(partial(self._runner.run, _KEY)) if reason is None else math.inf
        self._runner.close(_KEY)
        if reason is not None:
            raise CandidateFailed(reason)
        return value
