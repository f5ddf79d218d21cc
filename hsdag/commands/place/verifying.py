"""Verifying: compares the outputs of candidates with a reference, by a tolerance that follows the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hsdag.base.errors import option
from hsdag.base.processes import CandidateFailed
from hsdag.commands.place.pace import Deadline
from hsdag.commands.place.records import Verdict
from hsdag.commands.place.session import Session
from hsdag.ir.placement.placement import ReferenceName
from hsdag.runtime.machine.devices import PRECISION, reduced_precision
from hsdag.runtime.measuring.messages import Candidate
from hsdag.runtime.measuring.runner import CandidateRunner
from hsdag.search.options import PlaceOptions

TOLERANCE_FULL_PRECISION = 1e-4
"""Relative difference of outputs that is always accepted where all devices compute in single precision."""
TOLERANCE_REDUCED_PRECISION = 5e-2
"""Relative difference that is always accepted from one device alone that computes in half precision, the default of
GPUs, NPUs and CPUs with half-precision instructions."""
TOLERANCE_SPLIT = 1e-3
"""Relative difference that is always accepted from a split over half-precision devices, worth a few roundings; the
model's own loss of precision there is accepted on top (SLACK)."""

SLACK = 2.0
"""Ratio of the tolerance to the model's own difference: a split model rounds at other places than the whole one."""
LARGEST_TOLERANCE = 0.1
"""Relative difference above which rounding cannot be the cause."""

Difference = Mapping[str, float | None]

