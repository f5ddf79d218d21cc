"""The final comparison: measures all candidates in common rounds and checks their outputs against a reference."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from hsdag.base.errors import SearchError, option
from hsdag.base.processes import CandidateFailed
from hsdag.commands.place.result import Verdict
from hsdag.commands.place.session import Session
from hsdag.ir.placement.placement import ReferenceName
from hsdag.runtime.machine.devices import reduced_precision
from hsdag.runtime.machine.usable import OtherPrograms
from hsdag.runtime.measuring.latency import Clock, Comparison, Protocol, Ratio, compare
from hsdag.runtime.measuring.messages import Candidate, Opened
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.measuring.runner import CandidateRunner
from hsdag.search.options import PlaceOptions

FINAL_SHARE = 0.25
"""Share of the budget for the final comparison, unless FINAL_LEAST_S or a slow model asks for more."""
FINAL_LEAST_S = 8.0
"""Least seconds for the final comparison, as far as FINAL_MOST_SHARE allows."""
FINAL_MOST_SHARE = 0.6
"""Largest share of the budget for the final comparison, however slow the model is."""
FINAL_CANDIDATES = 4
"""Number of candidates for which time to compile, warm up and measure is reserved."""
WARM_UP_RUNS = 4
"""Inferences reserved to warm up each of these candidates."""
RUNS_EACH_ROUND = 2
"""Inferences of each candidate in one round."""
LEAST_FINAL_SHARE = 0.5
"""Share of the comparison's time that rounds keep even where checking outputs needs more than the rest."""
LEAST_LATE_SHARE = 0.1
"""Share of the budget that the comparison keeps even where all steps before it overran."""
PROCESS_S = 1.5
"""Least seconds to start a process that loads OpenVINO."""
CHECK_RUNS = 8
"""Inferences, of candidate and reference together, in one check of outputs."""
TIMELINE_SHARE = 0.05
"""Largest share of the budget that measuring a timeline of the answer may take; otherwise none is measured."""
TIMELINE_INFERENCES = 14
"""Inferences reserved for measuring a timeline."""

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

PART_S = 0.06
"""Least seconds, roughly, that OpenVINO takes to compile one of many parts of a model."""
NO_TIME = "there was no time to compile it"
"""Reason why a finalist is missing from the comparison, as users read it."""

