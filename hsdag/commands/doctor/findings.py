"""Collect findings: sentences on what a user should know about a machine or a model, by severity.

Questions go to the measuring process with a time limit; a missing answer becomes a finding, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar

from hsdag.base.errors import HsdagError, option
from hsdag.base.processes import CandidateFailed, Request, WorkerClient, WorkerDefect
from hsdag.ir.placement.placement import Record
from hsdag.runtime.measuring.messages import DeviceFacts, Precision

WRONG = 0.05
"""A small network is computed wrongly if its outputs differ by more than this share of the largest value."""

HALF = ("f16", "bf16")
"""Precisions in which the outputs of some models are far from those in f32."""

SHRUNK = 1e-3
"""Largest relative difference at which outputs of two requests for the same inputs count as equal."""

LITTLE_GAIN = 1.2
"""Two devices overlap only if together they are more than this many times as fast as one after the other."""


class Severity(Enum):
    """How much a finding matters: danger is wrong or missing results, warning less speed or doubt, note information."""

    DANGER = "danger"
    WARNING = "warning"
    NOTE = "note"


class Finding(Record):
    """A sentence about a device, a pair of devices or the model."""

    severity: Severity
    about: str
    text: str


FINDINGS: dict[Severity, dict[str, str]] = {
    Severity.DANGER: {
        "failed": "{doing} failed: {reason}",
        "wrong": "computes a small network wrongly: outputs differ by {default} of the largest by default, and "
        "by {single} in f32",
        "not finite": "gives outputs of the model that are not finite, or not where those of the CPU in f32 are; where "
        "it computes in f16, numbers beyond 65504 are infinite, and hsdag bisect names the first op",
        "shrinking": "gives wrong outputs of the model once its inputs shrink: after an inference on larger inputs, "
        "those for smaller ones differ from a new request's. This is a defect of the plugin: fix the shapes with "
        "{shape}, or create a new infer request whenever the inputs are smaller",
        "refused": "does not compile the model: {reason}",
        "stateful": "cannot distribute a model with state of which a device does not run every op",
        "parted": "loses variable {variable!r} of the model's state, or fails: it is on {devices}",
        "overfull": "puts more on {name} than it holds: {weights:.3g} GB of weights, and {name} has {memory:.3g} GB",
    },
    Severity.WARNING: {
        "late": "{doing} was not finished in the {limit_s:.0f} s that were left; compiling may take longer: raise "
        "{budget}",
        "turns": "side by side these do {gains} the work of one after the other: they hardly overlap",
        "unsupported": "does not run {count} of the model's ops: {types}",
        "far off": "outputs of the model differ from the CPU's in f32 by {gap} of the largest{low}",
        "idle": "{name} will get nothing: {busy} every op",
    },
    Severity.NOTE: {
        "reduced": "computes in {precision} by default: outputs of a small network are off by {default} of the "
        "largest, with INFERENCE_PRECISION_HINT=f32 by {single}",
        "off": "outputs of the model differ from the CPU's in f32 by {gap} of the largest",
    },
}
"""Sentences of findings, by severity and name."""


def finding(kind: str, about: str, **values: Any) -> Finding:
    """Return the finding named ``kind``; ``values`` and options that it may name fill in its sentence."""
    values |= {name: option(name) for name in ("shape", "budget")}
    severity = next(severity for severity, texts in FINDINGS.items() if kind in texts)
    return Finding(severity=severity, about=about, text=FINDINGS[severity][kind].format(**values))


def of_precision(name: str, facts: DeviceFacts, precision: Precision) -> Iterator[Finding]:
    """Yield findings on how exactly a device computes a small network."""
    gaps = {"default": precision.default["max_relative"], "single": precision.single["max_relative"]}
    shown = {key: difference_text(gap) for key, gap in gaps.items()}
    if any(gap is None or gap > WRONG for gap in gaps.values()):
        yield finding("wrong", name, **shown)
    elif facts.precision not in (None, "f32"):
        yield finding("reduced", name, precision=facts.precision, **shown)


def of_overlap(pair: str, gains: Mapping[str, float]) -> Iterator[Finding]:
    """Yield a finding if two devices hardly overlap; ``gains`` are those of ``DevicePair``."""
    if gains and max(gains.values()) <= LITTLE_GAIN:
        yield finding("turns", pair, gains=" and ".join(f"{gain:.2f} times ({kind})" for kind, gain in gains.items()))


def of_outputs(name: str, gap: float | None, precision: str | None = None) -> Finding:
    """Return a finding on a device's outputs of the model, which computes in ``precision``, against the CPU's in f32.

    ``gap`` is their largest relative difference, None if they are not finite.
    """
    low = f": it computes in {precision}, unless {option('infer_precision')} is f32" if precision in HALF else ""
    kind = "not finite" if gap is None else "far off" if gap > WRONG else "off"
    return finding(kind, name, gap=difference_text(gap), low=low)


def difference_text(gap: float | None) -> str:
    """Format a relative difference."""
    return "numbers that are not finite" if gap is None else f"{gap:.2g}"


A = TypeVar("A")

ANSWER_S = 60.0
"""Seconds after which a question that compiles nothing counts as hanging."""

LEAST_S = 10.0
"""Seconds that a question that compiles gets even if less of the budget is left."""


class Questions:
    """Asks questions of a worker process, which is started again after a device crashed or hung, and keeps findings."""

    def __init__(self, client: WorkerClient, budget_s: float, on_step: Callable[[str], None]) -> None:
        self.findings: list[Finding] = []
        self._client = client
        self._end_s = time.monotonic() + budget_s
        self._on_step = on_step

    def say(self, kind: str, about: str, **values: Any) -> None:
        """Keep a finding."""
        self.findings.append(finding(kind, about, **values))

    def ask(self, about: str, doing: str, request: Request[A], *, compiles: bool = True) -> A | None:
        """Return the answer, or None after keeping a finding if there is none.

        A question that ``compiles`` may take all that is left of the budget.
        """
        self._on_step(f"{about}: {doing}")
        limit_s = max(self._end_s - time.monotonic(), LEAST_S) if compiles else ANSWER_S
        try:
            return self._client.call(request, limit_s)
        except CandidateFailed as failure:
            if compiles and failure.is_late:
                self.say("late", about, doing=doing, limit_s=limit_s)
            else:
                self.say("failed", about, doing=doing, reason=failure.reason)
        except (HsdagError, WorkerDefect) as error:
            self.say("failed", about, doing=doing, reason=str(error))
        return None
