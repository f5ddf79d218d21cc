"""The final comparison: finalists, every single device and OpenVINO's own choice, measured in common rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import SearchError
from hsdag.runtime.measuring.candidate import Candidate, CandidateRunner, Opened
from hsdag.runtime.measuring.latency import Comparison, Protocol, Ratio, compare
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

    ``opened`` and ``comparison`` are keyed by candidate name, and so are ``ratios``: how many times faster than
    ``best_single``, or than the answer where there is none; finalists, baselines and devices are a family each.
    ``answer`` is the candidate to deploy,
    ``best_single`` the fastest device alone, None where none runs the model, ``differences`` the distance of
    outputs to the reference's for the answer and every finalist that was turned down for it.
    """

    opened: Mapping[str, Opened]
    comparison: Comparison
    ratios: Mapping[str, Ratio]
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
    rng: np.random.Generator,
    should_stop: Callable[[], bool] = lambda: False,
    on_step: Callable[[str], None] = lambda _: None,
) -> FinalResult:
    """Measure all candidates side by side, in orders drawn from ``rng``, and pick the answer.

    A finalist is the answer only if its 95% interval, which holds for all finalists together, lies above the speed of
    the best single device, and its outputs are within ``tolerance`` of the reference's. Where no single device runs the
    model, the fastest finalist with the reference's outputs is the answer, or the fastest where there is no reference.
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
    names = list(opened)
    comparison = compare(runner.run, names, list(singles), measuring, rng, should_stop=should_stop, on_step=on_step)
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
    versus = best_single or answer
    ratios = {versus: Ratio(1.0, 1.0, 1.0)}
    for family in (finalists, automatic, singles):
        ratios |= family_ratios(comparison, [name for name in family if name != versus], versus)
    return FinalResult(opened, comparison, ratios, best_single, answer, differences, reference[0])


def family_ratios(comparison: Comparison, names: Sequence[str], reference: str) -> dict[str, Ratio]:
    """How many times faster than the reference those of ``names`` that ran are, all intervals together with 95%.

    Tables, sentences and the choice of the answer go by these.
    """
    ran = [name for name in names if name in comparison.samples]
    return {name: comparison.ratio(name, reference, len(ran)) for name in ran}


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
        ratios = family_ratios(comparison, ran, best_single)
        eligible = [*(n for n in ran if ratios[n].is_faster), best_single]
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
