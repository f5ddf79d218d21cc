"""Explanations of placements: figures on why a placement is as it is, made by ``hsdag.explain``.

Figures in seconds are simulated unless they say that they are measured. Values are in the objective's unit, which is
seconds for latency and throughput. An ``Explanation`` is also the JSON answer of ``hsdag explain``; its ``sentences``
say the same in words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from pydantic import Field, computed_field
from pydantic.dataclasses import dataclass

from hsdag.commands.place.records import DeviceSettings
from hsdag.commands.place.tables import settings_table
from hsdag.drawing import Displayable
from hsdag.ir.placement.placement import Record
from hsdag.runtime.objectives import LATENCY, Objective, find_objective

WORTH_SAYING = 0.01
"""Mention a change only if it gains at least this share of the time."""

MOST_NAMED = 3
"""Name at most this many ops in a sentence."""


@dataclass(frozen=True)
class Gain:
    """What a unit gains from where it is, compared with moving it alone to the next best device.

    ``op`` is the unit's heaviest op and ``ops`` all of its ops. ``moved`` is the value after the move, ``gain`` that
    value less the placement's: negative if the costs favour the other device.
    """

    op: str
    op_type: str
    ops: tuple[str, ...]
    device: str
    other: str
    moved: float
    gain: float


@dataclass(frozen=True)
class Limit:
    """A cost of the placement: its total in seconds, and the share of the value that would go if it were zero.

    ``kind`` is work, launches, transfers or slow-downs. Devices that work side by side hide each other's work, so gains
    need not add up to 1.
    """

    name: str
    kind: str
    seconds: float
    gain: float


@dataclass(frozen=True)
class Difference:
    """An op that another plan has on another device."""

    op: str
    op_type: str
    here: str
    there: str


@dataclass(frozen=True)
class Rival:
    """Another plan and its ratio, the value relative to this placement's, measured with an interval or simulated.

    ``differs`` lists the units on another device, longest first, by their heaviest op; ``num_ops`` counts their ops.
    """

    name: str
    measured: bool
    ratio: float
    ci95: tuple[float, float] | None
    value: float
    differs: tuple[Difference, ...]
    num_ops: int

    @property
    def words(self) -> str:
        """Return the ratio in words."""
        if not self.measured:
            return f"takes {self.ratio:.3f} times as long (simulated)"
        if self.ci95 is None:
            return f"takes {self.ratio:.3f} times as long (measured, without an interval)"
        return f"takes {self.ratio:.3f} times as long (measured, 95% interval {self.ci95[0]:.3f} to {self.ci95[1]:.3f})"


@dataclass(frozen=True)
class ReportedBound:
    """A lower bound on the value of any placement under the same costs, its proof, and the share above it (``gap``)."""

    value: float
    argument: str
    gap: float


@dataclass(frozen=True)
class Prediction:
    """The value of the placement, as simulated with the costs and as measured.

    ``calibrated`` says whether the costs were fitted to measured plans, which may include this one.
    """

    simulated: float | None
    measured: float | None
    calibrated: bool

    @computed_field(alias="simulated_over_measured")  # type: ignore[prop-decorator]
    @property
    def ratio(self) -> float | None:
        """Return the simulated over the measured value: how well the costs predict this placement; 1 is exact."""
        return None if self.simulated is None or self.measured is None else self.simulated / self.measured


CAUSES: dict[str, Callable[[str], str]] = {
    "launches": lambda _: "Fewer pieces: if launches took no time, the placement",
    "transfers": lambda name: f"Less to send: if {f'the link from {name}' if name else 'transfers'} took no time, it",
    "slow-downs": lambda _: "Devices that share less: if they did not slow each other down, the placement",
}
"""Beginning of a sentence on what would be gained without a cost, by kind of cost that a user can influence."""


@dataclass(frozen=True)
class Shared:
    """A region that devices divide: scheme, first and last op, and the share of each device.

    ``whole_s`` is its time in seconds on the fastest device and ``divided_s`` that of the device that takes longest for
    its share, both simulated without syncs and overlaps of shares.
    """

    scheme: str
    first: str
    last: str
    num_ops: int
    shares: dict[str, float]
    whole_s: float | None
    divided_s: float | None


def _change(objective: Objective, gain: Gain) -> str:
    """Return the change of the objective by a move, as figure with sign."""
    return f"{objective.shown(gain.moved) - objective.shown(gain.moved - gain.gain):+.3g}"


class Explanation(Displayable, Record):
    """Why a placement is as it is.

    ``answer`` is what the search said about it, ``left`` what the search said is left to gain. ``ops`` counts the ops
    on each device. ``gains`` are those of units, largest first; ``num_unmoved`` further units could not be simulated in
    time. ``best_split`` is the best split if the placement uses a single device. ``regions`` are those divided over
    devices; ``copies`` counts the requests per device, or pipeline of devices, that has a copy of the model.
    ``settings`` are device settings that were raced before the search. ``notes`` say what is missing and why. Without
    costs there are no gains, limits and bound.
    """

    model: str
    executor: str
    objective: str
    answer: tuple[str, ...] = ()
    left: str = ""
    simulated: Literal[True] = True
    ops: dict[str, int]
    value: Prediction
    gains: tuple[Gain, ...] = ()
    num_unmoved: int = 0
    limits: tuple[Limit, ...] = ()
    next_best: Rival | None = None
    best_split: Rival | None = None
    bound: ReportedBound | None = None
    regions: tuple[Shared, ...] = ()
    copies: dict[str, int] = Field(default_factory=dict)
    settings: tuple[DeviceSettings, ...] = ()
    notes: tuple[str, ...] = ()
    elapsed_s: float = 0.0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentences(self) -> tuple[str, ...]:
        """Return the explanation in sentences; those that suggest an action come first."""
        return _sentences(self)

    @property
    def said(self) -> tuple[str, ...]:
        """Return the sentences."""
        return self.sentences

    def tables(self, most: int) -> list[tuple[str, list[str], list[list[str]]]]:
        """Return titles, columns and up to ``most`` rows of settings, regions, gains of units and limits."""
        objective = find_objective(self.objective)
        regions = []
        for region in self.regions[:most]:
            shares = " ".join(f"{name}:{100 * share:.0f}%" for name, share in region.shares.items())
            times = [f"{1e3 * time_s:.4g}" if time_s else "-" for time_s in (region.whole_s, region.divided_s)]
            regions.append([region.first, region.last, region.scheme, str(region.num_ops), shares, *times])
        gains = [
            [gain.op, gain.op_type, gain.device, gain.other, objective.figure(gain.moved), _change(objective, gain)]
            for gain in self.gains[:most]
        ]
        limits = [
            [f"{limit.kind} {limit.name}".strip(), f"{1e3 * limit.seconds:.4g}", f"{100 * limit.gain:.1f}"]
            for limit in self.limits
        ]
        tables = [
            ("Settings that were raced, over the best before each", *settings_table(self.settings)),
            (
                f"SIMULATED: the longest of {len(self.regions)} regions that devices divide, without syncs",
                ["from", "to", "scheme", "ops", "shares", "whole ms", "divided ms"],
                regions,
            ),
            (
                "SIMULATED: what ops gain from where they are",
                ["op", "type", "on", "moved to", f"then {objective.shown_unit}", f"more {objective.shown_unit}"],
                gains,
            ),
            (
                "SIMULATED: what takes time, and what the placement would gain without it",
                ["cost", "ms", "gain at most %"],
                limits,
            ),
        ]
        return [(title, columns, rows) for title, columns, rows in tables if rows]


def _sentences(explanation: Explanation) -> tuple[str, ...]:
    """Return an explanation in sentences; those that suggest an action come first."""
    value = _value_sentence(explanation)
    if explanation.regions or explanation.copies:
        return (*explanation.answer, value, *_spread_sentences(explanation), *explanation.notes)
    bound = [] if explanation.left else [_bound_sentence(explanation)]
    sentences = [value, *_cause_sentences(explanation), *_rival_sentences(explanation), *bound]
    return (*explanation.answer, *sentences, *_gain_sentences(explanation), *explanation.notes)


def _value_sentence(explanation: Explanation) -> str:
    value = explanation.value
    where = " and ".join(f"{count} ops on {name}" for name, count in explanation.ops.items() if count)
    objective = find_objective(explanation.objective)
    text = objective.text if objective.unit == "s" else LATENCY.text  # costs are in seconds
    figures = [f"{text(value.measured)} measured"] if value.measured is not None else []
    if value.simulated is not None:
        ratio = "" if value.ratio is None else f", {value.ratio:.2f} times what was measured"
        figures.append(f"{text(value.simulated)} simulated{ratio}")
    return f"{where}: {'; '.join(figures) or 'no time is known'}."


def _spread_sentences(explanation: Explanation) -> list[str]:
    if explanation.copies:
        counts = ", and on ".join(f"{name}, {count} at a time" for name, count in explanation.copies.items())
        return [f"The whole model is on {counts}: an inference runs where it should end first."]
    regions = explanation.regions
    sentences = [f"{sum(region.num_ops for region in regions)} ops in {len(regions)} regions are divided."]
    times = [(region.whole_s, region.divided_s) for region in regions if region.whole_s and region.divided_s]
    if times:
        whole_s, divided_s = np.sum(times, axis=0).tolist()
        sentences.append(
            f"Whole, these regions take {1e3 * whole_s:.4g} ms on the quickest device, and divided "
            f"{1e3 * divided_s:.4g} ms (simulated, without syncs)."
        )
    return sentences


def _gain_sentences(explanation: Explanation) -> list[str]:
    sentences = []
    if not explanation.gains or not explanation.value.simulated:
        return []
    first, last = explanation.gains[0], explanation.gains[-1]
    if first.gain > 0:
        sentences.append(
            f"Moving {first.op} from {first.device} to {first.other} would cost most: {1e3 * first.gain:.3g} ms, "
            f"{100 * first.gain / explanation.value.simulated:.1f}% (simulated)."
        )
    if last.gain < -WORTH_SAYING * explanation.value.simulated:
        sentences.append(
            f"By the costs, {last.op} would be better on {last.other}, by {-1e3 * last.gain:.3g} ms (simulated); "
            "no measurement has confirmed that."
        )
    return sentences


def _cause_sentences(explanation: Explanation) -> list[str]:
    """Return what a user can change, largest gain first."""
    is_whole = sum(map(bool, explanation.ops.values())) == 1
    causes = [(CAUSES[limit.kind], limit) for limit in explanation.limits if limit.kind in CAUSES]
    return [
        f"{cause(limit.name)} would gain at most {100 * limit.gain:.1f}% (simulated)."
        for cause, limit in causes
        if limit.gain >= WORTH_SAYING and not (is_whole and limit.kind == "launches")
    ]


def _rival_sentences(explanation: Explanation) -> list[str]:
    sentences = []
    if explanation.best_split is not None and not explanation.answer:  # the answer of a search already says so
        slower = explanation.best_split.ratio >= 1
        said = "No split won: the nearest one" if slower else "No split was shown to be faster; one of them"
        sentences.append(f"{said}, {explanation.best_split.name}, {explanation.best_split.words}.")
    if explanation.next_best is not None and explanation.next_best != explanation.best_split:
        rival = explanation.next_best
        sentences.append(f"The next best plan, {rival.name}, {rival.words}{_where(explanation, rival)}.")
    return sentences


def _where(explanation: Explanation, rival: Rival) -> str:
    """Return the end of a sentence that says in which ops a rival differs."""
    if not rival.differs:
        return ""
    if rival.num_ops == sum(explanation.ops.values()):
        return f"; all {rival.num_ops} ops differ"
    named = ", ".join(f"{difference.op} is on {difference.there}" for difference in rival.differs[:MOST_NAMED])
    more = ", and others elsewhere" if len(rival.differs) > MOST_NAMED else ""
    return f"; {'1 op differs' if rival.num_ops == 1 else f'{rival.num_ops} ops differ'}: {named}{more}"


def _bound_sentence(explanation: Explanation) -> str:
    bound = explanation.bound
    if bound is None:
        return "How much better another placement could be is not known."
    return (
        f"No placement takes less than {1.0 - bound.gap:.3f} of this one's time under these costs "
        f"(simulated), proven by {bound.argument}: at most {100 * bound.gap:.1f}% is left to gain."
    )
