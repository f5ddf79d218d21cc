"""Latency measurement: interleaved rounds over all candidates, so that drift hits all alike.

Legend: C candidates, R rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from scipy.stats import t as student

from hsdag.ir.placement import LatencyRecord
from hsdag.runtime.measuring.worker_client import CandidateFailed

Run = Callable[[str, int], Sequence[float]]
"""``run(candidate, n)`` gives the seconds of n inferences, or raises CandidateFailed."""


MIN_ROUNDS_TO_CLAIM = 6
"""Rounds below which no difference is claimed: from fewer, no interval of 95% can be told."""


@dataclass(frozen=True)
class Protocol:
    """How long to measure. Rounds end when every interval that matters is narrow, or a limit is reached.

    ``limit_s`` includes warming up, and is passed, up to fourfold, while fewer than ``min_rounds`` were taken.
    A candidate that was below ``hopeless`` times the reference's speed in each of three or more rounds is
    measured no further: its figure needs no more digits.
    """

    min_rounds: int = 6
    max_rounds: int = 60
    turn_s: float = 0.15
    limit_s: float = 25.0
    interval_width: float = 0.02
    hopeless: float = 0.9
    bootstrap_samples: int = 2000
    warm_up_agreement: float = 0.05
    warm_up_runs: int = 40
    warm_up_s: float = 2.0


@dataclass(frozen=True, eq=False)
class Samples:
    """Seconds of every inference of one candidate, round by round."""

    rounds: tuple[tuple[float, ...], ...]

    @property
    def all_s(self) -> NDArray[np.float64]:
        """All inferences."""
        return np.concatenate([np.asarray(r) for r in self.rounds])

    @property
    def round_medians_s(self) -> NDArray[np.float64]:
        """[R] the median inference of each round."""
        return np.asarray([float(np.median(r)) for r in self.rounds])

    def record(self) -> LatencyRecord:
        """Median, mean and 95th percentile over all inferences."""
        seconds = self.all_s
        return LatencyRecord(
            median_s=float(np.median(seconds)),
            mean_s=float(seconds.mean()),
            p95_s=float(np.percentile(seconds, 95)),
            runs=len(seconds),
            measured=True,
        )


@dataclass(frozen=True)
class Ratio:
    """How many times faster a candidate is than the reference, with its 95% bootstrap interval."""

    value: float
    low: float
    high: float

    num_rounds: int = MIN_ROUNDS_TO_CLAIM

    @property
    def interval(self) -> list[float | None]:
        """The interval's ends as JSON values, None where one round tells nothing."""
        return [end if np.isfinite(end) else None for end in (self.low, self.high)]

    @property
    def is_faster(self) -> bool:
        """Whether enough rounds were taken and the interval lies above 1."""
        return self.num_rounds >= MIN_ROUNDS_TO_CLAIM and self.low > 1.0

    @property
    def is_slower(self) -> bool:
        """Whether enough rounds were taken and the interval lies below 1."""
        return self.num_rounds >= MIN_ROUNDS_TO_CLAIM and self.high < 1.0


@dataclass(frozen=True, eq=False)
class Comparison:
    """Samples of every candidate that ran, taken in common rounds, and why the others did not run."""

    samples: Mapping[str, Samples]
    failures: Mapping[str, str]

    def median_s(self, candidate: str) -> float:
        """Median of the candidate's round medians, seconds."""
        return float(np.median(self.samples[candidate].round_medians_s))

    def fastest(self, candidates: Sequence[str]) -> str:
        """The candidate with the least median among those that ran. Raises ValueError when none did."""
        return min((c for c in candidates if c in self.samples), key=self.median_s)

    def ratio(self, candidate: str, reference: str, *, num_samples: int = 2000, level: float = 0.95) -> Ratio:
        """Reference's latency over the candidate's, over the rounds that both ran; these are resampled together."""
        common = min(len(self.samples[reference].rounds), len(self.samples[candidate].rounds))
        return bootstrap_ratio(
            self.samples[reference].round_medians_s[:common],
            self.samples[candidate].round_medians_s[:common],
            num_samples,
            level,
        )