_REFERENCE, _OTHERWISE = "reference {}", "computed differently"
_SINGLE = {"INFERENCE_PRECISION_HINT": "f32"}
_EXACT = {**_SINGLE, "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
_ONE_THREAD = Candidate("CPU", properties={**_SINGLE, "INFERENCE_NUM_THREADS": "1"})


@dataclass(frozen=True)
class Pace:
    """Estimated seconds of the steps of the final comparison.

    Attributes:
        compile_s: To compile the whole model, on the slowest device.
        run_s: For an inference, on the fastest device.
        open_s: To open the slowest candidate.
        process_s: To start a worker process.
        part_s: To compile one of many parts of the model.
    """

    compile_s: float = 0.0
    run_s: float = 0.0
    open_s: float = 0.0
    process_s: float = PROCESS_S
    part_s: float = PART_S

    @staticmethod
    def of(
        profile: ModelProfile | None,
        slowest_open_s: float = 0.0,
        in_flight: int = 1,
        least_run_s: float = 0.0,
        process_s: float = PROCESS_S,
        part_s: float = PART_S,
    ) -> Pace:
        """Return the pace by a profile and by what was measured since.

        Args:
            slowest_open_s: Seconds of the slowest candidate opened so far.
            in_flight: Number of inferences that run at a time, by which each takes longer.
            least_run_s: Measured seconds of an inference, which count where the profile says less.
        """
        process_s, part_s = max(process_s, PROCESS_S), max(part_s, PART_S)
        if profile is None:
            return Pace(slowest_open_s, least_run_s, slowest_open_s, process_s, part_s)
        compile_s = max(times.compile_s for times in profile.times)
        run_s = in_flight * min(float(np.nansum(times.time_s)) for times in profile.times)
        return Pace(compile_s, max(run_s, least_run_s), max(compile_s, slowest_open_s), process_s, part_s)

    def opening_s(self, candidate: Candidate) -> float:
        """Estimate the seconds to compile a candidate: a whole model, or parts, which OpenVINO compiles in turn."""
        if candidate.devices is None:
            return self.compile_s
        return max(2 * self.compile_s + PART_S * candidate.num_parts, self.part_s * candidate.num_parts)

    @property
    def check_s(self) -> float:
        """Seconds to check the answer in a running process: the reference compiles, then both run."""
        return self.compile_s + CHECK_RUNS * self.run_s

    def timeline_s(self, budget_s: float) -> float:
        """Return the seconds to measure a timeline; 0 where they exceed TIMELINE_SHARE, and none is measured."""
        takes_s = 2 * self.open_s + TIMELINE_INFERENCES * self.run_s
        return takes_s if takes_s <= TIMELINE_SHARE * budget_s else 0.0

    def comparison_s(
        self, budget_s: float, protocol: Protocol | None = None, left_s: float = math.inf
    ) -> tuple[float, float]:
        """Return the seconds for the final comparison when ``left_s`` are left, and how many of these rounds get.

        The others are for what follows the last round: running the answer in a process of its own, checking it against
        the reference, and measuring a timeline.
        """
        protocol = protocol or Protocol()
        each_s = self.compile_s + (WARM_UP_RUNS + RUNS_EACH_ROUND * protocol.min_rounds) * self.run_s
        checking_s = self.process_s + self.open_s + self.check_s + self.timeline_s(budget_s)
        needed_s = FINAL_CANDIDATES * each_s + self.open_s - self.compile_s + checking_s
        wanted_s = max(min(max(FINAL_SHARE * budget_s, FINAL_LEAST_S), protocol.limit_s), needed_s)
        whole_s = min(wanted_s, FINAL_MOST_SHARE * budget_s)
        whole_s = min(whole_s, max(left_s, LEAST_LATE_SHARE * budget_s))
        return whole_s, max(whole_s - checking_s, LEAST_FINAL_SHARE * whole_s)


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
        """Whether no candidate that differs more can be the answer."""
        return self.max_difference is not None

    @property
    def least(self) -> float:
        """Requested largest difference, or else the tolerance that every model gets."""
        if self.max_difference is not None:
            return self.max_difference
        return TOLERANCE_REDUCED_PRECISION if self.reduced else TOLERANCE_FULL_PRECISION

    def tolerance(self, own: float, *, is_split: bool) -> float:
        """Return the largest accepted relative difference of outputs from the reference's.

        Args:
            own: Relative difference of the whole model's outputs when one device computes them in another way.
            is_split: Whether the outputs are those of a placement over several devices.
        """
        least = TOLERANCE_SPLIT if self.reduced and is_split and not self.is_limit else self.least
        return least if self.is_limit else max(least, min(SLACK * own, LARGEST_TOLERANCE))


def check_of(session: Session, options: PlaceOptions) -> Check:
    """Return how to check outputs under these options; workloads are compared with NumPy.

    Raises DeviceError for absent devices.
    """
    if not session.is_on_torch:
        return Check(reduced_precision(session.devices.all), options.reference, options.max_difference)
    own = "numpy" if session.loaded.is_workload else options.reference
    precisions = {spec.properties.get("precision", "f32") for spec in session.devices.all} - {"f32"}
    reduced = " or ".join(sorted(precisions)) or "f16 or bf16" * session.loaded.reduces_precision
    return Check(reduced, own, options.max_difference)


class Verifier:
    """Comparison of the outputs of opened candidates with a reference.

    Args:
        runner: Runner that has the candidates open.
        end_s: ``time.monotonic`` after which no further way to compute the model is tried to widen the tolerance,
            and no process is started for a candidate.
        should_stop: Returns True to end both early.
    """

    REFERENCES: ClassVar[dict[ReferenceName, Candidate]] = {
        "cpu": Candidate("CPU", properties=_EXACT),
        "op-by-op": Candidate("op-by-op"),
        "numpy": Candidate("numpy"),
    }

    def __init__(
        self,
        runner: CandidateRunner,
        check: Check,
        end_s: float = math.inf,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.runner = runner
        self._end_s, self._should_stop = end_s, should_stop
        self.check = check
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
        if self._is_over(self.runner.client.start_s + self.runner.taken.slowest_open_s):
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
                difference = self._difference(name, opinion)
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
        """Whether the model's own outputs differ more between precisions than rounding may."""
        return self._own_difference > LARGEST_TOLERANCE

    def _other_ways(self) -> list[str | Candidate]:
        """Return other ways to compute the whole model on one device: in the CPU's default precision, in single
        precision, on one thread, and op by op."""
        others = [Candidate("CPU")] * bool(self.check.reduced)
        others += [self.REFERENCES["cpu"], _ONE_THREAD, self.REFERENCES["op-by-op"]]
        return [other for other in others if other != self.REFERENCES[self.check.reference]]

    def _is_over(self, takes_s: float = 0.0) -> bool:
        return self._should_stop() or time.monotonic() + takes_s > self._end_s

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
            if self._is_inconclusive or (self._was_measured and self._is_over()):
                break
            other = self._otherwise.pop(0)
            try:
                if isinstance(other, Candidate):
                    self.runner.open(_OTHERWISE, other)
                name = _OTHERWISE if isinstance(other, Candidate) else other
                relative = self._difference(name, self.check.reference)["max_relative"]
                if isinstance(other, Candidate):
                    self.runner.close(_OTHERWISE)
            except CandidateFailed:
                continue
            if other == Candidate("CPU"):
                self._own_difference = math.inf if relative is None else relative
            if relative is not None and relative <= LARGEST_TOLERANCE:
                self._own, self._was_measured = max(self._own, relative), True
        return self.check.tolerance(self._own, is_split=is_split)

    def difference(self, name: str) -> Difference:
        """Return how far a candidate's outputs are from the reference's, by measure. Raises CandidateFailed."""
        return self._difference(name, self.check.reference)

    def _difference(self, name: str, opinion: ReferenceName) -> Difference:
        key = _REFERENCE.format(opinion)
        if opinion not in self._open:
            self.runner.open(key, self.REFERENCES[opinion])
            self._open.add(opinion)
        return self.runner.difference(name, key)


def _in_words(relative: float) -> str:
    """Return a relative difference in words."""
    if not math.isfinite(relative):
        return "values that are not finite"
    return f"{relative:.0%} of their largest value" if relative < 1 else "more than their largest value"


NEAR_TIE = 0.98
"""Share of the fastest partition's speed from which on a whole device is preferred to it."""


@dataclass(frozen=True, eq=False)
class FinalComparison:
    """Result of the final comparison, by candidate name.

    Attributes:
        ratios: How many times faster than ``best_single`` each candidate is, or than the answer if there is none. The
            95% intervals hold together within each family: finalists, baselines, single devices, and the start.
        best_single: Fastest single device that may be the answer; the fastest of all if none may, and None if none
            runs the model.
        answer: Candidate to deploy.
        verdicts: Checks of outputs, of the answer and of every rejected candidate.
        disallowed: Reasons why candidates may not be the answer.
        whole_devices: Whole devices excluded because a finalist beat each of their partitions.
        finalists: Placements that the search proposed, in its order.
        others: Share of the processors that other programs took meanwhile.
    """

    opened: Mapping[str, Opened]
    comparison: Comparison
    ratios: Mapping[str, Ratio]
    best_single: str | None
    answer: str
    verdicts: Mapping[str, Verdict]
    disallowed: Mapping[str, str]
    whole_devices: tuple[str, ...]
    finalists: tuple[str, ...]
    others: float


def _always_compared(singles: Iterable[str], slow: Collection[str], allowed: Sequence[str]) -> list[str]:
    """Return the devices that are not slow, behind the allowed ones if all of those are: a finalist has to beat one."""
    quick = [name for name in singles if name not in slow]
    return quick if any(name in allowed for name in quick) else [*allowed, *quick]


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
    whole_devices: Collection[str] = (),
    defaults: Mapping[str, str] | None = None,
    end_s: float = math.inf,
    after_s: float = 0.0,
    opening_s: Callable[[Candidate], float] = lambda _: 0.0,
    rng: np.random.Generator,
    should_stop: Callable[[], bool] = lambda: False,
    on_step: Callable[[str], None] = lambda _: None,
    clock: Clock = time.perf_counter,
) -> FinalComparison:
    """Measure all candidates in common rounds, in random order, and pick the answer.

    A finalist is the answer only if it runs in a process of its own, its outputs pass ``check``, and its 95% interval,
    which holds for all finalists together, lies above the speed of the best single device and of ``start``, where the
    start passes and is faster than that device. Otherwise the answer is the start if it passes and is faster than the
    device, or else the device. Where no single device runs the model, the answer is the fastest finalist that passes,
    or the fastest that ran if no outputs could be compared.

    Single devices that are not ``slow``, the start and the first finalist are always compared. Of the others, which are
    baselines, finalists in their order and slow devices, the last are skipped if ``protocol.limit_s`` is too short.

    Args:
        finalists: Placements of the search, the most promising first.
        singles: Devices that run the whole model.
        automatic: Baselines: OpenVINO's own choices, and finalists under another executor.
        start: The placement that the search started with, if any.
        disallowed: Reasons why candidates may not be the answer. If ``check`` is a limit, devices that exceed it are
            added.
        slow: Names of single devices that are known to be slow.
        whole_devices: Devices that others are partitions of. None is the answer if a finalist beats each of the
            partitions; otherwise one that is about as fast as the fastest partition (NEAR_TIE) is preferred to it.
        defaults: Devices with OpenVINO's own settings, to the names of the same devices with chosen settings. They are
            the answer unless they are slower beyond doubt.
        end_s: ``time.monotonic`` until which candidates are opened and outputs checked.
        after_s: Seconds before ``end_s`` by which a finalist must be open.
        opening_s: Estimates the seconds that a candidate takes to open.

    Raises SearchError when no answer is left.
    """
    begin_s = clock()
    others, was_stopped = OtherPrograms(), should_stop()
    begun, reasons, given = dict(start or {}), dict(disallowed or {}), dict(defaults or {})
    candidates = {**singles, **finalists, **begun, **automatic}
    opened: dict[str, Opened] = {}

    def prepare(name: str) -> None:
        has_answer = any(other in (*allowed, *finalists, *begun) for other in opened)
        if has_answer and name in finalists and time.monotonic() + opening_s(candidates[name]) > end_s - after_s:
            raise CandidateFailed(NO_TIME)
        opened[name] = runner.open(name, candidates[name])
        if candidates[name].devices is not None and len(opened[name].devices) == 1:
            only = opened.pop(name).devices[0]
            runner.close(name)
            raise CandidateFailed(f"all of it runs on {only}, so it is not a split")

    verifier = Verifier(runner, check, end_s, should_stop)
    if check.is_limit:  # finalists have to beat a device that keeps the limit
        on_step("checking the outputs of every device")
    verdicts = _judged(verifier, singles) if check.is_limit else {}
    reasons |= {name: verdict.reason for name, verdict in verdicts.items() if verdict.reason is not None}
    allowed = [name for name in singles if name not in reasons]
    parts = [name for name in allowed if name not in whole_devices]
    sure = [*_always_compared(singles, slow, allowed), *begun, *list(finalists)[:1]]
    twins = [name for name in automatic if name.partition(":")[2] in finalists]
    own = [name for name in automatic if name not in twins]
    names = list(dict.fromkeys([*sure, *own, *finalists, *singles, *twins]))
    left_s = max(protocol.limit_s - (clock() - begin_s), LEAST_FINAL_SHARE * protocol.limit_s)
    comparison = compare(
        runner.run,
        names,
        parts or allowed,
        replace(protocol, limit_s=left_s),
        rng,
        prepare=prepare,
        num_sure=len(sure),
        kept=[*given, *given.values()],
        should_stop=lambda: should_stop() and not was_stopped,  # a stop before has already shortened the limit
        on_step=on_step,
        pulse=runner.pulse,
        clock=clock,
    )
    alive = [name for name in singles if name in comparison.samples]
    verifier.heed(alive)
    kept = [name for name in begun if name not in reasons]
    beaten: tuple[str, ...] = ()
    on_step("checking outputs")
    for able in [parts, allowed] if whole_devices else [allowed]:
        best_single = comparison.fastest([name for name in alive if name in able] or alive) if alive else None
        rival = best_single if best_single in able else None
        answer, verdicts = _pick(verifier, comparison, list(finalists), rival, next(iter(kept), None), verdicts)
        if answer in finalists and rival is not None:
            beaten = tuple(name for name in allowed if name not in able)
            break
    tied = [
        n
        for n in whole_devices
        if n in alive and n in allowed and comparison.ratio(n, best_single or n).value >= NEAR_TIE
    ]
    if answer == best_single and tied and answer not in whole_devices:
        best_single = tied[0]
        answer, verdicts = _pick(verifier, comparison, [], best_single, None, verdicts)
    unbeaten = [
        name
        for name, own in given.items()
        if answer == best_single == own and name in alive and name in allowed
        if not comparison.ratio(own, name).is_faster
    ]
    if unbeaten:
        best_single = unbeaten[0]
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
        whole_devices=beaten,
        finalists=tuple(finalists),
        others=others.share(),
    )


