"""Candidates: compiled ways to run a model, kept open in a worker under a key. Legend: N ops."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.scenario import Scenario
from hsdag.ir.placement.placement import ExecutorName
from hsdag.ir.processes import COMPILING_LIMIT_S, CandidateFailed, Request, WorkerClient
from hsdag.runtime.machine.energy_counters import EnergyCounters
from hsdag.runtime.measuring.messages import Close, Difference, Opened, Run, Throughput
from hsdag.runtime.timeline.timeline import Timeline

if TYPE_CHECKING:
    from hsdag.runtime.objectives import Objective

MAX_PERMUTED = 3
"""Up to this many devices, HETERO's automatic mode is tried in every order of priority; else in rotations."""


REQUESTS_IN_FLIGHT = 4

MOST_TURN_S = 1.0
"""Where inferences run untimed before the one that counts, a turn ends after the first one that is over by then."""

LEAST_ENERGY_S = 0.1
"""Energy is counted over at least so long: RAPL's counters move about every millisecond."""


@dataclass(frozen=True)
class Candidate:
    """What to hand to ``compile_model``: a target and, for a placement, OpenVINO's device name per op.

    For executors that run devices side by side the target lists the devices in their order, ``priority`` may rank
    ops, and parts are merged ``by_load`` as ``CutOptions`` says. A property of None is left to OpenVINO, whatever the
    objective's.
    """

    target: str
    devices: tuple[str, ...] | None = None  # [N]
    properties: Mapping[str, Any] = field(default_factory=dict)
    executor: ExecutorName = "hetero"
    priority: tuple[int | None, ...] | None = None  # [N] a free device takes the smallest rank first
    by_load: bool = False

    @staticmethod
    def placed(devices: Sequence[str]) -> Candidate:
        """A placement, by OpenVINO's device name per op; for the device alone where there is only one."""
        used = tuple(dict.fromkeys(devices))
        if len(used) == 1:
            return Candidate(used[0])
        return Candidate("HETERO:" + ",".join(used), tuple(devices))

    @staticmethod
    def side_by_side(
        devices: Sequence[str],
        order: Sequence[str],
        priority: Sequence[int | None] | None = None,
        *,
        by_load: bool = False,
        executor: ExecutorName = "work-conserving",
    ) -> Candidate:
        """A placement for an executor that runs devices side by side; for the device alone where there is only one.

        ``devices`` [N] and ``order``, that of the devices among themselves, are OpenVINO's names.
        """
        used = [name for name in order if name in set(devices)]
        if len(used) == 1:
            return Candidate(used[0])
        ranks = tuple(priority) if priority is not None else None
        return Candidate(",".join(used), tuple(devices), executor=executor, priority=ranks, by_load=by_load)


@dataclass(frozen=True)
class Open(Request[Opened]):
    """Compile a candidate under a key; the work-conserving executor gives an inference up after a limit."""

    key: str
    candidate: Candidate
    inference_limit_s: float | None = None


@dataclass(frozen=True)
class TimelineOf(Request[Timeline]):
    """When every part of a candidate for the work-conserving executor ran in the median one of ``runs`` inferences."""

    opening: Open
    runs: int


@dataclass(frozen=True)
class Limits:
    """Seconds after which a worker counts as hanging."""

    compile_s: float = 120.0
    run_s: float = 60.0

    @property
    def inference_s(self) -> float:
        """Seconds after which the executor gives an inference up, so that a hung device does not cost the worker."""
        return 0.4 * self.run_s


