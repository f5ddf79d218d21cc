"""Latency measurement in interleaved rounds over all candidates, so that drift affects all of them equally.

Legend: C candidates, R rounds, P devices.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hsdag.base.processes import CandidateFailed
from hsdag.ir.placement.placement import LatencyRecord

Clock = Callable[[], float]
"""Function that returns passing seconds, like ``time.perf_counter``."""

RunCandidate = Callable[[str, int], Sequence[float]]
"""Function ``run(candidate, n)`` that returns the seconds of n inferences, or raises CandidateFailed."""

MIN_ROUNDS_TO_CLAIM = 6
"""Number of rounds below which no difference is claimed."""

MAX_ROUNDS = 60

ERROR = 0.025
"""Chance, on either side, that one of a family of intervals misses the true ratio."""

LEAST_RUN_S = 1e-6
"""Least seconds that a run counts, also where its value is simulated."""

WARM_UP_SHARE = 0.1
"""Share of a comparison's time for warming up all candidates; the first run of each comes in any case."""

HOPELESS_ROUNDS = 3
"""Number of rounds after which a slow candidate may be dropped."""

CHEAP = 0.05
"""Share of the limit by which the least rounds may exceed it: where compiling has used it up, inferences are quick."""

GAVE_LESS = 1.3
"""Pulse, as a multiple of the least pulse of a comparison, above which the machine gave much less than it can."""

SHORTER = 3
"""Rounds, as a multiple of the least number, for which turns are shortened if they do not fit otherwise.

Of many short rounds, fewer are lost while the machine gives less."""

MOST_STOPPING_S = 1.0
"""Seconds after a wish to stop, at most, for which rounds go on until there are the least number of them."""

REPEATED = 2
"""Most rounds, as a multiple of the wanted ones, if rounds in which the machine gave less do not count."""


@dataclass(frozen=True)
class Protocol:
    """Limits of a measurement. Rounds end when every interval that matters is narrow, or a limit is reached.

    ``limit_s`` includes preparing and warming up. A round that would exceed it is not begun, except the first, and
    the least rounds if they take next to nothing. If ``min_rounds`` would exceed it, candidates that can no longer be
    called faster are left out to save time. A candidate that was below ``hopeless`` times the reference's speed in each
    of three or more rounds is dropped: its figure needs no more digits.
    """

    min_rounds: int = 6
    max_rounds: int = MAX_ROUNDS
    turn_s: float = 0.15
    limit_s: float = 25.0
    interval_width: float = 0.02
    hopeless: float = 0.9
    warm_up_agreement: float = 0.05
    warm_up_runs: int = 40
    warm_up_s: float = 2.0
    turn_runs: int | None = None
    """Number of inferences in a turn, instead of its time."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Seconds of every inference of one candidate, round by round."""

    rounds: tuple[tuple[float, ...], ...]

    @property
    def all_s(self) -> NDArray[np.float64]:
        """Return the seconds of all inferences."""
        return np.concatenate([np.asarray(r) for r in self.rounds])

    @property
    def round_medians_s(self) -> NDArray[np.float64]:
        """Return [R] the median seconds of each round's inferences."""
        return np.asarray([median(r) for r in self.rounds])

    def record(self) -> LatencyRecord:
        """Return the median of the rounds' medians, and mean and 95th percentile over all inferences."""
        seconds = self.all_s
        return LatencyRecord(
            median_s=float(np.median(self.round_medians_s)),
            mean_s=float(seconds.mean()),
            p95_s=float(np.percentile(seconds, 95)),
            runs=len(seconds),
            measured=True,
        )


@dataclass(frozen=True)
class Ratio:
    """A reference's latency over a candidate's, with its 95% interval."""

    value: float
    low: float
    high: float
    num_rounds: int = MIN_ROUNDS_TO_CLAIM

    @property
    def is_known(self) -> bool:
        """Return whether there were enough rounds for the interval to be shown, and for a claim."""
        return self.num_rounds >= MIN_ROUNDS_TO_CLAIM

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """Return the interval's ends, None for a single round, which has none."""
        return (self.low, self.high) if self.num_rounds > 1 else (None, None)

    @property
    def interval(self) -> list[float | None]:
        """Return the interval's ends as JSON values, None if there were too few rounds."""
        return [self.low, self.high] if self.is_known else [None, None]

    @property
    def interval_text(self) -> str:
        """Return the interval as tables show it, or that there were too few rounds."""
        return f"{self.low:.3f}..{self.high:.3f}" if self.is_known else f"too few rounds ({self.num_rounds})"

    @property
    def is_faster(self) -> bool:
        """Return whether there were enough rounds and the interval lies above 1."""
        return self.is_known and self.low > 1.0

    @property
    def is_slower(self) -> bool:
        """Return whether there were enough rounds and the interval lies below 1."""
        return self.is_known and self.high < 1.0


