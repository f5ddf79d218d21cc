"""The final comparison: measures all candidates in common rounds, and picks the answer among those that verify."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from hsdag.base.errors import SearchError, option
from hsdag.base.processes import CandidateFailed
from hsdag.commands.place.pace import LEAST_FINAL_SHARE, Deadline
from hsdag.commands.place.records import Verdict
from hsdag.commands.place.verifying import Check, Verifier
from hsdag.runtime.machine.usable import OtherPrograms
from hsdag.runtime.measuring.latency import Clock, LatencyComparison, Protocol, Ratio, measure_in_rounds
from hsdag.runtime.measuring.messages import Candidate, Opened
from hsdag.runtime.measuring.runner import CandidateRunner
from hsdag.search.driver import Watcher

NO_TIME = "there was no time to compile it"
"""Reason why a finalist is missing from the comparison, as users read it."""

UNDER_HETERO = "HETERO:"
"""Prefix of the name of a placement that HETERO runs for comparison."""

START = "start"
"""Name of the placement that the search started with."""

NEAR_TIE = 0.98
"""Share of the fastest partition's speed from which on a whole device is preferred to it."""


@dataclass(frozen=True)
class Candidates:
    """Candidates of a final comparison, by name.

    Attributes:
        finalists: Placements of the search, the most promising first.
        singles: Devices that run the whole model.
        automatic: Baselines: OpenVINO's own choices, and finalists under another executor.
        start: The placement that the search started with, if any.
        disallowed: Reasons why candidates may not be the answer.
        slow: Names of single devices that are known to be slow.
        whole_devices: Devices that others are partitions of. None is the answer if a finalist beats each of the
            partitions; otherwise one that is about as fast as the fastest partition (NEAR_TIE) is preferred to it.
        defaults: Devices with OpenVINO's own settings, to the names of the same devices with chosen settings. They are
            the answer unless they are slower beyond doubt.
    """

    finalists: Mapping[str, Candidate]
    singles: Mapping[str, Candidate]
    automatic: Mapping[str, Candidate] = field(default_factory=dict)
    start: Mapping[str, Candidate] = field(default_factory=dict)
    disallowed: Mapping[str, str] = field(default_factory=dict)
    slow: Collection[str] = ()
    whole_devices: Collection[str] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_name(self) -> dict[str, Candidate]:
        """Return all candidates."""
        return {**self.singles, **self.finalists, **self.start, **self.automatic}

    @property
    def allowed(self) -> list[str]:
        """Return the single devices that may be the answer."""
        return [name for name in self.singles if name not in self.disallowed]

    @property
    def parts(self) -> list[str]:
        """Return the single devices that may be the answer, without whole devices."""
        return [name for name in self.allowed if name not in self.whole_devices]

    @property
    def sure(self) -> list[str]:
        """Return the candidates that are always compared: devices that are not slow, the start, and the first finalist.

        If all devices that may be the answer are slow, they come first, since a finalist has to beat one.
        """
        quick = [name for name in self.singles if name not in self.slow]
        allowed = [] if any(name in self.allowed for name in quick) else self.allowed
        return [*allowed, *quick, *self.start, *list(self.finalists)[:1]]

    @property
    def ranked(self) -> list[str]:
        """Return all candidates, the most important first."""
        openvinos = [name for name in self.automatic if name.partition(":")[2] not in self.finalists]
        return list(dict.fromkeys([*self.sure, *openvinos, *self.finalists, *self.singles, *self.automatic]))


@dataclass(frozen=True)
class TimeLimits:
    """Limits of a final comparison in time.

    Attributes:
        protocol: Limits of preparing candidates and of the rounds.
        end_s: ``time.monotonic`` until which candidates are opened and outputs checked.
        after_s: Seconds before ``end_s`` by which a finalist must be open.
        opening_s: Estimates the seconds that a candidate takes to open.
        clock: Returns seconds, for the rounds.
    """

    protocol: Protocol
    end_s: float = math.inf
    after_s: float = 0.0
    opening_s: Callable[[Candidate], float] = lambda _: 0.0
    clock: Clock = time.perf_counter


@dataclass(frozen=True, eq=False)
class FinalComparison:
    """Result of the final comparison, by candidate name.

    Attributes:
        candidates: Candidates, with devices that exceed a limit of the outputs among those that are disallowed.
        ratios: How many times faster than ``best_single`` each candidate is, or than the answer if there is none. The
            95% intervals hold together within each family: finalists, baselines, single devices, and the start.
        best_single: Fastest single device that may be the answer; the fastest of all if none may, and None if none
            runs the model.
        answer: Candidate to deploy.
        verdicts: Checks of outputs, of the answer and of every rejected candidate.
        whole_devices: Whole devices excluded because a finalist beat each of their partitions.
        others: Share of the processors that other programs took meanwhile.
    """

    candidates: Candidates
    opened: Mapping[str, Opened]
    comparison: LatencyComparison
    ratios: Mapping[str, Ratio]
    best_single: str | None
    answer: str
    verdicts: Mapping[str, Verdict]
    whole_devices: tuple[str, ...]
    others: float


