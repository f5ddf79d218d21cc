"""The effort of a profile: its limits, and what is left of them while it is under way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from hsdag.base.errors import DeviceError
from hsdag.base.processes import WorkerClient
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.runtime.measuring.caches import ProfileCache

LEAST_CALL_LIMIT_S = 60.0
"""Least seconds that a device may take to profile, if the whole budget is less, before it counts as hanging."""

NO_TIME = "there was no time to measure"
"""What a note begins with where the time for a profile was too short."""

PROBES = ((1, 1 << 12), (1, 1 << 18), (1, 1 << 21), (4, 1 << 12), (4, 1 << 19))
"""Numbers of tensors that cross, and bytes of each: numbers tell a launch from a latency, sizes give the bandwidth."""


@dataclass(frozen=True)
class Effort:
    """Limits of a profile: runs of the model on each device, seconds for them, and the same for a probe.

    ``total_s`` is for all devices with compilation; a device that would exceed it is not begun. Measurements
    between devices take ``most_windows`` turns if they do not agree sooner.
    """

    runs: int = 20
    limit_s: float = 3.0
    probe_runs: int = 40
    probe_limit_s: float = 0.3
    call_limit_s: float = 300.0
    total_s: float = 600.0
    most_windows: int = 10

    @staticmethod
    def within(budget_s: float, num_devices: int) -> Effort:
        """Return the default, or less if that would take over a sixth of a budget, or half of it with compilation."""
        pairs = num_devices * max(num_devices - 1, 1)
        return Effort(
            limit_s=min(Effort.limit_s, budget_s / (12 * num_devices)),
            probe_limit_s=min(Effort.probe_limit_s, budget_s / (12 * 2 * len(PROBES) * pairs)),
            call_limit_s=min(Effort.call_limit_s, max(budget_s, LEAST_CALL_LIMIT_S)),
            total_s=min(Effort.total_s, budget_s / 3),
        )


@dataclass(eq=False)
class ProfilingRun:
    """A profile of one model under way: the worker that measures it, the limits, and who is told.

    ``digest`` identifies the model and its inputs: everything that times depend on beside the device.
    """

    client: WorkerClient
    graph: ComputationGraph
    digest: str
    cache: ProfileCache
    _: KW_ONLY
    effort: Effort = field(default_factory=Effort)
    on_step: Callable[[str], None] = lambda _: None
    on_note: Callable[[str], None] = lambda _: None
    should_stop: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._begin_s = self.clock()

    @property
    def left_s(self) -> float:
        """Return the seconds that are left for the profile, negative once it takes longer."""
        return self.effort.total_s - (self.clock() - self._begin_s)

    def step(self, what: str) -> None:
        """Tell the next step. Raises DeviceError if the profile should stop."""
        if self.should_stop():
            raise DeviceError("profiling was interrupted")
        self.on_step(what)