def _judged(verifier: Verifier, singles: Mapping[str, Candidate]) -> dict[str, Verdict]:
    """Return the verdict on each single device that runs the model."""
    verdicts = {}
    for name, candidate in singles.items():
        with suppress(CandidateFailed):
            verifier.runner.open(name, candidate)
            verdicts[name] = verifier.compared(name)
            verifier.runner.close(name)
    return verdicts


def _why_none(
    check: Check, comparison: Comparison, verdicts: Mapping[str, Verdict], disallowed: Mapping[str, str]
) -> str:
    rejected = {name: verdict.reason for name, verdict in verdicts.items() if verdict.reason is not None}
    others = {**disallowed, **rejected}
    reasons = "; ".join(f"{name}: {reason}" for name, reason in [*comparison.failures.items(), *others.items()])
    if check.is_limit:
        return f"no candidate keeps {option('max_difference')} {check.max_difference:g}; {reasons}"
    if not reasons:
        return f"no single device ran the whole model, and no placement was found in time; raise {option('budget')}"
    if others and len(others) == len(disallowed):
        return f"no placement that keeps the limits was found in time, raise {option('budget')}; {reasons}"
    return f"no candidate {'computed what the reference computes' if others else 'ran'}; {reasons}"


def family_ratios(comparison: Comparison, names: Sequence[str], reference: str) -> dict[str, Ratio]:
    """Return how many times faster than the reference those of ``names`` are that ran.

    The 95% intervals hold for all of them together.
    """
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
    """Return the fastest finalist that may be the answer, else the start or the best single device; and all verdicts.

    The verdicts include those already ``known``.
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