def final_comparison(
    runner: CandidateRunner,
    candidates: Candidates,
    limits: TimeLimits,
    check: Check,
    *,
    rng: np.random.Generator,
    watcher: Watcher | None = None,
) -> FinalComparison:
    """Measure all candidates in common rounds, in random order, and pick the answer.

    A finalist is the answer only if it runs in a process of its own, its outputs pass ``check``, and its 95% interval,
    which holds for all finalists together, lies above the speed of the best single device and of the start, where the
    start passes and is faster than that device. Otherwise the answer is the start if it passes and is faster than the
    device, or else the device. Where no single device runs the model, the answer is the fastest finalist that passes,
    or the fastest that ran if no outputs could be compared.

    Single devices that are not slow, the start and the first finalist are always compared. Of the others, which are
    baselines, finalists in their order and slow devices, the last are skipped if the limit of the rounds is too short.

    If ``check`` is a limit, devices that exceed it may not be the answer. Raises SearchError when no answer is left.
    """
    begin_s, watcher = limits.clock(), watcher or Watcher()
    others = OtherPrograms()
    verifier = Verifier(runner, check, Deadline(limits.end_s, watcher.should_stop))
    # a stop before has already shortened the limit
    measuring = replace(watcher, should_stop=lambda: False) if watcher.should_stop() else watcher
    verdicts = dict[str, Verdict]()
    if check.is_limit:  # finalists have to beat a device that keeps the limit
        watcher.on_step("checking the outputs of every device")
        verdicts = _judged(verifier, candidates.singles)
        reasons = {name: verdict.reason for name, verdict in verdicts.items() if verdict.reason is not None}
        candidates = replace(candidates, disallowed={**candidates.disallowed, **reasons})
    limit_s = limits.protocol.limit_s
    left_s = max(limit_s - (limits.clock() - begin_s), LEAST_FINAL_SHARE * limit_s)
    left = replace(limits, protocol=replace(limits.protocol, limit_s=left_s))
    opened, comparison = _measured(runner, candidates, left, measuring, rng)
    watcher.on_step("checking outputs")
    choice = _Choice(candidates, comparison, verifier, verdicts)
    choice.make()
    verifier.close()
    for name in opened:
        runner.close(name)
    if choice.answer is None:
        raise SearchError(_why_none(check, comparison, choice.verdicts, candidates.disallowed))
    return FinalComparison(
        candidates=candidates,
        opened=opened,
        comparison=comparison,
        ratios=_ratios(candidates, comparison, choice.best_single or choice.answer),
        best_single=choice.best_single,
        answer=choice.answer,
        verdicts=choice.verdicts,
        whole_devices=choice.beaten,
        others=others.share(),
    )


def _measured(
    runner: CandidateRunner,
    candidates: Candidates,
    limits: TimeLimits,
    watcher: Watcher,
    rng: np.random.Generator,
) -> tuple[dict[str, Opened], LatencyComparison]:
    """Open the candidates and measure them in common rounds. Returns those that are open, and the comparison."""
    opened, by_name = dict[str, Opened](), candidates.by_name
    answers = {*candidates.allowed, *candidates.finalists, *candidates.start}
    deadline = Deadline(limits.end_s - limits.after_s)

    def prepare(name: str) -> None:
        is_optional = name in candidates.finalists and not answers.isdisjoint(opened)
        if is_optional and deadline.is_over(limits.opening_s(by_name[name])):
            raise CandidateFailed(NO_TIME)
        opened[name] = runner.open(name, by_name[name])
        if by_name[name].devices is not None and len(opened[name].devices) == 1:
            only = opened.pop(name).devices[0]
            runner.close(name)
            raise CandidateFailed(f"all of it runs on {only}, so it is not a split")

    comparison = measure_in_rounds(
        runner.run,
        candidates.ranked,
        candidates.parts or candidates.allowed,
        limits.protocol,
        rng,
        prepare=prepare,
        num_sure=len(candidates.sure),
        kept=[*candidates.defaults, *candidates.defaults.values()],
        should_stop=watcher.should_stop,
        on_step=watcher.on_step,
        pulse=runner.pulse,
        clock=limits.clock,
    )
    return opened, comparison