class CandidateRunner:
    """Compiles and runs candidates in a worker process, opening them again after the worker was lost.

    ``peak_of`` simulates the bytes of a candidate's fullest device, where the objective counts memory.
    ``scenarios`` are what the worker measures, where it does not measure a single inference; ``requests`` how many are
    in flight where it measures several at a time, if not as many as the device asks for.
    """

    def __init__(
        self,
        client: WorkerClient,
        objective: Objective,
        limits: Limits | None = None,
        scenarios: Sequence[Scenario] = (),
        requests: int | None = None,
    ) -> None:
        self.client = client
        self.scenarios = tuple(scenarios)
        self.objective = objective
        self.requests = requests
        self.peak_of: Callable[[Candidate], float] = _unknown_peak
        self.limits = limits or Limits()
        self.candidates: dict[str, Candidate] = {}
        self._opened_in: dict[str, int] = {}

    def open(self, key: str, candidate: Candidate) -> Opened:
        """Compile a candidate under a key. Raises CandidateFailed."""
        self.candidates[key] = candidate
        is_whole = candidate.devices is None  # what placements are compared with: it is worth waiting for
        patience_s = COMPILING_LIMIT_S if is_whole else 0.0
        opened = self.client.call(self.request(key, candidate), self.limits.compile_s, patience_s)
        self._opened_in[key] = self.client.num_starts
        return opened

    def request(self, key: str, candidate: Candidate) -> Open:
        """What the worker needs to know of a candidate.

        OpenVINO has the objective, but not under the work-conserving executor, of which a device gets one task at a
        time.
        """
        hint = {} if candidate.executor == "work-conserving" else self.objective.properties
        merged = {**hint, **candidate.properties}
        hinted = replace(candidate, properties={name: value for name, value in merged.items() if value is not None})
        return Open(key, hinted, self.limits.inference_s)

    def run(self, key: str, runs: int) -> list[float]:
        """Values of the objective over ``runs`` inferences. Raises CandidateFailed."""
        self._reopen_if_lost(key)
        return self.objective.measured(_Measured(self, key), runs)

    def run_scenario(self, key: str, runs: int, scenario: int | None) -> list[float]:
        """Seconds of ``runs`` inferences of one scenario, or weighted means over all. Raises CandidateFailed."""
        self._reopen_if_lost(key)
        stop_s = 0.5 * self.limits.run_s
        if any(len(each.inferences) > 1 for each in self.scenarios):
            stop_s = min(stop_s, MOST_TURN_S)
        return self.client.call(Run(key, runs, stop_s, scenario), self.limits.run_s)

    def difference(self, key: str, reference: str) -> dict[str, float | None]:
        """Distance of a candidate's outputs from a reference candidate's. Raises CandidateFailed."""
        self._reopen_if_lost(reference)
        self._reopen_if_lost(key)
        return self.client.call(Difference(key, reference), 4 * self.limits.run_s)

    def close(self, key: str) -> None:
        """Forget a candidate."""
        del self.candidates[key]
        if self._opened_in.pop(key, None) == self.client.num_starts and self.client.is_running:
            with suppress(CandidateFailed):  # a worker that was lost has forgotten it too
                self.client.call(Close(key), self.limits.run_s)

    def _reopen_if_lost(self, key: str) -> None:
        if self._opened_in.get(key) != self.client.num_starts or not self.client.is_running:
            if key not in self.candidates:
                raise CandidateFailed(f"candidate {key!r} was never opened")
            self.open(key, self.candidates[key])


@dataclass(frozen=True)
class _Measured:
    """An open candidate as an objective measures it; a ``Meter``."""

    runner: CandidateRunner
    key: str

    def single_runs(self, count: int) -> list[float]:
        return self.runner.run_scenario(self.key, count, None)

    def in_flight(self, count: int) -> float:
        wanted = self.runner.requests
        request = Throughput(self.key, wanted or REQUESTS_IN_FLIGHT, count, is_exact=wanted is not None)
        return self.runner.client.call(request, self.runner.limits.run_s)

    def energy_j(self, count: int) -> float:
        counters, num_runs = EnergyCounters.find(), 0
        before, begin_s = counters.counts(), time.perf_counter()
        while num_runs < count or time.perf_counter() - begin_s < LEAST_ENERGY_S:
            num_runs += len(self.single_runs(count))
        joules = counters.joules_since(before) / num_runs
        if joules <= 0:
            raise CandidateFailed(f"no energy counter has moved over {num_runs} inferences")
        return joules

    def peak_bytes(self) -> float:
        return self.runner.peak_of(self.runner.candidates[self.key])


def automatic_targets(placed: Sequence[DeviceSpec], rivals: Sequence[DeviceSpec]) -> tuple[str, ...]:
    """What OpenVINO would do by itself: HETERO in each order of priority, and AUTO over its own devices.

    AUTO does not see added devices, so it gets the physical ones.
    """
    names = [spec.openvino_name for spec in placed]
    if len(names) < 2:
        orders: list[tuple[str, ...]] = []
    elif len(names) <= MAX_PERMUTED:
        orders = list(itertools.permutations(names))
    else:
        orders = [tuple(names[i:] + names[:i]) for i in range(len(names))]
    native = [spec.name for spec in (*placed, *rivals) if not spec.is_added]
    auto = ("AUTO:" + ",".join(native),) if native else ()
    return tuple("HETERO:" + ",".join(order) for order in orders) + auto


def _unknown_peak(_: Candidate) -> float:
    raise CandidateFailed("its peak of memory is not known")
