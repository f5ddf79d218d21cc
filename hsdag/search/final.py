"""The final comparison: finalists, every single device and OpenVINO's own choice, measured in common rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import SearchError
from hsdag.runtime.measuring.candidate import Candidate, CandidateRunner, Opened
from hsdag.runtime.measuring.latency import Comparison, Protocol, compare
from hsdag.runtime.measuring.worker_client import CandidateFailed
from hsdag.runtime.platforms.devices import reduces_precision

TOLERANCE_FULL_PRECISION = 1e-4
"""Largest relative difference of outputs to the CPU's where all devices compute in single precision."""
TOLERANCE_REDUCED_PRECISION = 5e-2
"""The same where a device computes in half precision, as GPUs, NPUs and CPUs with such instructions do by default."""

_REFERENCE = "reference"


@dataclass(frozen=True, eq=False)
class FinalResult:
    """What the final comparison found.

    ``opened`` and ``comparison`` are keyed by candidate name. ``answer`` is the candidate to deploy,
    ``best_single`` the fastest device alone, None where none runs the model, ``differences`` the distance of
    outputs to the reference's for the answer and every finalist that was turned down for it.
    """

    opened: Mapping[str, Opened]
    comparison: Comparison
    best_single: str | None
    answer: str
    differences: Mapping[str, Mapping[str, float | None]]
    reference: str


def final_comparison(
    runner: CandidateRunner,
    finalists: Mapping[str, Candidate],
    singles: Mapping[str, Candidate],
    automatic: Mapping[str, Candidate],
    protocol: Protocol,
    tolerance: float,
    reference: tuple[str, Candidate],
    *,
    should_stop: Callable[[], bool] = lambda: False,
    on_round: Callable[[int], None] = lambda _: None,
) -> FinalResult:
    """Measure all candidates side by side and pick the answer.

    A finalist is the answer only if it is faster than the best single device by more than the 95% interval,
    which is widened for their number (Bonferroni),
    and its outputs are within ``tolerance`` of the reference's. Where no single device runs the model, the
    fastest finalist with the reference's outputs is the answer, or the fastest where there is no reference.
    Raises SearchError when that leaves none.
    """
    begin = time.perf_counter()
    candidates = {**singles, **finalists, **automatic}
    opened: dict[str, Opened] = {}
    failures: dict[str, str] = {}
    for name, candidate in candidates.items():
        try:
            opened[name] = runner.open(name, candidate)
        except CandidateFailed as failure:
            failures[name] = failure.reason
    left_s = max(protocol.limit_s - (time.perf_counter() - begin), 0.5 * protocol.limit_s)
    measuring = replace(protocol, limit_s=left_s)
    comparison = compare(runner.run, list(opened), list(singles), measuring, should_stop=should_stop, on_round=on_round)
    comparison = Comparison(comparison.samples, {**failures, **comparison.failures})
    alive = [name for name in singles if name in comparison.samples]
    best_single = comparison.fastest(alive) if alive else None
    answer, differences = _pick(runner, comparison, finalists, best_single, tolerance, reference)
    for name in opened:
        runner.close(name)
    if answer is None:
        reasons = [f"{name}: {reason}" for name, reason in comparison.failures.items()]
        reasons += [f"{name}: its {outputs_differ(d)}" for name, d in differences.items()]
        raise SearchError(f"nothing ran the model as the reference does; {'; '.join(reasons[:4])}")
    return FinalResult(opened, comparison, best_single, answer, differences, reference[0])


def tolerance_for(devices: Sequence[DeviceSpec]) -> float:
    """How far outputs may be from the CPU's, relative to the largest magnitude. Raises DeviceError for absent devices.

    A device that computes in half precision rounds anew wherever a placement parts what it would have fused.
    """
    return TOLERANCE_REDUCED_PRECISION if reduces_precision(tuple(devices)) else TOLERANCE_FULL_PRECISION


def is_within(difference: Mapping[str, float | None], tolerance: float) -> bool:
    """Whether outputs are near enough to the reference's."""
    relative = difference["max_relative"]
    return relative is not None and relative <= tolerance


def outputs_differ(difference: Mapping[str, float | None]) -> str:
    """How outputs differ from the reference's, in words."""
    relative = difference["max_relative"]
    return "outputs differ in values that are not finite" if relative is None else f"outputs differ by {relative:.2g}"


def _pick(
    runner: CandidateRunner,
    comparison: Comparison,
    finalists: Mapping[str, Candidate],
    best_single: str | None,
    tolerance: float,
    reference: tuple[str, Candidate],
) -> tuple[str | None, dict[str, dict[str, float | None]]]:
    """The fastest eligible finalist with the reference's outputs, else the best single device."""
    ran = sorted((n for n in finalists if n in comparison.samples), key=comparison.median_s)
    eligible = ran
    if best_single is not None:
        level = 1 - 0.05 / max(len(ran), 1)  # of several finalists that are no faster, one in twenty may seem so
        eligible = [*(n for n in ran if comparison.ratio(n, best_single, level=level).is_faster), best_single]
    differences: dict[str, dict[str, float | None]] = {}
    try:
        runner.open(_REFERENCE, reference[1])
    except CandidateFailed:
        return best_single or next(iter(ran), None), differences
    answer = best_single
    for name in eligible:
        try:
            differences[name] = runner.difference(name, _REFERENCE)
        except CandidateFailed:
            continue
        if is_within(differences[name], tolerance):
            answer = name
            break
    runner.close(_REFERENCE)
    return answer, differences
