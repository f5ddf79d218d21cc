"""The answer of a search in words: what is gained over the best single device, and why, or why nothing is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hsdag.base.errors import option
from hsdag.commands.place.comparison import FinalComparison
from hsdag.commands.place.records import is_disturbed
from hsdag.runtime.measuring.latency import MAX_ROUNDS, MIN_ROUNDS_TO_CLAIM, Ratio
from hsdag.runtime.objectives import LATENCY
from hsdag.search.options import PlaceOptions

TOO_FEW = "too few to say so"
"""Words about the number of rounds of a candidate that may be faster."""

WHOLE = "run the model on {} unless you need the parts for something else"
"""Advice for a whole device that was faster than the placement over its partitions."""

NO_SINGLE = "No single device ran the whole model"
"""Words for the lack of a best single device, if devices failed."""
NO_MEMORY = "No device has the memory for the whole model"
"""Words for the lack of a best single device, if none has enough memory."""


@dataclass(frozen=True)
class Lead:
    """Lead of the answer over the best single device.

    Attributes:
        best_single: Name of that device; None if no device runs the model.
        ratio: How many times faster, or better, the answer is than that device.
        takes: Words after a ratio of the objective's values.
        busy: Share of the processors that other programs took meanwhile.
        no_single: Words for the lack of a best single device.
    """

    answer: str
    best_single: str | None
    ratio: Ratio
    takes: str = LATENCY.takes
    busy: float = 0.0
    no_single: str = NO_SINGLE

    @property
    def word(self) -> str:
        """Return the word for a candidate with a larger ratio."""
        return "faster" if self.takes == LATENCY.takes else "better"


@dataclass(frozen=True)
class NotChosen:
    """Candidates that are not the answer.

    Attributes:
        rejected: Reasons why candidates that seem faster are not the answer, and any objection to the answer, by name.
        disallowed: Reasons why candidates that measured faster than the answer may not be it, by name; also that of the
            best single device, even if it was slower.
        whole_devices: Advice for whole devices that measured faster than the answer over their partitions, by name.
        nearest: Finalist with the best ratio to the best single device, and this ratio; None if none was compared
            and kept.
        uncompared: Why no split placement was compared; None if one was.
    """

    rejected: Mapping[str, str] = field(default_factory=dict)
    disallowed: Mapping[str, str] = field(default_factory=dict)
    whole_devices: Mapping[str, str] = field(default_factory=dict)
    nearest: tuple[str, Ratio] | None = None
    uncompared: str | None = None

    @staticmethod
    def of(final: FinalComparison) -> NotChosen:
        """Return what a comparison says of its candidates; ``uncompared`` is left out."""
        candidates = final.candidates
        ratios = {name: final.ratios[name] for name in candidates.finalists if name in final.ratios}
        reasons = {name: verdict.reason for name, verdict in final.verdicts.items() if verdict.reason is not None}
        rejected = {**too_few_rounds(ratios), **reasons}
        rejected = {name: why for name, why in rejected.items() if name not in candidates.disallowed}
        others = [name for name in ratios if name not in rejected]
        best = max(others, key=lambda name: ratios[name].value, default=None)
        faster = [name for name in candidates.disallowed if name == final.best_single or _is_faster(final, name)]
        return NotChosen(
            rejected=rejected,
            disallowed={name: candidates.disallowed[name] for name in faster},
            whole_devices={name: WHOLE.format(name) for name in final.whole_devices if _is_faster(final, name)},
            nearest=None if best is None else (best, ratios[best]),
        )

    @property
    def reasons(self) -> dict[str, str]:
        """Return reasons and advice, by name."""
        return {**self.rejected, **self.disallowed, **self.whole_devices}


@dataclass(frozen=True)
class Alternatives:
    """Other ways to run the model, with ratios that say how many times faster one is than another.

    Attributes:
        automatic: Ratios of OpenVINO's own choices to the answer, by name.
        ignored: Limits that these choices do not keep.
        over_twin: Ratio of the answer to the placement run by another executor.
        twin: Name of that executor, and words for its placement.
        over_start: Ratio of the answer to the placement that the search started with.
    """

    automatic: Mapping[str, Ratio] = field(default_factory=dict)
    ignored: str | None = None
    over_twin: Ratio | None = None
    twin: tuple[str, str] = ("HETERO", "with the same placement")
    over_start: Ratio | None = None


def speed_sentence(lead: Lead, others: NotChosen | None = None, alternatives: Alternatives | None = None) -> str:
    """Return what the answer gains, and what was faster but is not the answer, in a sentence or two."""
    others, alternatives = others or NotChosen(), alternatives or Alternatives()
    ruled_out = {name: why for name, why in others.disallowed.items() if name != lead.best_single}
    clauses = [
        *_over_single(lead, others),
        *_over_alternatives(lead, alternatives),
        *(f"{name} was {lead.word}, but is ruled out: {why}" for name, why in ruled_out.items()),
    ]
    sentences = [
        "; ".join(clauses),
        *(f"The whole {name} was {lead.word} than its parts: {do}" for name, do in others.whole_devices.items()),
    ]
    return " ".join(f"{sentence}." for sentence in sentences)


def _over_single(lead: Lead, others: NotChosen) -> list[str]:
    """Return clauses on the answer and the best single device."""
    best_single, ratio, takes = lead.best_single, lead.ratio, lead.takes
    if best_single is None:
        return [f"{lead.no_single}; the placement does"]
    if best_single in others.disallowed:
        than = "as" if takes == LATENCY.takes else "of"
        return [
            f"The best single device, {best_single}, is ruled out: {others.disallowed[best_single]}",
            f"it takes {ratio.value:.2f} {takes} {than} the placement {_interval(ratio)}",
        ]
    if lead.answer == best_single:
        return [_why_the_device(best_single, lead, others)]
    if takes != LATENCY.takes:
        times = f"takes {ratio.value:.2f} {takes} of the placement {_interval(ratio)}"
        return [f"The best single device, {best_single}, {times}"]
    value, low, high = (100 * (times - 1) for times in (ratio.value, ratio.low, ratio.high))
    faster = f"{value:.1f}% faster (95% interval {low:.1f}% to {high:.1f}%)"
    if is_disturbed(ratio, lead.busy):
        return [
            f"Not decided: the placement measured {faster} than the best single device, {best_single}, while "
            f"other programs took {lead.busy:.0%} of the processors; end them, and place the model again"
        ]
    return [f"The placement is {faster} than the best single device, {best_single}"]


def _why_the_device(device: str, lead: Lead, others: NotChosen) -> str:
    """Return the clause on why the best single device is the answer."""
    rejected = others.rejected.items()
    down = [f"{name} was {lead.word}, but {reason}" for name, reason in rejected if name != device]
    reasons = "; ".join(down) or others.uncompared or _nearest_words(device, others.nearest, lead.takes)
    is_open = any(TOO_FEW in reason for _, reason in rejected)
    return f"Not decided: {reasons}" if is_open else f"{reasons[:1].upper()}{reasons[1:]}"


def _over_alternatives(lead: Lead, alternatives: Alternatives) -> list[str]:
    """Return clauses on another executor, the placement to start with, and OpenVINO's own choices if faster."""
    clauses, over_twin, over_start = list[str](), alternatives.over_twin, alternatives.over_start
    if over_twin is not None:
        executor, placement = alternatives.twin
        clauses.append(f"{executor} takes {over_twin.value:.2f} {lead.takes} {placement} {_interval(over_twin)}")
    if over_start is not None and over_start.value != 1.0:
        clauses.append(f"the one to start with takes {over_start.value:.2f} {lead.takes} {_interval(over_start)}")
    elif over_start is not None:
        clauses.append("it is the one to start with")
    if faster := " and ".join(name for name, over in alternatives.automatic.items() if over.is_faster):
        clause = f"OpenVINO's own {faster} measured {lead.word} than the placement"
        clauses.append(clause if alternatives.ignored is None else f"{clause} {alternatives.ignored}")
    return clauses