_REFERENCE, _OTHERWISE = "reference {}", "computed differently"
_SINGLE = {PRECISION: "f32"}
_EXACT = {**_SINGLE, "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
_ONE_THREAD = Candidate("CPU", properties={**_SINGLE, "INFERENCE_NUM_THREADS": "1"})


@dataclass(frozen=True)
class Check:
    """Reference that outputs are compared with, and the largest relative difference from it.

    With ``max_difference`` the difference is a limit of the answer, and the reference alone judges. Without, the
    tolerance depends on the model, and outputs that differ from the reference are compared with a second one.
    """

    reduced: str  # precision below single that a device computes in, empty if none does
    reference: ReferenceName = "cpu"
    max_difference: float | None = None

    @property
    def is_limit(self) -> bool:
        """Return whether no candidate that differs more can be the answer."""
        return self.max_difference is not None

    @property
    def least(self) -> float:
        """Return the requested largest difference, or else the tolerance that every model gets."""
        if self.max_difference is not None:
            return self.max_difference
        return TOLERANCE_REDUCED_PRECISION if self.reduced else TOLERANCE_FULL_PRECISION

    def tolerance(self, of_model: float, *, is_split: bool) -> float:
        """Return the largest accepted relative difference of outputs from the reference's.

        Args:
            of_model: Relative difference of the whole model's outputs when one device computes them in another way.
            is_split: Whether the outputs are those of a placement over several devices.
        """
        least = TOLERANCE_SPLIT if self.reduced and is_split and not self.is_limit else self.least
        return least if self.is_limit else max(least, min(SLACK * of_model, LARGEST_TOLERANCE))


def check_of(session: Session, options: PlaceOptions) -> Check:
    """Return how to check outputs under these options; workloads are compared with NumPy.

    Raises DeviceError for absent devices.
    """
    if not session.is_on_torch:
        return Check(reduced_precision(session.devices.all), options.reference, options.max_difference)
    reference: ReferenceName = "numpy" if session.loaded.is_workload else options.reference
    precisions = {spec.properties.get("precision", "f32") for spec in session.devices.all} - {"f32"}
    reduced = " or ".join(sorted(precisions)) or "f16 or bf16" * session.loaded.reduces_precision
    return Check(reduced, reference, options.max_difference)


class Verifier:
    """Comparison of the outputs of opened candidates with a reference.

    Args:
        runner: Runner that has the candidates open.
        deadline: Deadline after which no further way to compute the model is tried to widen the tolerance, and no
            process is started for a candidate.
    """

    REFERENCES: ClassVar[dict[ReferenceName, Candidate]] = {
        "cpu": Candidate("CPU", properties=_EXACT),
        "op-by-op": Candidate("op-by-op"),
        "numpy": Candidate("numpy"),
    }

    def __init__(self, runner: CandidateRunner, check: Check, deadline: Deadline | None = None) -> None:
        self.runner = runner
        self.check = check
        self._deadline = deadline or Deadline()
        self._otherwise = [] if check.is_limit else self._other_ways()
        self._own = 0.0  # largest difference so far of the whole model computed in another way
        self._was_measured = False  # whether one was measured
        self._own_difference = 0.0  # difference of the whole model between precisions
        self._open: set[ReferenceName] = set()

    def close(self) -> None:
        """Close the references in the runner."""
        for opinion in self._open:
            self.runner.close(_REFERENCE.format(opinion))
        self._open.clear()

    def in_own_process(self, name: str) -> Verdict:
        """Run a candidate first in a new process, if there is time to start one, and compare its outputs."""
        if self._deadline.is_over(self.runner.client.start_s + self.runner.taken.slowest_open_s):
            return self.compared(name)
        self.runner.client.restart()
        try:
            self.runner.run(name, 2)
        except CandidateFailed as failure:
            reason = f"it failed in a process of its own: {failure.reason}"
            tolerance = self.check.tolerance(0.0, is_split=True)
            return Verdict(self.check.reference, tolerance, reason=reason, ran=False)
        return self.compared(name)

    def compared(self, name: str, *, is_split: bool = True) -> Verdict:
        """Compare outputs with the reference's and, where they differ too much, with a second reference's.

        The second reference is skipped for a single device (``is_split`` false) if a change of precision alone moves
        the model's outputs by more than rounding can.
        """
        first = Verdict(self.check.reference, self.check.tolerance(self._own, is_split=is_split))
        reasons, failures = [], dict[str, list[str]]()
        third: ReferenceName = "cpu" if self.check.reference == "op-by-op" else "op-by-op"
        for opinion in (self.check.reference,) if self.check.is_limit else (self.check.reference, third):
            try:
                difference = self.difference(name, opinion)
            except CandidateFailed as failure:
                failures.setdefault(failure.reason, []).append(opinion)
                continue
            relative = difference["max_relative"]
            apart = math.inf if relative is None else relative
            tolerance = self._tolerance(apart, is_split)
            verdict = Verdict(opinion, tolerance, difference)
            if apart <= tolerance:
                return verdict
            how = "in values that are not finite" if relative is None else f"by {relative:.2g}"
            reasons.append(f"its outputs differ {how} from {opinion}, and {tolerance:.2g} is allowed")
            first = verdict if first.difference is None else first
            if self._is_inconclusive and not is_split:
                break
        for why, opinions in failures.items():
            reasons.append(f"its outputs could not be compared with {' or '.join(opinions)}: {why}")
        if self._is_inconclusive and first.difference is not None:
            reasons = [
                f"in {self.check.reduced}, which devices take by default, this model's outputs change by "
                f"{_in_words(self._own_difference)} against f32 on these inputs, whatever the placement, so that they "
                f"cannot be judged: add {option('infer_precision')} f32 to the command, or {option('inputs')} FILE.npz "
                "with data of yours"
            ]
        return replace(first, reason="; ".join(dict.fromkeys(reasons)))

    @property
    def _is_inconclusive(self) -> bool:
        """Return whether the model's own outputs differ more between precisions than rounding may."""
        return self._own_difference > LARGEST_TOLERANCE

    def _other_ways(self) -> list[str | Candidate]:
        """Return other ways to compute the whole model on one device: in the CPU's default precision, in single
        precision, on one thread, and op by op."""
        others = [Candidate("CPU")] * bool(self.check.reduced)
        others += [self.REFERENCES["cpu"], _ONE_THREAD, self.REFERENCES["op-by-op"]]
        return [other for other in others if other != self.REFERENCES[self.check.reference]]

    def heed(self, devices: Sequence[str]) -> None:
        """Let the outputs of these single devices, opened in the runner, widen the tolerance too.

        They are tried before the ways that take longer.
        """
        if self.check.reduced and not self.check.is_limit:
            self._otherwise[1:1] = devices

    def _tolerance(self, apart: float, is_split: bool) -> float:
        """Return the accepted difference, measured only as far as needed to judge the difference ``apart``.

        It follows the largest difference between the model's own outputs when one device computes them in other ways,
        tried until ``apart`` is accepted. Differences that are too large for rounding are ignored.
        """
        while apart > self.check.tolerance(self._own, is_split=is_split) and self._otherwise:
            if self._is_inconclusive or (self._was_measured and self._deadline.is_over()):
                break
            other = self._otherwise.pop(0)
            try:
                if isinstance(other, Candidate):
                    self.runner.open(_OTHERWISE, other)
                name = _OTHERWISE if isinstance(other, Candidate) else other
                relative = self.difference(name)["max_relative"]
                if isinstance(other, Candidate):
                    self.runner.close(_OTHERWISE)
            except CandidateFailed:
                continue
            if other == Candidate("CPU"):
                self._own_difference = math.inf if relative is None else relative
            if relative is not None and relative <= LARGEST_TOLERANCE:
                self._own, self._was_measured = max(self._own, relative), True
        return self.check.tolerance(self._own, is_split=is_split)

    def difference(self, name: str, reference: ReferenceName | None = None) -> Difference:
        """Return how far a candidate's outputs are from those of a reference, by measure. Raises CandidateFailed.

        By default the reference is that of the check.
        """
        reference = reference or self.check.reference
        key = _REFERENCE.format(reference)
        if reference not in self._open:
            self.runner.open(key, self.REFERENCES[reference])
            self._open.add(reference)
        return self.runner.difference(name, key)


def _in_words(relative: float) -> str:
    """Return a relative difference in words."""
    if not math.isfinite(relative):
        return "values that are not finite"
    return f"{relative:.0%} of their largest value" if relative < 1 else "more than their largest value"
