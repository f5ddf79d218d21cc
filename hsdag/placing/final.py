"""The final comparison: finalists, every single device and OpenVINO's own choice, measured in common rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hsdag.ir.errors import SearchError
from hsdag.ir.processes import CandidateFailed
from hsdag.placing.result import Verdict
from hsdag.placing.verifying import Check, Verifier
from hsdag.runtime.measuring.candidate import Candidate, Opened
from hsdag.runtime.measuring.latency import Clock, Comparison, Protocol, Ratio, compare
from hsdag.runtime.measuring.runner import CandidateRunner

MOST_OVER = 2.0
"""A first finalist that takes this many times the comparison's time to compile is left out as well."""


@dataclass(frozen=True, eq=False)
class FinalResult:
    """What the final comparison found, by candidate name; ``answer`` is the one to deploy.

    ``ratios`` say how many times faster than ``best_single`` a candidate is, or than the answer where there is none;
    finalists, baselines and devices are a family each, and so is the placement that the search started with.
    ``best_single`` is the fastest device that may be the answer, and where none may the fastest of all;
    ``disallowed`` says why others may not.
    """

    opened: Mapping[str, Opened]
    comparison: Comparison
    ratios: Mapping[str, Ratio]
    best_single: str | None  # the fastest device alone, where one runs the model
    answer: str
    verdicts: Mapping[str, Verdict]  # on the answer and every candidate that was rejected
    disallowed: Mapping[str, str] = field(default_factory=dict)


def final_comparison(
    runner: CandidateRunner,
    finalists: Mapping[str, Candidate],
    singles: Mapping[str, Candidate],
    automatic: Mapping[str, Candidate],
    protocol: Protocol,
    check: Check,
    *,
    start: Mapping[str, Candidate] | None = None,
    disallowed: Mapping[str, str] | None = None,
    rng: np.random.Generator,
    should_stop: Callable[[], bool] = lambda: False,
    on_step: Callable[[str], None] = lambda _: None,
    clock: Clock = time.perf_counter,
) -> FinalResult:
    """Measure all candidates side by side, in orders drawn from ``rng``, and pick the answer.

    A finalist is the answer only if its 95% interval, which holds for all finalists together, lies above the speed of
    the best single device and of ``start``, the placement that the search began with, where that is faster than the
    device and passes; if it runs in a process of its own, and if its outputs are as ``check`` wants them. Otherwise it
    is that placement, or the best single device. Where no single device runs the model, the fastest finalist that
    passes is the answer, or the fastest that ran where none could be compared. Candidates that are ``disallowed``, each
    with the reason, are measured and are never the answer; where ``check`` is a limit, nor are devices that differ
    more: then no finalist has to be faster than they are. Finalists and baselines for which
    ``protocol.limit_s`` is too short are left out, and the comparison's failures say so. Raises SearchError when no
    answer is left.
    """
    begin_s, begun = clock(), dict(start or {})
    always, others = {**singles, **begun}, {**finalists, **automatic}
    opened, failures = _open_all(runner, always, others, protocol.limit_s, on_step, clock)
    verifier, reasons = Verifier(runner, check), dict(disallowed or {})
    verdicts = _differing(verifier, check, [name for name in singles if name in opened], on_step)
    reasons |= {name: verdict.reason for name, verdict in verdicts.items() if verdict.reason is not None}
    allowed = [name for name in singles if name not in reasons]
    left_s = max(protocol.limit_s - (clock() - begin_s), 0.5 * protocol.limit_s)
    left, names = (
        replace(protocol, limit_s=left_s),
        sorted(opened, key=lambda name: name in singles and name in reasons),
    )
    comparison = compare(runner.run, names, allowed, left, rng, should_stop=should_stop, on_step=on_step, clock=clock)
    comparison = Comparison(comparison.samples, {**failures, **comparison.failures})
    alive = [name for name in singles if name in comparison.samples]
    best_single = comparison.fastest([name for name in alive if name in allowed] or alive) if alive else None
    on_step("checking outputs")
    rival, kept = best_single if best_single in allowed else None, [name for name in begun if name not in reasons]
    answer, verdicts = _pick(verifier, comparison, list(finalists), rival, next(iter(kept), None), verdicts)
    verifier.close()
    for name in opened:
        runner.close(name)
    if answer is None:
        raise SearchError(_why_none(check, comparison, verdicts, reasons))
    versus = best_single or answer
    ratios = {versus: Ratio(1.0, 1.0, 1.0)}
    for family in (finalists, begun, automatic, singles):
        ratios |= family_ratios(comparison, [name for name in family if name != versus], versus)
    return FinalResult(opened, comparison, ratios, best_single, answer, verdicts, reasons)


