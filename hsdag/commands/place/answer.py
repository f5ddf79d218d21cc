"""The answer of a search in words: what is gained over the best single device, and why, or why nothing is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hsdag.commands.place.comparison import FinalComparison
from hsdag.commands.place.result import is_disturbed
from hsdag.runtime.measuring.latency import MAX_ROUNDS, MIN_ROUNDS_TO_CLAIM, Ratio
from hsdag.runtime.objectives import LATENCY

TOO_FEW = "too few to say so"
"""Words about the number of rounds of a candidate that may be faster."""

WHOLE = "run the model on {} unless you need the parts for something else"
"""Advice for a whole device that was faster than the placement over its partitions."""

NO_SINGLE = "No single device ran the whole model"
"""Words for the lack of a best single device, if devices failed."""
NO_MEMORY = "No device has the memory for the whole model"
"""Words for the lack of a best single device, if none has enough memory."""


def speed_sentence(
    answer: str,
    best_single: str | None,
    ratio: Ratio,
    rivals: Mapping[str, Ratio],
    rejected: Mapping[str, str] | None = None,
    over_twin: Ratio | None = None,
    uncompared: str | None = None,
    *,
    over_start: Ratio | None = None,
    disallowed: Mapping[str, str] | None = None,
    whole_devices: Mapping[str, str] | None = None,
    nearest: tuple[str, Ratio] | None = None,
    ignored: str | None = None,
    no_single: str = NO_SINGLE,
    twin: tuple[str, str] = ("HETERO", "with the same placement"),
    takes: str = LATENCY.takes,
    busy: float = 0.0,
) -> str:
    """Return what the answer gains, in a sentence or two.

    All ratios say how many times faster, or better, one candidate is than another.

    Args:
        ratio: Of the answer to the best single device.
        rivals: Of OpenVINO's own choices to the answer, by name.
        rejected: Reasons why faster placements are not the answer.
        over_twin: Of the answer to the placement run by another executor.
        uncompared: Why no split placement was compared.
        over_start: Of the answer to the placement that the search started with.
        disallowed: Reasons why other candidates, or the best single device, cannot be the answer.
        whole_devices: Advice for whole devices that were faster.
        nearest: Best of the other placements, and its ratio to the best single device.
        ignored: Limits that OpenVINO's own choices do not keep.
        no_single: Words for the lack of a best single device.
        twin: Name of the other executor, and words for its placement.
        takes: Words after a ratio of the objective's values.
        busy: Share of the processors that other programs took meanwhile.
    """
    word = "faster" if takes == LATENCY.takes else "better"
    others = dict(disallowed or {})
    no_answer = None if best_single is None else others.pop(best_single, None)
    down = [f"{name} was {word}, but {reason}" for name, reason in (rejected or {}).items() if name != answer]
    if best_single is None:
        clauses = [f"{no_single}; the placement does"]
    elif no_answer is not None:
        than = "as" if takes == LATENCY.takes else "of"
        clauses = [
            f"The best single device, {best_single}, is ruled out: {no_answer}",
            f"it takes {ratio.value:.2f} {takes} {than} the placement {_interval(ratio)}",
        ]
    elif answer == best_single:
        reasons = "; ".join(down) or uncompared or _nearest_words(best_single, nearest, takes)
        is_open = any(TOO_FEW in reason for reason in (rejected or {}).values())
        clauses = [f"Not decided: {reasons}" if is_open else f"{reasons[:1].upper()}{reasons[1:]}"]
    elif takes != LATENCY.takes:
        times = f"takes {ratio.value:.2f} {takes} of the placement {_interval(ratio)}"
        clauses = [f"The best single device, {best_single}, {times}"]
    else:
        value, low, high = (100 * (each - 1) for each in (ratio.value, ratio.low, ratio.high))
        gain = f"{value:.1f}% faster (95% interval {low:.1f}% to {high:.1f}%)"
        clauses = [f"The placement is {gain} than the best single device, {best_single}"]
        if is_disturbed(ratio, busy):
            clauses = [
                f"Not decided: the placement measured {gain} than the best single device, {best_single}, while "
                f"other programs took {busy:.0%} of the processors; end them, and place the model again"
            ]
    if over_twin is not None:
        clauses.append(f"{twin[0]} takes {over_twin.value:.2f} {takes} {twin[1]} {_interval(over_twin)}")
    if over_start is not None and over_start.value != 1.0:
        clauses.append(f"the one to start with takes {over_start.value:.2f} {takes} {_interval(over_start)}")
    elif over_start is not None:
        clauses.append("it is the one to start with")
    if faster := " and ".join(name for name, over in rivals.items() if over.is_faster):
        own = f"OpenVINO's own {faster} measured {word} than the placement"
        clauses.append(own if ignored is None else f"{own} {ignored}")
    clauses += [f"{name} was {word}, but is ruled out: {reason}" for name, reason in others.items()]
    said = [
        "; ".join(clauses),
        *(f"The whole {name} was {word} than its parts: {do}" for name, do in (whole_devices or {}).items()),
    ]
    return " ".join(f"{each}." for each in said)


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
    few = {name: each.num_rounds for name, each in ratios.items() if each.value > 1.0 and not each.is_known}
    return {name: f"in {rounds} round{'s' * (rounds > 1)} only, {why}" for name, rounds in few.items()}


def rejected(final: FinalComparison) -> dict[str, str]:
    """Return why candidates that seem faster are not the answer, and any objection to the answer itself, by name."""
    others = {name: final.ratios[name] for name in final.finalists if name in final.ratios}
    reasons = {name: verdict.reason for name, verdict in final.verdicts.items() if verdict.reason is not None}
    return {name: why for name, why in {**too_few_rounds(others), **reasons}.items() if name not in final.disallowed}


def faster_but_disallowed(final: FinalComparison) -> dict[str, str]:
    """Return why candidates that measured faster than the answer are excluded, by name.

    The best single device is included even if it was slower.
    """
    faster = [name for name in final.disallowed if name == final.best_single or _is_faster(final, name)]
    return {name: final.disallowed[name] for name in faster}


def faster_whole_devices(final: FinalComparison) -> dict[str, str]:
    """Return the advice for each whole device that measured faster than the answer over its partitions."""
    return {name: WHOLE.format(name) for name in final.whole_devices if _is_faster(final, name)}


def _is_faster(final: FinalComparison, name: str) -> bool:
    return name in final.comparison.samples and final.comparison.ratio(name, final.answer).value > 1.0


def nearest_of(final: FinalComparison) -> tuple[str, Ratio] | None:
    """Return the finalist with the best ratio to the best single device, if that device is the answer.

    None if no finalist was compared.
    """
    others = [name for name in final.finalists if name in final.ratios and name not in rejected(final)]
    best = max(others, key=lambda name: final.ratios[name].value, default=None)
    return None if best is None else (best, final.ratios[best])


def _interval(ratio: Ratio) -> str:
    if not ratio.is_known:
        return f"(from {ratio.num_rounds} rounds, too few for an interval)"
    return f"(95% interval {ratio.low:.2f} to {ratio.high:.2f})"