def _nearest_words(best_single: str, nearest: tuple[str, Ratio] | None, takes: str) -> str:
    """Return the clause that no placement beat the best single device, with the nearest one's ratio if it is known."""
    if nearest is None or not nearest[1].is_known:
        return f"no placement beat {best_single}"
    name, over = nearest
    if over.is_slower:
        slower = Ratio(1 / over.value, 1 / over.high, 1 / over.low)
        how = f"takes {slower.value:.2f} {takes} {_interval(slower)}"
        return f"no placement beat {best_single}: the nearest, {name}, {how}"
    return (
        f"not decided: {name} and {best_single} could not be told apart ({over.low:.2f} to {over.high:.2f} times as "
        f"{'fast' if takes == LATENCY.takes else 'good'}, 95% interval; "
        f"{'too close to tell' if times_to_tell(over) is None else 'more rounds would tell'})"
    )


def times_to_tell(tie: Ratio) -> float | None:
    """Return the factor by which more rounds would tell which of two is faster; None if MAX_ROUNDS would not.

    The width of an interval is taken to fall with the square root of the number of rounds.
    """
    if tie.high <= tie.low:  # the same in every round, as simulated values are
        return None
    off = abs(np.log(tie.value)) / (0.5 * np.log(tie.high / tie.low))
    return None if tie.num_rounds > MAX_ROUNDS * off**2 else float(1 / off**2)


def too_few_rounds(ratios: Mapping[str, Ratio]) -> dict[str, str]:
    """Return the reason for each placement that seems faster than the best single device after too few rounds."""
    why = f"{TOO_FEW} where {MIN_ROUNDS_TO_CLAIM} are needed"
    few = {name: ratio.num_rounds for name, ratio in ratios.items() if ratio.value > 1.0 and not ratio.is_known}
    return {name: f"in {rounds} round{'s' * (rounds > 1)} only, {why}" for name, rounds in few.items()}


def ignored(options: PlaceOptions) -> str | None:
    """Return words for the limits that OpenVINO's own choices do not keep; None if there are none."""
    limits = {"pins": options.pins, "memory": options.memory_bytes, "max_difference": options.max_difference}
    names = [option(name) for name, limit in limits.items() if limit not in ((), {}, None)]
    return f"without {' and '.join(names)}" if names else None


def _is_faster(final: FinalComparison, name: str) -> bool:
    return name in final.comparison.samples and final.comparison.ratio(name, final.answer).value > 1.0


def _interval(ratio: Ratio) -> str:
    if not ratio.is_known:
        return f"(from {ratio.num_rounds} rounds, too few for an interval)"
    return f"(95% interval {ratio.low:.2f} to {ratio.high:.2f})"
