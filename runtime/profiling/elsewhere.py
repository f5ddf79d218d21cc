"""Elsewhere: other machines that profile devices while this one profiles others. Legend: N ops, D devices."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.messages import OpTimes

SECONDS = ("latency_s", "compile_s", "first_s")
"""What an answer to ``OpTimes`` has in seconds, beside its primitives; all else is counts, bytes and shares."""


class Elsewhere(Protocol):
    """Machines like this one that profile a device at a time each, beside a reference that runs on this one as well."""

    def hand_out(self, request: OpTimes, limit_s: float, reference: Candidate) -> Future[Any] | None:
        """Have a device profiled within a limit; None where no machine is free, or the reference does not run here."""

    def answer(self, future: Future[Any]) -> dict[str, Any] | None:
        """The answer to ``OpTimes`` as of this machine, with ``box``, the machine that it comes from.

        None where there is none, and this machine has to profile the device.
        """


def scaled(times: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """An answer to ``OpTimes`` with all that is seconds multiplied."""
    primitives = [[ops, factor * seconds, *rest] for ops, seconds, *rest in times["primitives"]]
    return {**times, **{name: factor * times[name] for name in SECONDS}, "primitives": primitives}