@dataclass(frozen=True, eq=False)
class LatencyComparison:
    """Samples of every candidate that ran, in common rounds, and why others failed; some may have been skipped."""

    samples: Mapping[str, Samples]
    failures: Mapping[str, str]
    disturbed: float = 0.0
    """Share of the rounds' time in which the machine gave much less than otherwise."""

    def median(self, candidate: str) -> float:
        """Return the median of a candidate's round medians, in seconds."""
        return float(np.median(self.samples[candidate].round_medians_s))

    def fastest(self, candidates: Sequence[str]) -> str:
        """Return the fastest of the candidates that ran to the end. Raises ValueError if none ran.

        Candidates that were dropped met the machine at other moments, so they do not compare.
        """
        ran = [c for c in candidates if c in self.samples]
        most = max(len(self.samples[c].rounds) for c in ran)
        to_the_end = [c for c in ran if len(self.samples[c].rounds) == most]
        return max(to_the_end, key=lambda c: self.ratio(c, to_the_end[0]).value)

    def ratio(self, candidate: str, reference: str, family: int = 1) -> Ratio:
        """Return the reference's latency over the candidate's, over common rounds, as ``paired_ratio`` does."""
        common = min(len(self.samples[reference].rounds), len(self.samples[candidate].rounds))
        return paired_ratio(
            self.samples[reference].round_medians_s[:common], self.samples[candidate].round_medians_s[:common], family
        )


def paired_ratio(reference_s: NDArray[np.float64], candidate_s: NDArray[np.float64], family: int = 1) -> Ratio:
    """Return the geometric mean of the rounds' ratios, reference over candidate, with Student's interval of logarithms.

    Both arrays [R] hold one figure per common round, paired, so that a drift that slowed both cancels out. The
    interval is mean +- t s / sqrt(R) with t of R - 1 degrees of freedom (Student, The probable error of a mean,
    Biometrika 6, 1908). If it is one of ``family`` intervals, they hold together with 95%: each gets an equal share
    of the error (Dunn, Multiple comparisons among means, JASA 56, 1961). A single round gives 0 to infinity.
    """
    logs = np.log(reference_s) - np.log(candidate_s)
    mean = float(logs.mean())
    n = len(logs)
    if n < 2:
        return Ratio(float(np.exp(mean)), 0.0, float("inf"), n)
    half = half_width(float(logs.std(ddof=1)), n, family)
    with np.errstate(over="ignore"):
        value, low, high = (float(end) for end in np.exp([mean, mean - half, mean + half]))
    return Ratio(value, low, high, n)


def warm_up(run: RunCandidate, candidate: str, protocol: Protocol, clock: Clock = time.perf_counter) -> float:
    """Run a candidate until two medians of three in a row agree, or time is up; return a run's seconds."""
    begin = last = clock()
    current = median(run(candidate, 1))
    each_s = clock() - last
    runs = 1
    while runs < protocol.warm_up_runs and clock() - begin <= protocol.warm_up_s:
        last = clock()
        previous, current = current, median(run(candidate, 3))
        runs += 3
        each_s = (clock() - last) / 3
        if abs(current - previous) <= protocol.warm_up_agreement * current:
            break
    return max(each_s, LEAST_RUN_S)


