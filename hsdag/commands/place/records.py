"""Records of a search's result: plans, costs, measured candidates, verdicts, counts and settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import Field

from hsdag.base.errors import FileFormatError
from hsdag.drawing import shortened
from hsdag.ir.graph.scenario import Scenario
from hsdag.ir.placement.placement import Record, ReferenceName
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.machine.usable import BUSY
from hsdag.runtime.measuring.latency import Ratio
from hsdag.runtime.measuring.profile import Figure, Table, figures, numbers
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import CostSource
from hsdag.search.evaluators.recording import Event

SHOWN_REASONS = 3
"""Largest number of different reasons that a count of failures names; the run folder has all."""

LONGEST_REASON = 160
"""Largest number of characters of a reason; longer ones are shortened."""

OF_HETERO = {"time_s": (), "launch_s": (), "link_latency_s": (), "link_bandwidth_bytes_per_s": (np.inf,)}
"""Fields of HETERO's costs, with the value of a missing figure if that is not NaN."""

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
"""Characters for devices in a placement with one character per unit; for more devices it is a list of numbers."""

WIDE = 1.25
"""Ratio of an interval's ends above which, while other programs run, these make the result uncertain."""


class PlanRecord(Record):
    """Plan: the device of every placement unit, and its rank if the plan has an order."""

    placement: str | list[int]
    order: list[int] | None = None

    @staticmethod
    def of(plan: Plan, num_devices: int) -> PlanRecord:
        """Return the record of a plan; with few devices the placement is a text, one character per unit."""
        devices: list[int] = plan.placement.tolist()
        short = "".join(_ALPHABET[d] for d in devices) if num_devices <= len(_ALPHABET) else devices
        return PlanRecord(placement=short, order=None if plan.priority is None else plan.priority.tolist())

    def plan(self, num_units: int, num_devices: int, where: str) -> Plan:
        """Return the plan. Raises FileFormatError, which says ``where`` the record is, if it does not fit the model."""
        written, order = self.placement, self.order
        devices = [_ALPHABET.find(c) for c in written] if isinstance(written, str) else written
        fits = len(devices) == num_units and 0 <= min(devices) <= max(devices) < num_devices
        if not fits or (order is not None and len(order) != len(devices)):
            raise FileFormatError(f"{where}: the placement does not fit the model")
        return Plan(np.asarray(devices), None if order is None else np.asarray(order))


class CostsRecord(Record):
    """Costs as calibrated by measurements: all figures by op and link for HETERO, otherwise ``parameters``."""

    time_s: Table | None = None
    launch_s: list[Figure] | None = None
    link_latency_s: Table | None = None
    link_bandwidth_bytes_per_s: Table | None = None
    parameters: list[float] | None = None

    @staticmethod
    def of(costs: PlacementCosts | None) -> CostsRecord | None:
        """Return the record of calibrated costs; None if the executor's costs are not calibrated."""
        if isinstance(costs, HeteroCosts):
            return CostsRecord(**{name: figures(getattr(costs.costs, name)) for name in OF_HETERO})
        return CostsRecord(parameters=costs.parameters.tolist()) if isinstance(costs, WorkConservingCosts) else None

    def applied(self, costs: PlacementCosts) -> PlacementCosts:
        """Return the profile's costs with the figures of this record. Raises ValueError if these do not fit."""
        if isinstance(costs, HeteroCosts) and self.time_s is not None:
            fields: dict[str, Any] = {name: numbers(getattr(self, name), *ends) for name, ends in OF_HETERO.items()}
            return HeteroCosts(costs.collector, replace(costs.costs, **fields, source=CostSource.CALIBRATED))
        if isinstance(costs, WorkConservingCosts) and self.parameters is not None:
            if len(self.parameters) != len(costs.parameters):
                raise ValueError("the costs are for other devices")
            return WorkConservingCosts(costs.table, np.array(self.parameters), CostSource.CALIBRATED, costs.slowdown)
        raise ValueError("the costs are for another executor")


class Row(Record):
    """Measured candidate.

    Attributes:
        median: Median, in the objective's unit; as is ``p95``.
        runs: Number of inferences.
        ratio: How many times faster, or better, it is than the best single device.
        ci95: 95% interval of the ratio, without ends if too few ``rounds`` were run.
        ops: Number of ops by device; empty if OpenVINO does not tell.
        scenario_medians_s: Median of each scenario, if the objective is latency.
    """

    name: str
    median: float
    p95: float
    runs: int
    ratio: float
    ci95: tuple[float | None, float | None]
    rounds: int
    submodels: int
    ops: dict[str, int]
    is_answer: bool
    scenario_medians_s: tuple[float, ...] = ()

    @property
    def over(self) -> Ratio:
        """Return the ratio to the best single device, with its interval."""
        low, high = self.ci95
        return Ratio(self.ratio, low or 0.0, np.inf if high is None else high, self.rounds)


