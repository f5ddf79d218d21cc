"""How candidates of ``hsdag bench`` are compiled and how long they run, in the terms of OpenVINO's benchmark_app."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import OptionError
from hsdag.methods.names import HINTS
from hsdag.runtime.machine.devices import PRECISION, PRECISION_OPTION, parse_values, with_values
from hsdag.runtime.measuring.latency import Protocol
from hsdag.runtime.measuring.runner import RUNS_IN_FLIGHT

ROUNDS = 10
"""Rounds into which a number of inferences is divided, so that candidates take turns."""


@dataclass(frozen=True)
class Tuning:
    """What benchmark_app's options say. Raises OptionError for what is out of range or does not go together.

    ``streams`` and ``precision`` are values for all devices or ``DEVICE:VALUE,...``, as ``-nstreams`` and
    ``-infer_precision`` take them; ``requests`` are in flight where throughput is measured; ``iterations`` is the
    number of inferences of each candidate, rounded up to whole rounds.
    """

    hint: str | None = None
    streams: str | None = None
    threads: int | None = None
    pinning: str | None = None
    precision: str | None = None
    cache_dir: Path | None = None
    requests: int | None = None
    iterations: int | None = None

    def __post_init__(self) -> None:
        if self.hint is not None and self.hint not in HINTS:
            raise OptionError(f"unknown hint {self.hint!r}; choose one of {', '.join(HINTS)}")
        for option, count in (("nthreads", self.threads), ("nireq", self.requests), ("niter", self.iterations)):
            if count is not None and count < 1:
                raise OptionError(f"--{option} must be at least 1, not {count}")
        if self.pinning not in (None, "YES", "NO"):
            raise OptionError(f"--pinning must be YES or NO, not {self.pinning!r}")
        fine = [option for option, given in self._fine.items() if given is not None]
        if fine and self.hint not in (None, "none"):
            raise OptionError(f"--{fine[0]} replaces what --hint {self.hint} would choose: leave one out")
        for option, text in (("nstreams", self.streams), (PRECISION_OPTION, self.precision)):
            parse_values(option, text)

    @property
    def _fine(self) -> dict[str, object]:
        """Options that benchmark_app takes without a hint alone."""
        return {"nstreams": self.streams, "nthreads": self.threads, "pinning": self.pinning}

    def properties(self) -> dict[str, Any]:
        """What every candidate is compiled with; a hint of None leaves the choice to OpenVINO."""
        found: dict[str, Any] = {}
        if self.hint is not None:
            found["PERFORMANCE_HINT"] = HINTS[self.hint]
        elif any(given is not None for given in self._fine.values()):
            found["PERFORMANCE_HINT"] = None
        if self.requests is not None:
            found["PERFORMANCE_HINT_NUM_REQUESTS"] = self.requests
        if self.cache_dir is not None:
            found["CACHE_DIR"] = str(self.cache_dir)
        return found

    def of_devices(self, specs: Sequence[DeviceSpec], others: Sequence[str]) -> tuple[DeviceSpec, ...]:
        """The devices with their properties; ``others`` names candidates that bring properties of their own.

        Raises OptionError for a device that is not there or has other ones, and where others should get properties.
        """
        threads = None if self.threads is None else str(self.threads)
        options = [
            ("nstreams", "NUM_STREAMS", self.streams, ""),
            (PRECISION_OPTION, PRECISION, self.precision, ""),
            ("nthreads", "INFERENCE_NUM_THREADS", threads, "CPU"),
            ("pinning", "ENABLE_CPU_PINNING", self.pinning, "CPU"),
        ]
        if others and any(text is not None for _, _, text, _ in options):
            raise OptionError(
                f"--nstreams, --nthreads, --pinning and --infer-precision are for devices; {others[0]} has its own "
                "properties: measure it without them, or give them to its devices"
            )
        found = tuple(specs)
        for option, key, text, plugin in options:
            suited = [spec for spec in found if spec.plugin.startswith(plugin)]
            own = {spec.name: spec for spec in with_values(suited, option, key, parse_values(option, text))}
            found = tuple(own.get(spec.name, spec) for spec in found)
        return found

    def protocol(self, time_s: float | None) -> Protocol:
        """How long to measure, once: by time, by the number of inferences, or both, whatever takes longer."""
        timed = Protocol(limit_s=time_s or math.inf, max_rounds=100_000, interval_width=0, hopeless=0)
        if self.iterations is None:
            return timed
        rounds = min(ROUNDS, self.iterations)
        most = rounds if time_s is None else timed.max_rounds
        return replace(timed, min_rounds=rounds, max_rounds=most, turn_runs=math.ceil(self.iterations / rounds))


def in_flight(protocol: Protocol) -> Protocol:
    """The same where a turn keeps several requests in flight, which multiplies its inferences."""
    runs = protocol.turn_runs
    return protocol if runs is None else replace(protocol, turn_runs=max(1, runs // RUNS_IN_FLIGHT))
