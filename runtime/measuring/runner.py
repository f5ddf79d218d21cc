"""Running candidates in a worker process, where each stays open under a key and is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from hsdag.base.errors import DeviceError
from hsdag.base.processes import COMPILING_LIMIT_S, CandidateFailed, WorkerClient
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.computation_graph import IntArray
from hsdag.ir.graph.scenario import Scenario, shares
from hsdag.runtime.machine.energy_counters import EnergyCounters
from hsdag.runtime.measuring.measurer import Measurer
from hsdag.runtime.measuring.messages import Candidate, Distance, Opened, ask
from hsdag.runtime.objectives import Objective, Quantity

MOST_TURN_S = 1.0
"""Seconds after which a turn ends, at the next inference, if untimed inferences run before each timed one."""

PERIOD_S = 0.15
"""Seconds after which a measured period needs no more inferences."""

ASKING_LIMIT_S = 300.0
"""Seconds for a device to say which ops it runs."""

LEAST_ENERGY_S = 0.1
"""Least seconds over which energy is counted: RAPL's counters move about every millisecond."""


@dataclass(frozen=True)
class WorkerLimits:
    """Seconds after which a worker counts as hanging."""

    compile_s: float = 120.0
    run_s: float = 60.0

    @property
    def inference_s(self) -> float:
        """Return the seconds after which the executor gives up an inference, so that the worker survives."""
        return 0.4 * self.run_s


def with_hint(failure: CandidateFailed, spec: DeviceSpec) -> str:
    """Return why a device failed on the whole model, and what may help if OpenVINO's CPU plugin crashed (2026.4.1).

    Its passes that look for attention, to generate one kernel, crash over some models whose matrices have two axes; a
    division by zero has other causes (docs/limits.md).
    """
    is_crash = spec.plugin == "CPU" and failure.lost_worker and not failure.is_late and "SIGFPE" not in failure.reason
    return failure.reason + "; generating kernels may be at fault: give CPU devices SNIPPETS_MODE=DISABLE" * is_crash


def unsupported_ops(client: WorkerClient, spec: DeviceSpec) -> IntArray:
    """Return the ops [indices] of a worker's model that a device lacks. Raises DeviceError if it cannot tell."""
    try:
        chosen = client.call(ask(Measurer.choices, spec.openvino_name), ASKING_LIMIT_S, COMPILING_LIMIT_S)
    except CandidateFailed as failure:
        raise DeviceError(
            f"device {spec.name!r} cannot tell which ops it supports: {with_hint(failure, spec)}"
        ) from failure
    return np.flatnonzero([not device for device in chosen])


@dataclass
class Taken:
    """What candidates took so far.

    Attributes:
        slowest_open_s: The longest that one took to open.
        part_s: The longest that one part of a candidate of several took to open.
        values_s: Seconds that each value took to measure: an inference, or all inferences of a period.
        scenario_s: Seconds of each inference of weighted means, by candidate and scenario.
    """

    slowest_open_s: float = 0.0
    part_s: float = 0.0
    values_s: list[float] = field(default_factory=list)
    scenario_s: dict[str, list[list[float]]] = field(default_factory=dict)

    def add_open(self, candidate: Candidate, taken_s: float) -> None:
        """Add the seconds that a candidate took to open."""
        self.slowest_open_s = max(self.slowest_open_s, taken_s)
        if candidate.num_parts > 1:
            self.part_s = max(self.part_s, taken_s / candidate.num_parts)

    @property
    def value_s(self) -> float:
        """Return the median seconds that it took to measure a value, an inference or a period; 0 before any."""
        return median(self.values_s) if self.values_s else 0.0

    def scenario_medians_s(self, key: str, runs: int) -> tuple[float, ...]:
        """Return medians of each scenario over the last ``runs`` weighted means; empty without several scenarios."""
        return tuple(median(seconds[-runs:]) for seconds in self.scenario_s.get(key, ()))