def _differing(
    verifier: Verifier, check: Check, singles: Sequence[str], on_step: Callable[[str], None]
) -> dict[str, Verdict]:
    """Verdicts on single devices, where there is a limit: what finalists have to beat is one that keeps it."""
    if not check.is_limit:
        return {}
    on_step("checking the outputs of every device")
    return {name: verifier.compared(name) for name in singles}


def _why_none(
    check: Check, comparison: Comparison, verdicts: Mapping[str, Verdict], disallowed: Mapping[str, str]
) -> str:
    """Why no candidate is the answer."""
    reasons = [f"{name}: {reason}" for name, reason in comparison.failures.items()]
    rejected = {name: verdict.reason for name, verdict in verdicts.items() if verdict.reason is not None}
    judged = dict(disallowed) | rejected
    reasons += [f"{name}: {reason}" for name, reason in judged.items()]
    if check.is_limit:
        return f"no candidate keeps --max-difference {check.max_difference:g}; {'; '.join(reasons)}"
    if not reasons:
        return "no device holds the whole model, and no placement was found in time; raise --budget"
    if disallowed and len(judged) == len(disallowed):
        return f"no placement that keeps the limits was found in time, raise --budget; {'; '.join(reasons[:4])}"
    if not judged:
        return f"no candidate ran; {'; '.join(reasons[:4])}"
    return f"no candidate computed what the reference computes; {'; '.join(reasons[:4])}"


def family_ratios(comparison: Comparison, names: Sequence[str], reference: str) -> dict[str, Ratio]:
    """How many times faster than the reference those of ``names`` that ran are; 95% for all intervals together."""
    ran = [name for name in names if name in comparison.samples]
    return {name: comparison.ratio(name, reference, len(ran)) for name in ran}


def _open_all(
    runner: CandidateRunner,
    always: Mapping[str, Candidate],
    others: Mapping[str, Candidate],
    limit_s: float,
    on_step: Callable[[str], None],
    clock: Clock,
) -> tuple[dict[str, Opened], dict[str, str]]:
    """Compile the candidates, and say why some are missing; one that would end after ``limit_s`` is left out.

    How long a candidate takes is known from those before it. None of ``always`` is left out, and the first of
    ``others`` only where it would take very long.
    """
    opened: dict[str, Opened] = {}
    failures: dict[str, str] = {}
    begin_s, longest_s = clock(), 0.0
    for name, candidate in {**always, **others}.items():
        left_s = limit_s - (clock() - begin_s)
        is_first = name == next(iter(others), None)
        if name in others and longest_s > (MOST_OVER * limit_s if is_first else left_s):
            failures[name] = (
                f"it was left out: compiling takes about {longest_s:.0f} s, "
                f"and {max(left_s, 0.0):.0f} s of the comparison's {limit_s:.0f} s were left"
            )
            continue
        started_s = clock()
        on_step(f"compiling {name}")
        try:
            opened[name] = runner.open(name, candidate)
        except CandidateFailed as failure:
            failures[name] = failure.reason
            continue
        longest_s = max(longest_s, clock() - started_s)
        if candidate.devices is not None and len(opened[name].devices) == 1:
            failures[name] = f"it was left out: all of it runs on {opened[name].devices[0]}, so it is not a split"
            del opened[name]
            runner.close(name)
    return opened, failures


def _pick(
    verifier: Verifier,
    comparison: Comparison,
    finalists: Sequence[str],
    best_single: str | None,
    start: str | None,
    known: Mapping[str, Verdict],
) -> tuple[str | None, dict[str, Verdict]]:
    """The fastest finalist that may be the answer, else what the search started with, or the best single device.

    The verdicts on all that were judged, those that are ``known`` among them.
    """
    ran = sorted((n for n in finalists if n in comparison.samples), key=comparison.median_s)
    verdicts = dict(known)
    if start is not None and start in comparison.samples:
        verdicts[start] = verifier.in_own_process(start)
    kept = start if start in verdicts and verdicts[start].reason is None else None
    if kept is not None and best_single is not None and comparison.median_s(kept) >= comparison.median_s(best_single):
        kept = None
    rivals = [family_ratios(comparison, ran, rival) for rival in (best_single, kept) if rival is not None]
    for name in ran:
        if all(ratios[name].is_faster for ratios in rivals):
            verdicts[name] = verifier.in_own_process(name)
            if verdicts[name].reason is None:
                return name, verdicts
    if kept is not None:
        return kept, verdicts
    if best_single is not None:
        verdicts[best_single] = verdicts.get(best_single) or verifier.compared(best_single)
        return best_single, verdicts
    if verifier.is_limit:
        return None, verdicts
    return next((n for n, v in verdicts.items() if v.ran and v.difference is None), None), verdicts
