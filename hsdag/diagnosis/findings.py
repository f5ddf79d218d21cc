"""What a user should know of a machine and a model: findings, the grave ones first.

Questions go to the measuring process, within a time; an answer that does not come is a finding, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar

from hsdag.ir.errors import HsdagError
from hsdag.ir.placement.placement import Record
from hsdag.ir.processes import CandidateFailed, Request, WorkerClient, WorkerDefect
from hsdag.runtime.measuring.messages import DeviceFacts, Precision

WRONG = 0.05
"""A small network whose outputs differ by more than this share of the largest one is computed wrongly."""

HALF = ("f16", "bf16")
"""Precisions in which outputs of some models are far from those in f32."""

SHRUNK = 1e-3
"""Outputs of two requests for the same inputs that differ by more are not computed alike."""

LITTLE_GAIN = 1.2
"""Two devices that do no more than this times the work of one device after the other do not overlap."""


class Severity(Enum):
    """How much a finding matters, as it is printed: wrong results or none; less speed or doubt; good to know."""

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
        "--shape, or create a new infer request whenever the inputs are smaller",
        "refused": "does not compile the model: {reason}",
        "stateful": "cannot distribute a model with state of which a device does not run every op",
        "parted": "loses variable {variable!r} of the model's state, or fails: it is on {devices}",
        "overfull": "puts more on {name} than it holds: {weights:.3g} GB of weights, and {name} has {memory:.3g} GB",
    },
    Severity.WARNING: {
        "late": "{doing} was not finished in the {limit_s:.0f} s that were left; compiling may take longer: raise "
        "--budget",
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
"""The sentences of findings by how grave they are, and by a name for each."""


def finding(kind: str, about: str, **values: Any) -> Finding:
    """The finding of a kind, with what its sentence names."""
    severity = next(severity for severity, texts in FINDINGS.items() if kind in texts)
    return Finding(severity=severity, about=about, text=FINDINGS[severity][kind].format(**values))


def of_precision(name: str, facts: DeviceFacts, found: Precision) -> Iterator[Finding]:
    """On what a device makes of a small network."""
    gaps = {"default": found.default["max_relative"], "single": found.single["max_relative"]}
    shown = {key: share(gap) for key, gap in gaps.items()}
    if any(gap is None or gap > WRONG for gap in gaps.values()):
        yield finding("wrong", name, **shown)
    elif facts.precision not in (None, "f32"):
        yield finding("reduced", name, precision=facts.precision, **shown)


def of_overlap(pair: str, gains: Mapping[str, float]) -> Iterator[Finding]:
    """On two devices that run at the same time; ``gains`` are by what bounds the two small models."""
    if gains and max(gains.values()) <= LITTLE_GAIN:
        yield finding("turns", pair, gains=" and ".join(f"{gain:.2f} times ({kind})" for kind, gain in gains.items()))


def of_outputs(name: str, gap: float | None, precision: str | None = None) -> Finding:
    """On the model's outputs on a device, which computes in a ``precision``, against the CPU's in f32."""
    low = f": it computes in {precision}, unless --infer-precision is f32" if precision in HALF else ""
    kind = "not finite" if gap is None else "far off" if gap > WRONG else "off"
    return finding(kind, name, gap=share(gap), low=low)


def share(gap: float | None) -> str:
    """A difference as it is printed."""
    return "numbers that are not finite" if gap is None else f"{gap:.2g}"


A = TypeVar("A")

ANSWER_S = 60.0
"""How long a device may take to answer a question that compiles nothing; it then counts as hanging."""

LEAST_S = 10.0
"""What a question that compiles gets at the least, however little of the budget is left."""


class Questions:
    """Asks a client's process, which is started again after a device crashed or hung."""

    def __init__(self, client: WorkerClient, budget_s: float, on_step: Callable[[str], None]) -> None:
        self.findings: list[Finding] = []
        self._client = client
        self._end_s = time.monotonic() + budget_s
        self._on_step = on_step

    def say(self, kind: str, about: str, **values: Any) -> None:
        """Keep a finding."""
        self.findings.append(finding(kind, about, **values))

    def ask(self, about: str, doing: str, request: Request[A], *, compiles: bool = True) -> A | None:
        """The answer; None where there is none. What compiles may take all that is left of the budget."""
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
