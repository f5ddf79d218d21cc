"""Jobs for boxes: to say what machine they are, and to measure a candidate or a device beside the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hsdag.boxes.machine import Machine
from hsdag.boxes.site import Site
from hsdag.evaluators.bench import Relative
from hsdag.fleet.job import Exchange, Findings, Job, Shared
from hsdag.ir.device import DeviceSpec
from hsdag.ir.processes import COMPILING_LIMIT_S, CandidateFailed
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.messages import OpTimes
from hsdag.runtime.measuring.profiler import scaled


@dataclass(frozen=True)
class Describe(Job[Machine]):
    """What machine computes this."""

    devices: tuple[DeviceSpec, ...]

    def run(self, values: tuple[Any, ...], exchange: Exchange) -> Machine:  # noqa: ARG002
        """The machine, with these devices."""
        return Machine.here(self.devices)


def _site(values: tuple[Any, ...], exchange: Exchange) -> Site:
    """The site that a job was given, whose measuring process gives up when the search is over."""
    site: Site = values[0]
    site.client.should_abandon = lambda: exchange(Findings()).is_over
    return site


@dataclass(frozen=True, eq=False)
class Measure(Job[Relative]):
    """Measure a candidate; needs the site."""

    candidate: Candidate
    reference: Candidate
    best_ratio: float
    needs: tuple[Shared, ...]

    def run(self, values: tuple[Any, ...], exchange: Exchange) -> Relative:
        """Over the reference, here and now. Raises HsdagError where nothing can be measured."""
        site = _site(values, exchange)
        return site.bench.beside(self.candidate, self.reference, self.best_ratio)


@dataclass(frozen=True)
class RelativeTimes:
    """An answer to ``OpTimes`` with all seconds over those of a reference, or None and why there is none.

    ``is_unfit`` says that it is the reference that does not run here.
    """

    times: Mapping[str, Any] | None = None
    failure: str | None = None
    is_unfit: bool = False


@dataclass(frozen=True, eq=False)
class ProfileDevice(Job[RelativeTimes]):
    """Measure the times of the model's ops on a device within a limit; needs the site."""

    request: OpTimes
    limit_s: float
    reference: Candidate
    needs: tuple[Shared, ...]

    def run(self, values: tuple[Any, ...], exchange: Exchange) -> RelativeTimes:
        """Over the reference, which runs before and after. Raises HsdagError where nothing can be measured."""
        site = _site(values, exchange)
        try:
            before_s = site.bench.reference_value(self.reference)
        except CandidateFailed as failure:
            reason = f"what machines are compared by does not run: {failure.reason}"
            return RelativeTimes(failure=reason, is_unfit=True)
        try:
            times = site.client.call(self.request, self.limit_s, COMPILING_LIMIT_S)
            after_s = site.bench.reference_value(self.reference)
        except CandidateFailed as failure:
            return RelativeTimes(failure=failure.reason)
        return RelativeTimes(scaled(times, 2 / (before_s + after_s)))
