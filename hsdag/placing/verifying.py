"""Verifying: whether a candidate, in a process of its own, computes what the model computes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from hsdag.ir.device import DeviceSpec
from hsdag.ir.placement.placement import ReferenceName
from hsdag.ir.processes import CandidateFailed
from hsdag.placing.result import Verdict
from hsdag.runtime.machine.devices import reduces_precision
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.runner import CandidateRunner

if TYPE_CHECKING:
    from hsdag.placing.session import Session

TOLERANCE_FULL_PRECISION = 1e-4
"""Relative difference of outputs that is never too large, where all devices compute in single precision."""
TOLERANCE_REDUCED_PRECISION = 5e-2
"""The same where a device computes in half precision, as GPUs, NPUs and CPUs with such instructions do by default."""

SLACK = 2.0
"""The tolerance over the model's own difference: a split model rounds at other places than the whole one."""
LARGEST_TOLERANCE = 0.1
"""A larger difference is not rounding."""

Difference = Mapping[str, float | None]

_REFERENCE, _OTHERWISE = "reference", "computed differently"
_SINGLE = {"INFERENCE_PRECISION_HINT": "f32"}
_EXACT = {**_SINGLE, "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
_ONE_THREAD = Candidate("CPU", properties={**_SINGLE, "INFERENCE_NUM_THREADS": "1"})


@dataclass(frozen=True)
class Check:
    """What outputs are compared with, and how far they may be from it.

    With ``max_difference`` that is a limit of the answer, and the reference alone judges; without, the tolerance
    follows the model, and where outputs differ from the reference there is a third opinion.
    """

    reduced: bool  # whether a device computes in less than single precision
    reference: ReferenceName = "cpu"
    max_difference: float | None = None

    @staticmethod
    def over(
        devices: Sequence[DeviceSpec], reference: ReferenceName = "cpu", max_difference: float | None = None
    ) -> Check:
        """For placements over these devices. Raises DeviceError for absent ones."""
        return Check(reduces_precision(tuple(devices)), reference, max_difference)

    @property
    def is_limit(self) -> bool:
        """Whether no candidate that differs more can be the answer."""
        return self.max_difference is not None

    @property
    def least(self) -> float:
        """The largest difference that was requested, or the tolerance of any model."""
        if self.max_difference is not None:
            return self.max_difference
        return TOLERANCE_REDUCED_PRECISION if self.reduced else TOLERANCE_FULL_PRECISION

    @property
    def opinions(self) -> tuple[ReferenceName, ...]:
        """The reference, and the third opinion where candidate and reference disagree."""
        if self.is_limit:
            return (self.reference,)
        return self.reference, "cpu" if self.reference == "op-by-op" else "op-by-op"


def check_of(session: Session, reference: ReferenceName = "cpu", max_difference: float | None = None) -> Check:
    """What outputs are compared with; those of workloads with NumPy's. Raises DeviceError for absent devices."""
    if not session.is_on_torch:
        return Check.over(session.devices.all, reference, max_difference)
    own = "numpy" if session.subject.is_workload else reference
    return Check(session.subject.reduces_precision, own, max_difference)


class Verifier:
    """Judges candidates that a runner has opened."""

    REFERENCES: ClassVar[dict[ReferenceName, Candidate]] = {
        "cpu": Candidate("CPU", properties=_SINGLE),
        "op-by-op": Candidate("op-by-op"),
        "onnxruntime": Candidate("onnxruntime"),
        "numpy": Candidate("numpy"),
    }

    def __init__(self, runner: CandidateRunner, check: Check) -> None:
        self._runner, self._check = runner, check
        self._tolerance: float | None = check.max_difference
        self._is_kept = False

    @property
    def is_limit(self) -> bool:
        """Of the check."""
        return self._check.is_limit

    def close(self) -> None:
        """Forget the reference, where it was kept."""
        if self._is_kept:
            self._is_kept = False
            self._runner.close(_REFERENCE)

    def in_own_process(self, name: str) -> Verdict:
        """Run a candidate before anything else in a new process, then compare its outputs."""
        self._runner.client.restart()
        try:
            self._runner.run(name, 2)
        except CandidateFailed as failure:
            reason = f"it failed in a process of its own: {failure.reason}"
            return Verdict(self._check.reference, self._check.least, reason=reason, ran=False)
        return self.compared(name)

    def compared(self, name: str) -> Verdict:
        """Compare outputs with the reference's, and where they are too far from it, with a third opinion's."""
        first, reasons = Verdict(self._check.reference, self._check.least), []
        for opinion in self._check.opinions:
            try:
                difference = self._difference(name, self.REFERENCES[opinion])
            except CandidateFailed as failure:
                reasons.append(f"its outputs could not be compared with {opinion}: {failure.reason}")
                continue
            relative = difference["max_relative"]
            apart, least = math.inf if relative is None else relative, self._check.least
            tolerance = least if apart <= least else self._measured_tolerance()
            verdict = Verdict(opinion, tolerance, difference)
            if apart <= tolerance:
                return verdict
            how = "in values that are not finite" if relative is None else f"by {relative:.2g}"
            reasons.append(f"its outputs differ {how} from {opinion}, and {tolerance:.2g} is allowed")
            first = verdict if first.difference is None else first
        return replace(first, reason="; ".join(reasons))

    def _measured_tolerance(self) -> float:
        """How far apart right outputs of this model may be: by how much the CPU's differ when it computes differently.

        That is with one thread, with every op computed by itself, and in the precision it takes by default where a
        device has a lower one than single. Differences too large for rounding say nothing about it.
        """
        if self._tolerance is not None:
            return self._tolerance
        others = [self.REFERENCES["op-by-op"], self.REFERENCES["cpu"], _ONE_THREAD]
        others += [Candidate("CPU")] * self._check.reduced
        reference, apart = self.REFERENCES[self._check.reference], [0.0]
        for other in others:
            if other == reference:
                continue
            try:
                self._runner.open(_OTHERWISE, other)
                relative = self._difference(_OTHERWISE, reference)["max_relative"]
                self._runner.close(_OTHERWISE)
            except CandidateFailed:
                continue
            if relative is not None and relative <= LARGEST_TOLERANCE:
                apart.append(relative)
        self._tolerance = max(self._check.least, min(SLACK * max(apart), LARGEST_TOLERANCE))
        return self._tolerance

    def _difference(self, name: str, reference: Candidate) -> Difference:
        if self._check.is_limit:  # there is one reference, which many candidates are compared with
            if not self._is_kept:
                exact = reference == self.REFERENCES["cpu"]
                self._runner.open(_REFERENCE, Candidate("CPU", properties=_EXACT) if exact else reference)
                self._is_kept = True
            return self._runner.difference(name, _REFERENCE)
        self._runner.open(_REFERENCE, reference)
        difference = self._runner.difference(name, _REFERENCE)
        self._runner.close(_REFERENCE)
        return difference
