"""The final comparison: all candidates measured in common rounds, and their outputs compared with the model's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hsdag.ir.errors import SearchError
from hsdag.ir.placement.placement import ReferenceName
from hsdag.ir.processes import CandidateFailed
from hsdag.placing.result import Verdict
from hsdag.runtime.machine.devices import reduced_precision
from hsdag.runtime.machine.usable import OtherPrograms
from hsdag.runtime.measuring.latency import Clock, Comparison, Protocol, Ratio, compare
from hsdag.runtime.measuring.messages import Candidate, Opened
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.measuring.runner import CandidateRunner

if TYPE_CHECKING:
    from hsdag.placing.session import Session
    from hsdag.search.options import PlaceOptions

FINAL_SHARE, FINAL_LEAST_S, FINAL_MOST_SHARE = 0.25, 8.0, 0.6
"""The final comparison's part of the budget: a share of it, these seconds, or what slow models need, but at most this
share."""
FINAL_CANDIDATES, WARM_UP_RUNS, RUNS_EACH_ROUND = 4, 4, 2
"""It has the time to compile, warm up and measure so many candidates."""
LEAST_FINAL_SHARE = 0.5
"""Of its time, which the comparison has although the search took longer than it should, or checking needs more."""
PROCESS_S = 1.5  # what a process takes that loads OpenVINO
CHECK_RUNS = 8  # inferences of candidate and reference in a check of outputs
TIMELINE_SHARE, TIMELINE_INFERENCES = 0.05, 14
"""A timeline of the answer is measured where compiling it twice and so many inferences take at most this share of the
budget."""

TOLERANCE_FULL_PRECISION = 1e-4
"""Relative difference of outputs that is never too large, where all devices compute in single precision."""
TOLERANCE_REDUCED_PRECISION = 5e-2
"""The same where a device computes in half precision, as GPUs, NPUs and CPUs with such instructions do by default."""

SLACK = 2.0
"""The tolerance over the model's own difference: a split model rounds at other places than the whole one."""
LARGEST_TOLERANCE = 0.1
"""A larger difference is not rounding."""

Difference = Mapping[str, float | None]