class ScenarioRecord(Record):
    """Shapes of typical data, their weight, and the ``--tokens`` that they stand for."""

    data_shape: str
    tokens: str | None
    weight: float

    @staticmethod
    def of(scenario: Scenario) -> ScenarioRecord:
        """Return the record of a scenario."""
        return ScenarioRecord(data_shape=scenario.text, tokens=scenario.known_tokens, weight=scenario.weight)


class Tally(Record):
    """Number of placements that a search tried to run and that it simulated, and of failures by reason."""

    tried: int = 0
    failures: dict[str, int] = Field(default_factory=dict)
    simulated: int = 0

    @staticmethod
    def of(events: Sequence[Event], simulated: int = 0) -> Tally:
        """Count a search's events."""
        failed = Counter(e.score.failure for e in events if e.score.failure is not None)
        return Tally(tried=len(events), failures=dict(failed.most_common()), simulated=simulated)

    @property
    def num_failed(self) -> int:
        """Return the number of placements that were tried and failed."""
        return sum(self.failures.values())

    @property
    def words(self) -> str:
        """Return the counts in words; failed placements do not count as measured."""
        simulated = f", {self.simulated:,} simulated" if self.simulated else ""
        if not self.failures:
            return f"{placements_were(self.tried)} measured{simulated}"
        shown = list(dict.fromkeys(shortened(reason, LONGEST_REASON) for reason in self.failures))
        reasons = "; ".join([*shown[:SHOWN_REASONS], *["..."] * (len(shown) > SHOWN_REASONS)])
        measured = self.tried - self.num_failed
        left = f"{measured} measured" if measured else "none was measured"
        return f"{placements_were(self.tried)} tried; {self.num_failed} failed ({reasons}), {left}{simulated}"


@dataclass(frozen=True)
class Verdict:
    """Verdict on the outputs of a candidate.

    Attributes:
        versus: Reference that they were compared with.
        tolerance: Largest accepted relative difference.
        difference: Difference by measure, None if it is not finite; None as a whole if they were not compared.
        reason: Why the candidate is rejected; None if it is not.
    """

    versus: ReferenceName
    tolerance: float
    difference: Mapping[str, float | None] | None = None
    reason: str | None = None
    ran: bool = True  # whether the candidate ran at all


class TriedSetting(Record):
    """Setting that was raced, with how many times faster it was than the best one before, or why it failed."""

    setting: dict[str, str]
    ratio: float | None = None
    ci95: tuple[float | None, float | None] = (None, None)
    failure: str | None = None


class DeviceSettings(Record):
    """Settings of a device, found by racing; a setting has values by property.

    Attributes:
        setting: Values that were chosen in addition to the user's.
        default: Values that the plugin uses without them.
        words: The setting in words.
        requests: Number of inferences in flight, for throughput.
        ratio: How many times faster the device is with the setting, in the final comparison.
        apart: Relative differences of outputs from the reference's before and after, if the setting changes them.
        is_decided: Whether the race left no doubt.
    """

    device: str
    setting: dict[str, str] = Field(default_factory=dict)
    default: dict[str, str] = Field(default_factory=dict)
    words: str = ""
    requests: int | None = None
    ratio: float | None = None
    ci95: tuple[float | None, float | None] = (None, None)
    apart: tuple[float, float] | None = None
    tried: tuple[TriedSetting, ...] = ()
    is_decided: bool = True

    @property
    def gain(self) -> str:
        """Return the gain of the setting, as the end of a sentence that names the device; empty if it is not known."""
        said = [] if self.ratio is None else [f"{100 * (self.ratio - 1):.0f}% faster than as OpenVINO sets it up"]
        if self.apart is not None:
            before, after = self.apart
            said.append(f"{'nearer to' if after < before else 'farther from'} the model's own numbers")
        return ", and ".join(said)


def is_disturbed(ratio: Ratio, others: float) -> bool:
    """Return whether a ratio decides nothing, as other programs took BUSY or more and its interval is WIDE."""
    return others >= BUSY and (not ratio.is_known or ratio.high > WIDE * ratio.low)


def placements_were(count: int) -> str:
    """Return a count of placements as the beginning of a sentence."""
    return "1 placement was" if count == 1 else f"{count} placements were"
