"""Profiling on several boxes: a device at a time on each that is free, scaled to this machine by a reference."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from hsdag.boxes.boxes import Boxes
from hsdag.evaluators.bench import Bench
from hsdag.fleet.pool import Host
from hsdag.ir.processes import CandidateFailed
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.messages import OpTimes
from hsdag.runtime.measuring.profiler import Elsewhere, scaled


class ProfilingBoxes(Elsewhere):
    """Boxes that profile devices; each answers in parts of what the reference takes there, and this machine's ``bench``
    says how many seconds that is here: absolute figures of two boxes never meet.

    The reference is measured here once, when the first device has been handed out, and is closed again: devices are
    profiled here as without boxes.
    """

    def __init__(self, boxes: Boxes, bench: Bench) -> None:
        self._boxes, self._bench = boxes, bench
        self._running: dict[Future[Any], Host] = {}
        self._reference_s: float | None = None
        self._is_over = False
        boxes.begin()

    def hand_out(self, request: OpTimes, limit_s: float, reference: Candidate) -> Future[Any] | None:
        """As Elsewhere says. A box whose answer was not waited for gets nothing more."""
        busy = self._running.values()
        host = None if self._is_over else next((each for each in self._boxes.hosts if each not in busy), None)
        if host is None:
            return None
        future = self._boxes.profile(host, request, limit_s, reference)
        if self._reference_s is None:
            try:
                self._reference_s = self._bench.reference_value(reference)
            except CandidateFailed:
                future.cancel()
                self._is_over = True
                return None
            finally:
                self._bench.close()
        self._running[future] = host
        return future

    def answer(self, future: Future[Any]) -> dict[str, Any] | None:
        """As Elsewhere says."""
        host = self._running.pop(future)
        relative = self._boxes.answer(host, future)
        if relative is None or relative.times is None or self._reference_s is None:
            return None
        return {**scaled(relative.times, self._reference_s), "box": host.name}
