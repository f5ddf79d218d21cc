"""What a session may ask of a measuring process, whichever engine runs there.

Sessions name methods of these protocols and load no worker's code. Legend: N ops of the model.
"""

# Methods of protocols have docstrings alone, which ruff asks for and pyright would not allow:
# pyright: reportReturnType=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from hsdag.ir.device import DeviceSpec
from hsdag.runtime.machine.settings import Offer
from hsdag.runtime.measuring.messages import (
    Beside,
    Candidate,
    DeviceFacts,
    Distance,
    Opened,
    OpTimes,
    Precision,
    Probe,
    Probed,
)
from hsdag.runtime.timeline import Timeline


class Measurer(Protocol):
    """A worker that keeps candidates for one model on one set of devices open by key, and measures them."""

    def open(self, key: str, candidate: Candidate, inference_limit_s: float | None = None) -> Opened:
        """Compile a candidate under a key, and check that an inference of it succeeds, within a limit if there is one.

        Raises ExecutionError when it does not compile or run.
        """

    def close(self, key: str) -> None:
        """Close a candidate, if there is one of that key."""

    def run(self, key: str, runs: int, stop_after_s: float, scenario: int | None = None) -> list[float]:
        """Return the seconds of each of ``runs`` inferences, fewer once ``stop_after_s`` have passed.

        They are those of the scenario with an index, or weighted means over all scenarios.
        """

    def throughput(self, key: str, requests: int | None, runs: int, most_s: float = math.inf) -> float:
        """Return the seconds per inference with ``requests`` in flight over ``runs``, fewer after ``most_s`` seconds.

        Without ``requests`` there are as many as the engine thinks best.
        """

    def difference(self, key: str, reference: str) -> Distance:
        """Return the distance of the outputs of one candidate from those of another on the same inputs."""

    def choices(self, target: str) -> list[str]:
        """Return [N] the device that ``target`` would choose for each op, by OpenVINO's name; "" for ops it lacks."""

    def timeline(self, candidate: Candidate, runs: int, inference_limit_s: float | None = None) -> Timeline:
        """Return when each part of a candidate ran, in the median of ``runs`` inferences."""

    def op_times(self, candidate: Candidate, of: str, runs: int, for_s: float, again_s: float = math.inf) -> OpTimes:
        """Return the times of the model's ops in a candidate, and the figures of the whole, with the memory of ``of``.

        Args:
            of: Device, by OpenVINO's name.
            runs: Largest number of inferences.
            for_s: Seconds after which no further inference is started.
            again_s: Seconds of compiling up to which it may be done twice, with performance counters and without.
        """

    def probe(self, what: Probe) -> Probed:
        """Return the figures of a probe."""

    def contention(
        self, devices: Sequence[DeviceSpec], kind: str, whole_devices: Sequence[DeviceSpec] = ()
    ) -> Beside | None:
        """Measure one window of devices alone and side by side, and of ``whole_devices`` alone.

        ``kind`` is "compute" or "memory", small models bound by either, or "model"; None for a model that keeps state,
        which may take longer every time.
        """

    def pulse(self) -> list[float]:
        """Return the seconds of constant work on each physical device; empty if there is none."""

    def forget_probes(self) -> None:
        """Release what is kept of probes and of devices side by side."""


class OpenVinoMeasurer(Measurer, Protocol):
    """A worker that runs OpenVINO, and says too what its devices can do."""

    def choices(
        self, target: str, devices: Sequence[DeviceSpec] = (), properties: Mapping[str, str] | None = None
    ) -> list[str]:
        """Return [N] the device that ``target`` would choose for each op, by OpenVINO's name; "" for ops it lacks.

        ``devices`` are loaded for the question if the process has not loaded them yet; HETERO keeps their properties,
        and gets ``properties`` of its own.
        """

    def offer(self, key: str, name: str) -> Offer:
        """Return what a device, by OpenVINO's name, lets one set, and what it has set for the candidate of a key."""

    def sync(self, devices: Sequence[DeviceSpec], what: Probe) -> float:
        """Return the seconds of a sync of two devices, by a probe."""

    def compare_outputs(
        self, devices: tuple[DeviceSpec, DeviceSpec], op: str | None = None, *, alone: bool = False
    ) -> Distance:
        """Return the distance of the first device's results from the second's, of the model or its part up to ``op``.

        If ``alone``, only the op runs on both devices, on the inputs that the second one computes for it.
        """

    def compare_shrunk(self, device: DeviceSpec) -> Distance | None:
        """Return the distance of outputs on half of typical data after an inference on all of it, from a new request's.

        None if half of the data is no valid input of the model.
        """

    def list_devices(self, plugin: str | None = None) -> tuple[str, ...]:
        """Return the names of the devices that OpenVINO, or one plugin, finds; empty if the plugin is missing."""

    def device_facts(self, spec: DeviceSpec) -> DeviceFacts:
        """Return the properties of a device."""

    def precision(self, spec: DeviceSpec) -> Precision:
        """Return the distances of a small network's outputs on a device in both precisions."""


class TorchMeasurer(Measurer, Protocol):
    """A worker that runs the CUDA engine."""

    def left_to_openvino(self) -> list[str]:
        """Return the types of the ops that torch does not run, so that OpenVINO evaluates them on the CPU."""