def bootstrap_ratio(
    reference_s: NDArray[np.float64], candidate_s: NDArray[np.float64], num_samples: int = 2000, level: float = 0.95
) -> Ratio:
    """Geometric mean of the rounds' ratios, reference over candidate, with its bootstrap interval.

    Both arrays [R] hold one figure per common round; rounds are drawn in pairs, so that a drift that slowed
    both cancels out. A percentile interval of few rounds is too narrow; its quantiles are moved outwards so
    that a normal sample would get Student's interval. The generator's seed is fixed: the same samples give
    the same interval. From a single round there is none: 0 to infinity.
    """
    logs = np.log(reference_s) - np.log(candidate_s)
    value, n = float(np.exp(logs.mean())), len(logs)
    if n < 2:
        return Ratio(value, 0.0, float("inf"), n)
    tail = float(norm.cdf(np.sqrt(n / (n - 1)) * student.ppf((1 - level) / 2, n - 1)))
    draws = np.random.default_rng(0).integers(0, n, (num_samples, n))
    low, high = np.quantile(logs[draws].mean(axis=1), [tail, 1 - tail])
    return Ratio(value, float(np.exp(low)), float(np.exp(high)), n)


def warm_up(run: Run, candidate: str, protocol: Protocol) -> float:
    """Run a candidate until two successive medians of three runs agree; the last median in seconds."""
    begin = time.perf_counter()
    previous = float(np.median(run(candidate, 1)))
    runs = 1
    while True:
        current = float(np.median(run(candidate, 3)))
        runs += 3
        agree = abs(current - previous) <= protocol.warm_up_agreement * current
        if agree or runs >= protocol.warm_up_runs or time.perf_counter() - begin > protocol.warm_up_s:
            return current
        previous = current


def compare(
    run: Run,
    candidates: Sequence[str],
    references: Sequence[str],
    protocol: Protocol,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    on_round: Callable[[int], None] = lambda _: None,
) -> Comparison:
    """Measure all candidates in common rounds.

    Every round takes each candidate once for about ``protocol.turn_s``, starting with another one each time.
    A candidate that fails is left out from there on. Rounds end at ``protocol``'s limits, when ``should_stop``
    says so, or when the interval of every candidate's ratio to the fastest of ``references`` is narrower than
    ``protocol.interval_width``.
    """
    end = time.perf_counter() + protocol.limit_s
    failures: dict[str, str] = {}
    typical_s: dict[str, float] = {}
    for candidate in candidates:
        try:
            typical_s[candidate] = warm_up(run, candidate, protocol)
        except CandidateFailed as failure:
            failures[candidate] = failure.reason
    taken: dict[str, list[tuple[float, ...]]] = {c: [] for c in typical_s}
    running = list(taken)
    for round_idx in range(protocol.max_rounds if running else 0):
        start = round_idx % len(running)
        for candidate in running[start:] + running[:start]:
            burst = int(np.clip(protocol.turn_s / typical_s[candidate], 2, 50))
            try:
                taken[candidate].append(tuple(run(candidate, burst)))
            except CandidateFailed as failure:
                failures[candidate] = failure.reason
                del taken[candidate]
        running = [c for c in running if c in taken]
        on_round(round_idx + 1)
        running = _undecided(_comparison(taken, failures), running, references, protocol)
        late_s = time.perf_counter() - end
        enough = round_idx + 1 >= protocol.min_rounds or late_s > 3 * protocol.limit_s
        if not running or should_stop() or (enough and late_s > 0):
            break
    return _comparison(taken, failures)


def _comparison(taken: Mapping[str, list[tuple[float, ...]]], failures: Mapping[str, str]) -> Comparison:
    return Comparison({c: Samples(tuple(rounds)) for c, rounds in taken.items()}, dict(failures))


def _undecided(
    comparison: Comparison, running: Sequence[str], references: Sequence[str], protocol: Protocol
) -> list[str]:
    """Candidates worth another round: all but the hopeless; none once enough rounds made every interval narrow."""
    alive = [r for r in references if r in comparison.samples]
    if not alive:
        return []
    reference = comparison.fastest(alive)
    reference_s = comparison.samples[reference].round_medians_s
    open_candidates = []
    for candidate in running:
        candidate_s = comparison.samples[candidate].round_medians_s
        ratios = reference_s[: len(candidate_s)] / candidate_s[: len(reference_s)]
        if candidate != reference and not (len(ratios) >= 3 and (ratios < protocol.hopeless).all()):
            open_candidates.append(candidate)
    if len(reference_s) >= protocol.min_rounds:
        ratios_open = [comparison.ratio(c, reference, num_samples=500) for c in open_candidates]
        if all(r.high - r.low <= protocol.interval_width for r in ratios_open):
            return []
    return [c for c in running if c == reference or c in open_candidates]