def measure_in_rounds(
    run: RunCandidate,
    candidates: Sequence[str],
    references: Sequence[str],
    protocol: Protocol,
    rng: np.random.Generator,
    *,
    prepare: Callable[[str], object] = lambda _: None,
    num_sure: int | None = None,
    kept: Collection[str] = (),
    should_stop: Callable[[], bool] = lambda: False,
    on_step: Callable[[str], None] = lambda _: None,
    pulse: Callable[[], Sequence[float]] = list,
    clock: Clock = time.perf_counter,
) -> LatencyComparison:
    """Measure all candidates in common rounds.

    Each is prepared and warmed up in turn. Every round takes each candidate once, in an order drawn anew, so that none
    keeps its predecessor. A candidate that fails is left out from then on. Rounds end at ``protocol``'s limits, or when
    the ratio of every candidate to the fastest of ``references`` is known to within ``protocol.interval_width``.

    Args:
        run: Measures a number of inferences of a candidate.
        candidates: The candidates, the most important first.
        references: Candidates of which the fastest is compared with the others.
        protocol: The limits. A turn takes about ``turn_s``, less if SHORTER times the least rounds do not fit.
        rng: Draws the orders.
        prepare: Prepares a candidate.
        num_sure: Number of candidates that are not skipped when too little time is left for their rounds; None for all.
        kept: Candidates that run the least number of rounds, however slow.
        should_stop: If it returns True, rounds end after the least number, at the limit or MOST_STOPPING_S later, and
            only candidates that must be compared are still prepared.
        on_step: Called with the name of each step.
        pulse: Returns the seconds of constant work on each device, before and after every round. Rounds in which the
            machine gave much less do not count, and others replace them while there is time, at most as many again.
        clock: Returns seconds.
    """
    begin_s = clock()
    typical_s, failures = _prepared(run, candidates, protocol, prepare, num_sure, should_stop, on_step, clock)
    bursts = _bursts(typical_s, protocol, max(protocol.limit_s - (clock() - begin_s), 0.0))
    rounds, running = _CountedRounds(pulse(), typical_s), list(typical_s)
    span, num_sound = _ComparisonTimes(begin_s, clock(), protocol.limit_s), 0
    while running and num_sound < protocol.max_rounds and len(span.ends_s) <= REPEATED * protocol.max_rounds:
        on_step(f"round {num_sound + 1} of up to {protocol.max_rounds}")
        for c in rng.permutation(len(running)).tolist():
            try:
                rounds.add(running[c], run(running[c], bursts[running[c]]))
            except CandidateFailed as failure:
                failures[running[c]] = failure.reason
                rounds.drop(running[c])
        rounds.end(pulse())
        span.ends_s.append(clock())
        num_sound = int(rounds.sound.sum())
        running = _running(rounds, running, span, references, protocol, kept)
        if span.is_over(protocol.min_rounds - num_sound, should_stop=should_stop()):
            break
    counted = rounds.counted(protocol.min_rounds)
    samples = {c: Samples(tuple(compress(turns, counted))) for c, turns in rounds.taken.items()}
    return LatencyComparison(samples, failures, span.share_of(~rounds.sound))


def _prepared(
    run: RunCandidate,
    candidates: Sequence[str],
    protocol: Protocol,
    prepare: Callable[[str], object],
    num_sure: int | None,
    should_stop: Callable[[], bool],
    on_step: Callable[[str], None],
    clock: Clock,
) -> tuple[dict[str, float], dict[str, str]]:
    """Prepare and warm up candidates as ``measure_in_rounds`` does.

    Return the seconds of a run of each candidate, and why others fail.
    """
    begin_s = clock()
    failures, typical_s, turns_s = dict[str, str](), dict[str, float](), dict[str, float]()
    longest_s = 0.0
    each_s = WARM_UP_SHARE * protocol.limit_s / (len(candidates) or 1)
    warming = replace(protocol, warm_up_s=min(protocol.warm_up_s, each_s))
    for number, candidate in enumerate(candidates):
        began_s = clock()
        rounds_s = protocol.min_rounds * (sum(turns_s.values()) + max(turns_s.values(), default=0.0))
        is_over = began_s - begin_s + longest_s + rounds_s > protocol.limit_s or should_stop()
        if is_over and num_sure is not None and number >= num_sure and len(typical_s) >= min(num_sure, 2):
            break
        on_step(f"preparing {candidate}")
        try:
            prepare(candidate)
            typical_s[candidate] = warm_up(run, candidate, warming, clock)
        except CandidateFailed as failure:
            failures[candidate] = failure.reason
            continue
        turns_s[candidate] = typical_s[candidate] * _burst(typical_s[candidate], protocol)
        longest_s = max(longest_s, clock() - began_s)
    return typical_s, failures