def _ratios(candidates: Candidates, comparison: LatencyComparison, versus: str) -> dict[str, Ratio]:
    """Return how many times faster than ``versus`` each candidate is; intervals hold together within each family."""
    ratios = {versus: Ratio(1.0, 1.0, 1.0)}
    for family in (candidates.finalists, candidates.start, candidates.automatic, candidates.singles):
        ratios |= family_ratios(comparison, [name for name in family if name != versus], versus)
    return ratios


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
    check: Check, comparison: LatencyComparison, verdicts: Mapping[str, Verdict], disallowed: Mapping[str, str]
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


def family_ratios(comparison: LatencyComparison, names: Sequence[str], reference: str) -> dict[str, Ratio]:
    """Return how many times faster than the reference those of ``names`` are that ran.

    The 95% intervals hold for all of them together.
    """
    ran = [name for name in names if name in comparison.samples]
    return {name: comparison.ratio(name, reference, len(ran)) for name in ran}


class _Choice:
    """Choice of the answer among measured candidates.

    Attributes:
        answer: The answer; None if no candidate may be it.
        best_single: Single device that the answer is compared with; None if none runs the model.
        beaten: Whole devices excluded because a finalist beat each of their partitions.
        verdicts: Checks of outputs, by name.
    """

    def __init__(
        self, candidates: Candidates, comparison: LatencyComparison, verifier: Verifier, verdicts: Mapping[str, Verdict]
    ) -> None:
        self._candidates, self._comparison, self._verifier = candidates, comparison, verifier
        self._alive = [name for name in candidates.singles if name in comparison.samples]
        self._able = [name for name in self._alive if name in candidates.allowed]
        self.answer: str | None = None
        self.best_single: str | None = None
        self.beaten: tuple[str, ...] = ()
        self.verdicts = dict(verdicts)

    def make(self) -> None:
        """Choose the answer, and keep the verdicts that are about it or about candidates that are not the answer."""
        self._verifier.heed(self._alive)
        self._choose()
        self._prefer_whole_device()
        self._prefer_default()
        singles, is_limit = self._candidates.singles, self._verifier.check.is_limit
        self.verdicts = {
            name: verdict
            for name, verdict in self.verdicts.items()
            if is_limit or name == self.answer or name not in singles
        }

    def _choose(self) -> None:
        """Choose a finalist that beats the partitions, or else all devices, or else the start or the best device."""
        candidates, comparison, alive = self._candidates, self._comparison, self._alive
        allowed, finalists = candidates.allowed, candidates.finalists
        kept = next((name for name in candidates.start if name not in candidates.disallowed), None)
        for able in [candidates.parts, allowed] if candidates.whole_devices else [allowed]:
            best = comparison.fastest([name for name in alive if name in able] or alive) if alive else None
            self.best_single = best
            rival = best if best in able else None
            self.answer = self._picked(list(finalists), rival, kept)
            if self.answer in finalists and rival is not None:
                self.beaten = tuple(name for name in allowed if name not in able)
                return

    def _prefer_whole_device(self) -> None:
        """Prefer a whole device to a partition that is about as fast."""
        whole_devices, best = self._candidates.whole_devices, self.best_single
        if self.answer != best or self.answer in whole_devices:
            return
        for name in whole_devices:
            if name in self._able and self._comparison.ratio(name, best or name).value >= NEAR_TIE:
                self._take(name)
                return

    def _prefer_default(self) -> None:
        """Prefer a device as OpenVINO sets it up to the same one with settings that are not faster beyond doubt."""
        for name, chosen in self._candidates.defaults.items():
            is_rival = name in self._able and self.answer == self.best_single == chosen
            if is_rival and not self._comparison.ratio(chosen, name).is_faster:
                self._take(name)
                return

    def _take(self, device: str) -> None:
        """Take a single device for the best one, and for the answer."""
        self.best_single = device
        self.answer = self._picked([], device, None)

    def _picked(self, finalists: Sequence[str], best_single: str | None, start: str | None) -> str | None:
        """Return the fastest finalist that may be the answer, else the start or the best single device.

        Without such a device, the fastest that ran although its outputs could not be compared; None if there is none,
        or if the check is a limit.
        """
        verifier, comparison, verdicts = self._verifier, self._comparison, self.verdicts
        ran = sorted((n for n in finalists if n in comparison.samples), key=comparison.median)
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
                    return name
        if kept is not None:
            return kept
        if best_single is not None:
            verdicts[best_single] = verdicts.get(best_single) or verifier.compared(best_single, is_split=False)
            return best_single
        if verifier.check.is_limit:
            return None
        return next((n for n, v in verdicts.items() if v.ran and v.difference is None), None)