_REFERENCE, _OTHERWISE = "reference {}", "computed differently"
_SINGLE = {"INFERENCE_PRECISION_HINT": "f32"}
_EXACT_CPU = Candidate(
    "CPU", properties={**_SINGLE, "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
)
_ONE_THREAD = Candidate("CPU", properties={**_SINGLE, "INFERENCE_NUM_THREADS": "1"})


@dataclass(frozen=True)
class Pace:
    """Seconds that a device takes to compile the model, and for an inference; and the slowest candidate to open."""

    compile_s: float = 0.0
    run_s: float = 0.0
    open_s: float = 0.0

    @staticmethod
    def of(
        profile: ModelProfile | None, slowest_open_s: float = 0.0, in_flight: int = 1, least_run_s: float = 0.0
    ) -> Pace:
        """By a profile, and by what was opened and ran since; an inference takes longer with others ``in_flight``."""
        if profile is None:
            return Pace(slowest_open_s, least_run_s, slowest_open_s)
        compile_s = max(times.compile_s for times in profile.times)
        run_s = in_flight * min(float(np.nansum(times.time_s)) for times in profile.times)
        return Pace(compile_s, max(run_s, least_run_s), max(compile_s, slowest_open_s))

    def timeline_s(self, budget_s: float) -> float:
        """What measuring a timeline takes; 0 where that is too much of the budget, so that none is measured."""
        takes_s = 2 * self.open_s + TIMELINE_INFERENCES * self.run_s
        return takes_s if takes_s <= TIMELINE_SHARE * budget_s else 0.0

    def comparison_s(
        self, budget_s: float, protocol: Protocol | None = None, left_s: float = math.inf
    ) -> tuple[float, float]:
        """Seconds of the budget for the final comparison, where ``left_s`` are left, and of them for its rounds.

        The rest is for what follows the last round: the answer in a process of its own, the reference, and a timeline.
        """
        protocol = protocol or Protocol()
        each_s = self.compile_s + (WARM_UP_RUNS + RUNS_EACH_ROUND * protocol.min_rounds) * self.run_s
        checking_s = PROCESS_S + self.open_s + self.compile_s + CHECK_RUNS * self.run_s + self.timeline_s(budget_s)
        needed_s = FINAL_CANDIDATES * each_s + self.open_s - self.compile_s + checking_s
        wanted_s = max(min(max(FINAL_SHARE * budget_s, FINAL_LEAST_S), protocol.limit_s), needed_s)
        whole_s = min(wanted_s, FINAL_MOST_SHARE * budget_s)
        whole_s = min(whole_s, max(left_s, LEAST_FINAL_SHARE * whole_s))
        return whole_s, max(whole_s - checking_s, LEAST_FINAL_SHARE * whole_s)


@dataclass(frozen=True)
class Check:
    """What outputs are compared with, and how far they may be from it.

    With ``max_difference`` that is a limit of the answer, and the reference alone judges; without, the tolerance
    follows the model, and where outputs differ from the reference there is a third opinion.
    """

    reduced: str  # the precision below single that a device computes in, or nothing
    reference: ReferenceName = "cpu"
    max_difference: float | None = None

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


def check_of(session: Session, options: PlaceOptions) -> Check:
    """What outputs are compared with; those of workloads with NumPy's. Raises DeviceError for absent devices."""
    if not session.is_on_torch:
        return Check(reduced_precision(session.devices.all), options.reference, options.max_difference)
    own = "numpy" if session.subject.is_workload else options.reference
    return Check("f16 or bf16" * session.subject.reduces_precision, own, options.max_difference)


class Verifier:
    """Compares the outputs of candidates that a runner has opened."""

    REFERENCES: ClassVar[dict[ReferenceName, Candidate]] = {
        "cpu": Candidate("CPU", properties=_SINGLE),
        "op-by-op": Candidate("op-by-op"),
        "numpy": Candidate("numpy"),
    }

    def __init__(self, runner: CandidateRunner, check: Check) -> None:
        self._runner = runner
        self.check = check
        self._tolerance: float | None = check.max_difference
        self._own_difference = 0.0  # of the whole model, between precisions
        self._open: set[ReferenceName] = set()

    def close(self) -> None:
        """Forget the references."""
        for opinion in self._open:
            self._runner.close(_REFERENCE.format(opinion))
        self._open.clear()

    def in_own_process(self, name: str) -> Verdict:
        """Run a candidate before anything else in a new process, then compare its outputs."""
        self._runner.client.restart()
        try:
            self._runner.run(name, 2)
        except CandidateFailed as failure:
            reason = f"it failed in a process of its own: {failure.reason}"
            return Verdict(self.check.reference, self.check.least, reason=reason, ran=False)
        return self.compared(name)

    def compared(self, name: str, *, is_split: bool = True) -> Verdict:
        """Compare outputs with the reference's, and where they are too far from it, with a third opinion's.

        Of a device alone there is none where precision alone changes the model's outputs more than rounding may.
        """
        first = Verdict(self.check.reference, self.check.least)
        reasons = []
        third: ReferenceName = "cpu" if self.check.reference == "op-by-op" else "op-by-op"
        for opinion in (self.check.reference,) if self.check.is_limit else (self.check.reference, third):
            try:
                difference = self._difference(name, opinion)
            except CandidateFailed as failure:
                reasons.append(f"its outputs could not be compared with {opinion}: {failure.reason}")
                continue
            relative = difference["max_relative"]
            apart = math.inf if relative is None else relative
            tolerance = self.check.least if apart <= self.check.least else self._measured_tolerance()
            verdict = Verdict(opinion, tolerance, difference)
            if apart <= tolerance:
                return verdict
            how = "in values that are not finite" if relative is None else f"by {relative:.2g}"
            reasons.append(f"its outputs differ {how} from {opinion}, and {tolerance:.2g} is allowed")
            first = verdict if first.difference is None else first
            if self._is_inconclusive and not is_split:
                break
        if self._is_inconclusive and first.difference is not None:
            reasons = [
                "outputs cannot be judged on these inputs: "
                f"this model's own differ by {self._own_difference:.2g} between {self.check.reduced}, which devices "
                "take by default, and f32, whatever the placement; give data with --input, or compute in f32 with "
                "--infer-precision f32"
            ]
        return replace(first, reason="; ".join(reasons))

    @property
    def _is_inconclusive(self) -> bool:
        """Whether the model's own outputs differ more between precisions than rounding may."""
        return self._own_difference > LARGEST_TOLERANCE

    def _measured_tolerance(self) -> float:
        """How far apart right outputs of this model may be: by how much the CPU's differ when it computes differently.

        That is with one thread, with every op computed by itself, and in the precision it takes by default where a
        device has a lower one than single. Differences too large for rounding say nothing about it.
        """
        if self._tolerance is not None:
            return self._tolerance
        others = [Candidate("CPU")] * bool(self.check.reduced)
        others += [self.REFERENCES["cpu"], _ONE_THREAD, self.REFERENCES["op-by-op"]]
        apart = [0.0]
        for other in others:
            if self._is_inconclusive or other == self.REFERENCES[self.check.reference]:
                continue
            try:
                self._runner.open(_OTHERWISE, other)
                relative = self._difference(_OTHERWISE, self.check.reference)["max_relative"]
                self._runner.close(_OTHERWISE)
            except CandidateFailed:
                continue
            if other == Candidate("CPU"):
                self._own_difference = math.inf if relative is None else relative
            if relative is not None and relative <= LARGEST_TOLERANCE:
                apart.append(relative)
        self._tolerance = max(self.check.least, min(SLACK * max(apart), LARGEST_TOLERANCE))
        return self._tolerance

    def _difference(self, name: str, opinion: ReferenceName) -> Difference:
        key = _REFERENCE.format(opinion)
        if opinion not in self._open:
            self._runner.open(key, _EXACT_CPU if self.check.is_limit and opinion == "cpu" else self.REFERENCES[opinion])
            self._open.add(opinion)
        return self._runner.difference(name, key)


TIED = 0.98
"""Of the speed of the fastest part: a whole device that has it is preferred."""


@dataclass(frozen=True, eq=False)
class FinalComparison:
    """What the final comparison found, by candidate name; ``answer`` is the one to deploy.

    ``ratios`` say how many times faster than ``best_single`` a candidate is, or than the answer where there is none;
    finalists, baselines and devices are a family each, and so is the placement that the search started with.
    ``best_single`` is the fastest device that may be the answer, and where none may the fastest of all;
    ``disallowed`` says why others may not, and ``wholes`` are devices that are none because a finalist beats every part
    of theirs. ``finalists`` come in the order of the search.
    """

    opened: Mapping[str, Opened]
    comparison: Comparison
    ratios: Mapping[str, Ratio]
    best_single: str | None  # the fastest device alone, where one runs the model
    answer: str
    verdicts: Mapping[str, Verdict]  # on the answer and every candidate that was rejected
    disallowed: Mapping[str, str]
    wholes: tuple[str, ...]
    finalists: tuple[str, ...]
    others: float  # the share of the processors that other programs took


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
    slow: Collection[str] = (),
    wholes: Collection[str] = (),
    rng: np.random.Generator,
    should_stop: Callable[[], bool] = lambda: False,
    on_step: Callable[[str], None] = lambda _: None,
    clock: Clock = time.perf_counter,
) -> FinalComparison:
    """Measure all candidates side by side, in orders drawn from ``rng``, and pick the answer.

    A finalist is the answer only if its 95% interval, which holds for all finalists together, lies above the speed of
    the best single device and of ``start``, the placement that the search began with, where that is faster than the
    device and passes; if it runs in a process of its own, and if its outputs are as ``check`` wants them. Otherwise it
    is that placement, or the best single device. Where no single device runs the model, the fastest finalist that
    passes is the answer, or the fastest that ran where none could be compared. Candidates that are ``disallowed``, each
    with the reason, are never the answer; where ``check`` is a limit, nor are devices that differ more.

    Devices, but for those known to be ``slow``, the start and the first finalist are compared in any case. Of the
    others, baselines, finalists in their order and slow devices, the comparison skips the last for which
    ``protocol.limit_s`` is too short, after which outputs are checked. Of ``wholes``, devices of which others are
    parts, none is chosen where a finalist beats every part: it is for those who keep the division. Where none does,
    one that is about as fast as the fastest part is. Raises SearchError when no answer is left.
    """
    begin_s = clock()
    others = OtherPrograms()
    begun, reasons = dict(start or {}), dict(disallowed or {})
    candidates = {**singles, **finalists, **begun, **automatic}
    sure = [*(name for name in singles if name not in slow), *begun, *list(finalists)[:1]]
    twins = [name for name in automatic if name.partition(":")[2] in finalists]
    own = [name for name in automatic if name not in twins]
    names = list(dict.fromkeys([*sure, *own, *finalists, *singles, *twins]))
    opened: dict[str, Opened] = {}

    def prepare(name: str) -> None:
        opened[name] = runner.open(name, candidates[name])
        if candidates[name].devices is not None and len(opened[name].devices) == 1:
            only = opened.pop(name).devices[0]
            runner.close(name)
            raise CandidateFailed(f"all of it runs on {only}, so it is not a split")

    verifier = Verifier(runner, check)
    verdicts: dict[str, Verdict] = {}
    if check.is_limit:  # what finalists have to beat is a device that keeps it
        on_step("checking the outputs of every device")
        for name, candidate in singles.items():
            with suppress(CandidateFailed):
                runner.open(name, candidate)
                verdicts[name] = verifier.compared(name)
                runner.close(name)
    reasons |= {name: verdict.reason for name, verdict in verdicts.items() if verdict.reason is not None}
    allowed = [name for name in singles if name not in reasons]
    parts = [name for name in allowed if name not in wholes]
    left_s = max(protocol.limit_s - (clock() - begin_s), LEAST_FINAL_SHARE * protocol.limit_s)
    comparison = compare(
        runner.run,
        names,
        parts or allowed,
        replace(protocol, limit_s=left_s),
        rng,
        prepare=prepare,
        num_sure=len(sure),
        should_stop=should_stop,
        on_step=on_step,
        clock=clock,
    )
    alive = [name for name in singles if name in comparison.samples]
    kept = [name for name in begun if name not in reasons]
    beaten: tuple[str, ...] = ()
    on_step("checking outputs")
    for able in [parts, allowed] if wholes else [allowed]:
        best_single = comparison.fastest([name for name in alive if name in able] or alive) if alive else None
        rival = best_single if best_single in able else None
        answer, verdicts = _pick(verifier, comparison, list(finalists), rival, next(iter(kept), None), verdicts)
        if answer in finalists and rival is not None:
            beaten = tuple(name for name in allowed if name not in able)
            break
    tied = [n for n in wholes if n in alive and n in allowed and comparison.ratio(n, best_single or n).value >= TIED]
    if answer == best_single and tied and answer not in wholes:
        best_single = tied[0]
        answer, verdicts = _pick(verifier, comparison, [], best_single, None, verdicts)
    verdicts = {n: verdict for n, verdict in verdicts.items() if check.is_limit or n == answer or n not in singles}
    verifier.close()
    for name in opened:
        runner.close(name)
    if answer is None:
        raise SearchError(_why_none(check, comparison, verdicts, reasons))
    versus = best_single or answer
    ratios = {versus: Ratio(1.0, 1.0, 1.0)}
    for family in (finalists, begun, automatic, singles):
        ratios |= family_ratios(comparison, [name for name in family if name != versus], versus)
    return FinalComparison(
        opened=opened,
        comparison=comparison,
        ratios=ratios,
        best_single=best_single,
        answer=answer,
        verdicts=verdicts,
        disallowed=reasons,
        wholes=beaten,
        finalists=tuple(finalists),
        others=others.share(),
    )


