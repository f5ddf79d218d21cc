"""Jobs for boxes: to say what machine they are, and to measure a candidate beside the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hsdag.boxes.machine import Machine
from hsdag.boxes.site import Site
from hsdag.evaluators.bench import Relative
from hsdag.fleet.job import Exchange, Findings, Job, Shared
from hsdag.ir.device import DeviceSpec
from hsdag.runtime.measuring.candidate import Candidate


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