class _CountedRounds:
    """Rounds so far: the turns of each candidate, and which rounds are sound: those without a long pulse beside them.

    All are sound if there are no pulses, or some are missing. A round is judged once, and all of them again only after
    a pulse that is shorter than those before it: judging takes time in proportion to the number of rounds, of which
    there may be thousands.
    """

    def __init__(self, pulse_s: Sequence[float], candidates: Iterable[str]) -> None:
        self.pulses_s = [tuple(pulse_s)]
        self.taken: dict[str, list[tuple[float, ...]]] = {c: [] for c in candidates}  # seconds of the turns of each
        self._least_s = np.asarray(pulse_s, dtype=np.float64)  # [P] the shortest pulse of each device
        self._worst = array("d")  # [R] the longer pulse beside a round over the shortest
        self._medians_s: dict[str, array[float]] = {}
        self._is_complete = len(self._least_s) > 0  # whether no pulse is missing

    def add(self, candidate: str, seconds: Sequence[float]) -> None:
        """Add a candidate's seconds in the current round."""
        self.taken.setdefault(candidate, []).append(tuple(seconds))
        self._medians_s.setdefault(candidate, array("d")).append(median(seconds))

    def drop(self, candidate: str) -> None:
        """Forget a candidate that failed."""
        del self.taken[candidate]

    def end(self, pulse_s: Sequence[float]) -> None:
        """End the round with the pulse after it."""
        self.pulses_s.append(tuple(pulse_s))
        self._is_complete &= len(pulse_s) == len(self._least_s)
        if not self._is_complete:
            return
        least_s = np.minimum(self._least_s, pulse_s)
        begin = len(self._worst) if (least_s == self._least_s).all() else 0
        times = np.array(self.pulses_s[begin:]) / least_s
        self._worst[begin:] = array("d", np.maximum(times[:-1], times[1:]).max(axis=1).tolist())
        self._least_s = least_s

    @property
    def sound(self) -> NDArray[np.bool_]:
        """Return [R] whether each round is sound."""
        if not self._is_complete:
            return np.ones(len(self.pulses_s) - 1, dtype=np.bool_)
        return np.asarray(np.frombuffer(self._worst) <= GAVE_LESS)

    def counted(self, least: int) -> NDArray[np.bool_]:
        """Return [R] whether each round counts: the sound ones, or ``least`` of all if fewer are sound.

        The rounds with the shortest pulses are taken then. Of a candidate that ended before its first sound round, the
        one with the shortest pulses counts.
        """
        is_counted, worst = self.sound, np.frombuffer(self._worst)
        if is_counted.sum() < min(least, len(worst)):
            is_counted = np.zeros(len(worst), dtype=np.bool_)
            is_counted[np.argsort(worst, kind="stable")[:least]] = True
        for num_turns in {len(turns) for turns in self.taken.values()} - {0}:
            if not is_counted[:num_turns].any():
                is_counted[np.argmin(worst[:num_turns])] = True
        return is_counted

    def medians_s(self, candidate: str, sound: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return a candidate's medians in the rounds that are ``sound`` [R]; it may have run only the first of them."""
        medians_s = np.frombuffer(self._medians_s[candidate])
        return medians_s[sound[: len(medians_s)]]


class _ComparisonTimes:
    """The time of a comparison: when it began, and when preparing and each round ended, in seconds."""

    def __init__(self, begin_s: float, prepared_s: float, limit_s: float) -> None:
        self.ends_s = [prepared_s]
        self._begin_s = begin_s
        self._limit_s = limit_s
        self._stop_s = float("inf")  # when to end after a wish to stop

    @property
    def _passed_s(self) -> float:
        return self.ends_s[-1] - self._begin_s

    @property
    def _round_s(self) -> float:
        return self.ends_s[-1] - self.ends_s[-2]

    def has_room(self, num_rounds: int) -> bool:
        """Return whether so many more rounds like the last one end within the limit."""
        return self._passed_s + num_rounds * self._round_s <= self._limit_s

    def is_over(self, missing: int, *, should_stop: bool) -> bool:
        """Return whether to begin no further round, where ``missing`` ones are left of the least number."""
        if should_stop:
            self._stop_s = min(self._stop_s, self._passed_s + MOST_STOPPING_S)
            if missing <= 0 or self._passed_s > min(self._limit_s, self._stop_s):
                return True
        is_cheap = missing > 0 and missing * self._round_s <= CHEAP * self._limit_s
        return not self.has_room(1) and not is_cheap

    def share_of(self, chosen: NDArray[np.bool_]) -> float:
        """Return the share of the time of all rounds that was spent on those that are ``chosen`` [R]."""
        spent_s = np.diff(self.ends_s)
        return float(spent_s[chosen].sum() / spent_s.sum()) if len(spent_s) and spent_s.sum() else 0.0


def half_width(spread: float, num: int, family: int = 1) -> float:
    """Return half of Student's interval of a mean of ``num`` values of this deviation, one of ``family``."""
    from scipy.special import stdtrit  # slow to import, and every command imports this module

    return float(stdtrit(num - 1, 1 - ERROR / max(family, 1))) * spread / float(np.sqrt(num))


def _burst(typical_s: float, protocol: Protocol) -> int:
    """Return the inferences of a turn: two or more for a median, but one where two take longer than a second."""
    if protocol.turn_runs is not None:
        return protocol.turn_runs
    return min(max(int(protocol.turn_s / typical_s), 1 if 2 * typical_s > 1.0 else 2), 50)


def _bursts(typical_s: Mapping[str, float], protocol: Protocol, left_s: float) -> dict[str, int]:
    """Return the inferences of each candidate's turn, fewer where turns are too long for ``left_s``."""
    whole = {c: _burst(seconds, protocol) for c, seconds in typical_s.items()}
    each_s = sum(seconds * whole[c] for c, seconds in typical_s.items())
    wanted = min(protocol.min_rounds * (SHORTER if protocol.turn_runs is None else 1), protocol.max_rounds)
    fitting = min(left_s / max(wanted * each_s, LEAST_RUN_S), 1.0)
    return {c: max(int(fitting * burst), 1) for c, burst in whole.items()}


def _running(
    rounds: _CountedRounds,
    running: Sequence[str],
    span: _ComparisonTimes,
    references: Sequence[str],
    protocol: Protocol,
    kept: Collection[str],
) -> list[str]:
    """Return the candidates of the next round, of those that were ``running`` in the last one."""
    sound = rounds.sound
    medians_s = {c: rounds.medians_s(c, sound) for c in running if c in rounds.taken}
    num_sound = int(sound.sum())
    undecided = _undecided(medians_s, references, protocol, kept) if num_sound else list(medians_s)
    missing = protocol.min_rounds - num_sound
    if num_sound >= HOPELESS_ROUNDS and missing > 0 and not span.has_room(missing):
        return _ahead(medians_s, undecided, references, protocol)
    return undecided


def _ahead(
    medians_s: Mapping[str, NDArray[np.float64]], running: Sequence[str], references: Sequence[str], protocol: Protocol
) -> list[str]:
    """Return candidates worth another round when time is over: those ahead of the fastest reference, or near it.

    Empty if none is ahead: then that reference is the answer, whatever would follow.
    """
    typical_s = {c: float(np.median(medians_s[c])) for c in running}
    least_s = min((typical_s[r] for r in references if r in typical_s), default=np.inf)
    near = {c for c in running if c in references and protocol.hopeless * typical_s[c] <= least_s}
    ahead = {c for c in running if typical_s[c] < least_s}
    return [c for c in running if c in near | ahead] if ahead else []


def _undecided(
    medians_s: Mapping[str, NDArray[np.float64]],
    references: Sequence[str],
    protocol: Protocol,
    kept: Collection[str] = (),
) -> list[str]:
    """Return candidates worth another round, by their round medians [R]: all but the hopeless; none if all are clear.

    That is judged by the logarithms' root mean square, not by their standard deviation: it is the same if
    candidate and reference change places, hence says nothing about who is ahead, and rounds may end by it without
    raising the chance that equal candidates seem different.
    """
    alive = [r for r in references if r in medians_s]
    if not alive:
        return list(medians_s)
    reference = min(alive, key=lambda r: float(np.median(medians_s[r])))
    ratios = {c: medians_s[reference] / seconds for c, seconds in medians_s.items() if c != reference}
    n = len(medians_s[reference])
    least = {c: protocol.min_rounds if c in kept else HOPELESS_ROUNDS for c in ratios}
    hopeless = {c for c, r in ratios.items() if n >= least[c] and (r < protocol.hopeless).all()}
    ratios = {c: r for c, r in ratios.items() if c not in hopeless}
    if n >= max(protocol.min_rounds, 2) and protocol.interval_width > 0:
        squares = [float(np.mean(np.log(r) ** 2)) for r in ratios.values()]
        if all(2 * half_width(s**0.5, n, len(ratios)) <= protocol.interval_width for s in squares):
            return []
    return [c for c in medians_s if c not in hopeless]
