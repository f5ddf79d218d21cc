"""Boxes for tests: machines that run plans at speeds of their own, and jobs that take workers for machines."""

from __future__ import annotations

import os
import pickle
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from hsdag.boxes.jobs import Describe
from hsdag.boxes.machine import Machine
from hsdag.evaluators.bench import Bench
from hsdag.evaluators.measurement import SearchMeasurement
from hsdag.fleet.job import Exchange, Job, JobLost
from hsdag.fleet.local import LocalHost
from hsdag.fleet.pool import Host
from hsdag.ir.device import DeviceSpec
from hsdag.ir.processes import CandidateFailed, Request, WorkerClient
from hsdag.runtime.measuring.candidate import Candidate, CandidateRunner
from hsdag.runtime.measuring.messages import Opened, OpTimes
from hsdag.runtime.problems.objectives.latency import LATENCY

DEVICES = tuple(DeviceSpec.parse(f"{name}=CPU") for name in "AB")
OF_OP_S = {"CPU_A": 1e-3, "CPU_B": 1.5e-3, "CPU_C": 2e-3}
"""What every op takes on a device; and a second device gains nothing but 2 ms in all."""

HANGS_S = 10.0


def true_s(candidate: Candidate) -> float:
    """Seconds of a candidate of six ops on a machine of speed 1: devices run side by side."""
    if candidate.devices is None:
        return 6 * OF_OP_S[candidate.target]
    return 1e-3 + max(OF_OP_S[name] * candidate.devices.count(name) for name in OF_OP_S)


class Timed(CandidateRunner):
    """Stands for the hardware of a machine that takes ``slowness`` times as long; some targets do not run."""

    def __init__(self, slowness: float = 1.0, failing: Sequence[str] = ()) -> None:
        super().__init__(cast("WorkerClient", SimpleNamespace(num_starts=1, is_running=True)), LATENCY)
        self.slowness, self._failing = slowness, failing
        self.opened: list[Candidate] = []
        self.num_asked = 0
        self._kept: dict[str, Candidate] = {}

    def open(self, key: str, candidate: Candidate) -> Opened:
        self.num_asked += 1
        if candidate.target in self._failing:
            raise CandidateFailed(f"{candidate.target} does not run")
        self.opened.append(candidate)
        self._kept[key] = candidate
        return Opened(0.0, 1, ())

    def run(self, key: str, runs: int) -> list[float]:
        return [self.slowness * true_s(self._kept[key])] * runs

    def close(self, key: str) -> None:
        del self._kept[key]


class TimedClient:
    """Stands for the measuring process of a machine as ``Timed`` does; it tells no times but those of ops."""

    def __init__(self, slowness: float = 1.0, failing: Sequence[str] = (), clock: Clock | None = None) -> None:
        self.slowness, self._failing, self._clock = slowness, failing, clock
        self.asked: list[Request[Any]] = []
        self.on_call: Callable[[], None] = lambda: None
        self.should_abandon = lambda: False

    def call(self, request: Request[Any], limit_s: float, compiling_s: float = 0.0) -> Any:  # noqa: ARG002
        self.asked.append(request)
        self.on_call()
        if not isinstance(request, OpTimes) or request.of in self._failing:
            raise CandidateFailed("it does not run")
        if self._clock is not None:
            self._clock.now_s += 60.0
        of_op_s = self.slowness * OF_OP_S[request.of]
        primitives = [[[v], of_op_s, 0, "Add"] for v in range(6)]
        seconds = {"latency_s": 6 * of_op_s, "compile_s": 0.5 * self.slowness, "first_s": 0.02 * self.slowness}
        others = {"spread": 0.25, "runs": 20, "resident_bytes": 4096, "device_bytes": None, "memory_bytes": 1e9}
        return {"primitives": primitives, **seconds, **others}


@dataclass
class Clock:
    """Goes on by ``tick_s`` when it is asked, and otherwise where something is made to take time."""

    tick_s: float = 0.0
    now_s: float = 0.0

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s


class Box(Host):
    """A machine in this process; asked to measure, its worker is lost ``num_losses`` times, or hangs HANGS_S long."""

    def __init__(
        self,
        name: str,
        runner: Timed | None = None,
        *,
        num_losses: int = 0,
        differs: bool = False,
        machine: str = "",
        client: TimedClient | None = None,
        hangs: bool = False,
    ) -> None:
        self.name, self.runner, self._num_losses = name, runner or Timed(), num_losses
        self._differs, self._machine, self._hangs = differs, machine or name, hangs
        self.was_waited_for = False
        self.client = client or TimedClient(self.runner.slowness)
        self._site = SimpleNamespace(client=self.client, bench=Bench(self.runner, SearchMeasurement()))

    def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:
        if isinstance(job, Describe):
            machine = Machine.here(job.devices)
            facts = dict(machine.facts) | ({"processor": "Another"} if self._differs else {})
            return Machine(machine.id if self._machine == "here" else self._machine, facts)
        end_s = time.monotonic() + HANGS_S
        while self._hangs and not is_over() and time.monotonic() < end_s:
            time.sleep(0.01)
        self.was_waited_for |= self._hangs and not is_over()
        if self._num_losses or self._hangs:
            self._num_losses -= 1
            raise JobLost("a test")
        pickle.loads(job.needs[0].content)
        return job.run((self._site,), exchange)

    def revive(self) -> bool:
        return True


class ProcessBox(LocalHost):
    """A process of this machine that passes for another machine."""

    is_here = False

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def kill(self) -> None:
        """Kill the process, if there is one."""
        process = self._client._process
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class DescribeApart(Describe):
    """Takes every worker for a machine of its own."""

    def run(self, values: tuple[Any, ...], exchange: Exchange) -> Machine:
        return replace(super().run(values, exchange), id=uuid.uuid4().hex)


def random_placements(count: int) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """[6] devices of six ops, over both of them."""
    rng = np.random.default_rng(0)
    drawn = {tuple(rng.integers(0, 2, 6).tolist()): None for _ in range(10 * count)}
    return [np.array(each) for each in drawn if 0 < sum(each) < 6][:count]


def empty_model(folder: Path) -> Path:
    """A file that stands for a model which nobody reads."""
    path = folder / "model.onnx"
    path.write_bytes(b"")
    return path