@dataclass(eq=False)
class CandidateRunner:
    """A client that compiles and runs candidates in a worker process, and opens them again after the worker was lost.

    Attributes:
        scenarios: The scenarios that the worker measures, if it does not measure a single inference.
        requests: Number of requests in flight for periods; None for as many as the device asks for.
        period_s: Seconds after which a period is not measured further.
        compiling_s: Seconds that compiling a whole model may take beyond the limit.
        peak_of: Simulates the bytes of a candidate's fullest device, if the objective counts memory.
        candidates: The candidates that are open, by key.
        taken: What they took so far.
    """

    client: WorkerClient
    objective: Objective
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    scenarios: Sequence[Scenario] = ()
    requests: int | None = None
    period_s: float = PERIOD_S
    compiling_s: float = COMPILING_LIMIT_S
    peak_of: Callable[[Candidate], float] | None = field(default=None, init=False)
    candidates: dict[str, Candidate] = field(default_factory=dict, init=False)
    taken: Taken = field(default_factory=Taken, init=False)
    _opened_in: dict[str, int] = field(default_factory=dict, init=False)

    def open(self, key: str, candidate: Candidate) -> Opened:
        """Compile a candidate under a key. Raises CandidateFailed."""
        self.candidates[key] = candidate
        is_whole = candidate.devices is None  # placements are compared with whole models: these are worth waiting for
        request = ask(Measurer.open, key, self.hinted(candidate), self.limits.inference_s)
        begin_s = time.monotonic()
        opened = self.client.call(request, self.limits.compile_s, self.compiling_s if is_whole else 0.0)
        self.taken.add_open(candidate, time.monotonic() - begin_s)
        self._opened_in[key] = self.client.num_starts
        return opened

    def hinted(self, candidate: Candidate) -> Candidate:
        """Return a candidate with the properties of the objective, except for the work-conserving executor.

        That executor gives a device one task at a time, whatever the objective.
        """
        is_hinted = self.objective.is_steady and candidate.executor != "work-conserving"
        hint = {"PERFORMANCE_HINT": "THROUGHPUT"} if is_hinted else {}
        merged = {**hint, **candidate.properties}
        return replace(candidate, properties={name: value for name, value in merged.items() if value is not None})

    def run(self, key: str, runs: int) -> list[float]:
        """Return values of the objective over ``runs`` inferences. Raises CandidateFailed."""
        self._reopen_if_lost(key)
        begin_s = time.monotonic()
        series = [self._measured(quantity, key, runs) for quantity in self.objective.quantities]
        most = max(map(len, series))  # quantities that are measured less often count by their mean
        even = [np.array(figures if len(figures) == most else np.mean(figures)) for figures in series]
        values: list[float] = np.broadcast_to(self.objective.value(*even), (most,)).tolist()
        self.taken.values_s.append((time.monotonic() - begin_s) / len(values))
        return values

    def _measured(self, quantity: Quantity, key: str, runs: int) -> list[float]:
        """Measure about ``runs`` inferences in seconds, joules or bytes; one mean for a period or energy."""
        if quantity is Quantity.LATENCY:
            return self.run_scenario(key, runs, None)
        if quantity is Quantity.PERIOD:
            request = ask(Measurer.throughput, key, self.requests, runs, self.period_s)
            return [self.client.call(request, self.limits.run_s)]
        if quantity is Quantity.PEAK:
            if self.peak_of is None:
                raise CandidateFailed("its peak of memory is not known")
            return [self.peak_of(self.candidates[key])]
        counters = EnergyCounters.find()
        num_runs = 0
        before, begin_s = counters.counts(), time.perf_counter()
        while num_runs < runs or time.perf_counter() - begin_s < LEAST_ENERGY_S:
            num_runs += len(self.run_scenario(key, runs, None))
        joules = counters.joules_since(before) / num_runs
        if joules <= 0:
            raise CandidateFailed(f"no energy counter has moved over {num_runs} inferences")
        return [joules]

    def pulse(self) -> list[float]:
        """Return the seconds of constant work on each physical device; empty if it does not run."""
        with suppress(CandidateFailed):
            return self.client.call(ask(Measurer.pulse), self.limits.run_s, COMPILING_LIMIT_S)
        return []

    def run_scenario(self, key: str, runs: int, scenario: int | None) -> list[float]:
        """Return seconds of ``runs`` inferences of one scenario, or weighted means over all. Raises CandidateFailed."""
        self._reopen_if_lost(key)
        stop_s = 0.5 * self.limits.run_s
        if any(len(each.inferences) > 1 for each in self.scenarios):
            stop_s = min(stop_s, MOST_TURN_S)
        if scenario is None and len(self.scenarios) > 1:
            return self._weighted_s(key, runs, stop_s)
        return self.client.call(ask(Measurer.run, key, runs, stop_s, scenario), self.limits.run_s)

    def _weighted_s(self, key: str, runs: int, stop_after_s: float) -> list[float]:
        """Return weighted means over the scenarios, which take turns."""
        means_s: list[float] = []
        weights = shares(self.scenarios)
        end_s = time.monotonic() + stop_after_s
        each_s = self.taken.scenario_s.setdefault(key, [[] for _ in self.scenarios])
        while len(means_s) < runs and (not means_s or time.monotonic() < end_s):
            requests = [ask(Measurer.run, key, 1, stop_after_s, k) for k in range(len(self.scenarios))]
            taken_s = [self.client.call(request, self.limits.run_s)[0] for request in requests]
            for of_scenario, seconds in zip(each_s, taken_s, strict=True):
                of_scenario.append(seconds)
            means_s.append(float(weights @ taken_s))
        return means_s

    def difference(self, key: str, reference: str) -> Distance:
        """Return the distance of a candidate's outputs from a reference candidate's. Raises CandidateFailed."""
        self._reopen_if_lost(reference)
        self._reopen_if_lost(key)
        return self.client.call(ask(Measurer.difference, key, reference), 4 * self.limits.run_s)

    def close(self, key: str) -> None:
        """Close a candidate."""
        del self.candidates[key]
        if self._opened_in.pop(key, None) == self.client.num_starts and self.client.is_running:
            with suppress(CandidateFailed):  # a worker that was lost has forgotten it too
                self.client.call(ask(Measurer.close, key), self.limits.run_s)

    def _reopen_if_lost(self, key: str) -> None:
        if self._opened_in.get(key) != self.client.num_starts or not self.client.is_running:
            if key not in self.candidates:
                raise CandidateFailed(f"candidate {key!r} was never opened")
            self.open(key, self.candidates[key])
