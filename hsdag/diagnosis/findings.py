"""What a user should know of a machine and a model: findings, the grave ones first.

Questions go to the measuring process, within a time; an answer that does not come is a finding, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from hsdag.ir.errors import HsdagError
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.placement.placement import Record
from hsdag.ir.processes import CandidateFailed, Request, WorkerClient, WorkerDefect
from hsdag.runtime.measuring.messages import DeviceFacts, Precision, Transfer

F16_MOST = 65504.0
"""The largest number that half precision holds."""

F16_INFINITE = 65520.0
"""From here on, half precision rounds to infinity."""

WRONG = 0.05
"""A small network whose outputs differ by more than this share of the largest one is computed wrongly."""

SHRUNK = 1e-3
"""Outputs of two requests for the same inputs that differ by more are not computed alike."""

LITTLE_GAIN = 1.2
"""Two devices that do no more than this times the work of one device after the other do not overlap."""


class Severity(Enum):
    """How much a finding matters, as it is printed."""

    DANGER = "danger"
    WARNING = "warning"
    NOTE = "note"


class Finding(Record):
    """A sentence about a device, a pair of devices or the model."""

    severity: Severity
    about: str
    text: str


def danger(about: str, text: str) -> Finding:
    """What gives wrong results, or none."""
    return Finding(severity=Severity.DANGER, about=about, text=text)


def warning(about: str, text: str) -> Finding:
    """What costs speed, or may give wrong results."""
    return Finding(severity=Severity.WARNING, about=about, text=text)


def note(about: str, text: str) -> Finding:
    """What is good to know."""
    return Finding(severity=Severity.NOTE, about=about, text=text)


def of_precision(name: str, facts: DeviceFacts, found: Precision) -> list[Finding]:
    """On what a device makes of a small network."""
    by_default, in_f32 = found.default["max_relative"], found.single["max_relative"]
    if any(gap is None or gap > WRONG for gap in (by_default, in_f32)):
        gaps = " and ".join(_share(gap) for gap in (by_default, in_f32))
        return [danger(name, f"computes a small network wrongly: by default and in f32 its outputs are off by {gaps}")]
    if facts.precision in (None, "f32"):
        return []
    return [
        note(
            name,
            f"computes in {facts.precision} by default: outputs of a small network are off by {_share(by_default)} of "
            f"the largest, with INFERENCE_PRECISION_HINT=f32 by {_share(in_f32)}",
        )
    ]


def of_overlap(pair: str, gains: Mapping[str, float]) -> list[Finding]:
    """On two devices that run at the same time; ``gains`` are by what bounds the two small models."""
    if max(gains.values(), default=2.0) > LITTLE_GAIN:
        return []
    shown = " and ".join(f"{gain:.2f} times ({kind})" for kind, gain in gains.items())
    return [warning(pair, f"hardly overlap: at once they do {shown} the work that they do one after the other")]


def of_transfer(pair: str, found: Transfer | None) -> list[Finding]:
    """On a tensor that one device writes and the other one reads."""
    if found is None or found.is_right:
        return []
    return [danger(pair, "a tensor that the first one writes arrives wrong at the second one")]


def of_support(name: str, refused: Sequence[str]) -> list[Finding]:
    """On the types of ops that a device does not run."""
    if not refused:
        return []
    return [warning(name, f"does not run {len(refused)} of the model's ops: {', '.join(sorted(set(refused)))}")]


def beyond_half_precision(graph: ComputationGraph, largest: Sequence[float] | None) -> dict[int, float]:
    """Ops that give larger numbers than half precision holds, and the largest; ``largest`` [N], None where unknown."""
    floats = floating_ops(graph)
    return {v: most for v, most in enumerate(largest or ()) if most >= F16_INFINITE and not floats[v]}


def of_half_precision(
    graph: ComputationGraph, names: str, constants: Mapping[str, float], beyond: Mapping[int, float]
) -> list[Finding]:
    """On numbers that half precision does not hold, for the devices ``names`` that compute in it.

    ``constants`` are the largest magnitudes of constants by name, ``beyond`` those of what ops give that are too large.
    """
    findings = []
    large = {name: most for name, most in constants.items() if most > F16_MOST}
    if large:
        some = next(iter(large))
        text = f"computes with {F16_MOST:g} for larger numbers in constants, such as {some!r} ({large[some]:.3g})"
        findings.append(warning(names, text))
    if beyond:
        v = next(iter(beyond))
        op = f"{graph.op_names[v]!r} ({graph.op_types[v]}, {beyond[v]:.3g})"
        text = f"{len(beyond)} ops give numbers beyond {F16_MOST:g}, which may become infinite in f16"
        findings.append(danger(names, f"{text}; the first is {op}"))
    return findings


def of_outputs(name: str, found: Mapping[str, float | None]) -> list[Finding]:
    """On the model's outputs on a device against the CPU's in f32."""
    gap = found["max_relative"]
    if gap is None:
        return [
            danger(name, "gives outputs of the model that are not finite, or not where those of the CPU in f32 are")
        ]
    text = f"gives outputs of the model that are off by {_share(gap)} of the largest from the CPU's in f32"
    return [(warning if gap > WRONG else note)(name, text)]


def of_shrinking(name: str, found: Mapping[str, float | None] | None) -> list[Finding]:
    """On outputs for smaller inputs after larger ones, against those of a new request."""
    if found is None or (found["max_relative"] is not None and found["max_relative"] <= SHRUNK):
        return []
    return [
        danger(
            name,
            "gives wrong outputs of the model once its inputs shrink: after an inference on larger inputs, those for "
            "smaller ones differ from a new request's. This is a defect of the plugin: fix the shapes with --shape, or "
            "create a new infer request whenever the inputs are smaller",
        )
    ]


def _share(gap: float | None) -> str:
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

    def ask(self, about: str, doing: str, request: Request[A], *, compiles: bool = True) -> A | None:
        """The answer; None where there is none. What compiles may take all that is left of the budget."""
        self._on_step(f"{about}: {doing}")
        limit_s, begin_s = ANSWER_S, time.monotonic()
        if compiles:
            limit_s = max(self._end_s - begin_s, LEAST_S)
        try:
            return self._client.call(request, limit_s)
        except CandidateFailed as failure:
            if compiles and failure.lost_worker and time.monotonic() - begin_s >= limit_s:
                text = f"{doing} was not finished in the {limit_s:.0f} s that were left; compiling may take longer: "
                self.findings.append(warning(about, text + "raise --budget"))
            else:
                self.findings.append(danger(about, f"{doing} failed: {failure.reason}"))
        except (HsdagError, WorkerDefect) as error:
            self.findings.append(danger(about, f"{doing} failed: {error}"))
        return None