def _why_none(
    check: Check, comparison: Comparison, verdicts: Mapping[str, Verdict], disallowed: Mapping[str, str]
) -> str:
    rejected = {name: verdict.reason for name, verdict in verdicts.items() if verdict.reason is not None}
    others = {**disallowed, **rejected}
    reasons = "; ".join(f"{name}: {reason}" for name, reason in [*comparison.failures.items(), *others.items()])
    if check.is_limit:
        return f"no candidate keeps --max-difference {check.max_difference:g}; {reasons}"
    if not reasons:
        return "no single device ran the whole model, and no placement was found in time; raise --budget"
    if others and len(others) == len(disallowed):
        return f"no placement that keeps the limits was found in time, raise --budget; {reasons}"
    return f"no candidate {'computed what the reference computes' if others else 'ran'}; {reasons}"


def family_ratios(comparison: Comparison, names: Sequence[str], reference: str) -> dict[str, Ratio]:
    """How many times faster than the reference those of ``names`` that ran are; 95% for all intervals together."""
    ran = [name for name in names if name in comparison.samples]
    return {name: comparison.ratio(name, reference, len(ran)) for name in ran}


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
    ran = sorted((n for n in finalists if n in comparison.samples), key=comparison.median)
    verdicts = dict(known)
    if start is not None and start in comparison.samples:
        verdicts[start] = verifier.in_own_process(start)
    kept = start if start in verdicts and verdicts[start].reason is None else None
    if kept is not None and best_single is not None and comparison.ratio(kept, best_single).value <= 1.0:
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
        verdicts[best_single] = verdicts.get(best_single) or verifier.compared(best_single, is_split=False)
        return best_single, verdicts
    if verifier.check.is_limit:
        return None, verdicts
    return next((n for n, v in verdicts.items() if v.ran and v.difference is None), None), verdicts
