"""The answer of a search in words: what was gained, over what, and what could be gained at most."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hsdag.placing.final import FinalComparison
from hsdag.placing.result import is_disturbed
from hsdag.runtime.measuring.latency import MAX_ROUNDS, MIN_ROUNDS_TO_CLAIM, Ratio
from hsdag.runtime.objectives import LATENCY

TOO_FEW = "too few to say so"
"""Of rounds: what is said of a candidate that may be faster."""

WHOLE = "run the model on {} unless you need the parts for something else"
"""What is said of a whole device that was faster than the placement over its parts."""

NO_SINGLE = "No single device ran the whole model"
NO_MEMORY = "No device has the memory for the whole model"
"""Why there is no best single device."""


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
    """What the answer gains, in a sentence or two: a plan ``takes`` so many times as long, or as much of what counts.

    ``ratio`` is that of the best single device, where there is one, else ``no_single`` is said; ``rivals`` are those of
    OpenVINO's own choices, which are made without what is ``ignored``. ``over_twin`` is that of what another executor
    runs, whose name and placement ``twin`` says, and ``over_start`` that of the placement to start with. ``nearest`` is
    the best of the other placements, with how many times faster than the best single device it is. ``rejected`` says
    why faster placements are not the answer; ``disallowed`` why other candidates, and the best single device, can be
    none; ``whole_devices`` what to do with whole devices that were faster; ``uncompared`` why no split was compared.
    ``busy`` is the share of the processors that other programs took meanwhile.
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
    """That no placement beat the best single device, and how far the nearest one is, or that it is not known."""
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
    """How many times as many rounds would tell which of two is faster; None where even the most would not.

    An interval is as wide as one over the root of its rounds.
    """
    off = abs(np.log(tie.value)) / (0.5 * np.log(tie.high / tie.low))
    return None if tie.num_rounds > MAX_ROUNDS * off**2 else float(1 / off**2)


def too_few_rounds(ratios: Mapping[str, Ratio]) -> dict[str, str]:
    """Why placements that seem faster than the best single device are not the answer, where rounds were too few."""
    why = f"{TOO_FEW} where {MIN_ROUNDS_TO_CLAIM} are needed"
    few = {name: each.num_rounds for name, each in ratios.items() if each.value > 1.0 and not each.is_known}
    return {name: f"in {rounds} round{'s' * (rounds > 1)} only, {why}" for name, rounds in few.items()}


def rejected(final: FinalComparison) -> dict[str, str]:
    """Why candidates that seem faster are not the answer, and what there is to object to the answer itself."""
    others = {name: final.ratios[name] for name in final.finalists if name in final.ratios}
    reasons = {name: verdict.reason for name, verdict in final.verdicts.items() if verdict.reason is not None}
    return {name: why for name, why in {**too_few_rounds(others), **reasons}.items() if name not in final.disallowed}


def faster_but_disallowed(final: FinalComparison) -> dict[str, str]:
    """Why candidates that were measured to be faster than the answer are none; the best single device in any case."""
    faster = [name for name in final.disallowed if name == final.best_single or _is_faster(final, name)]
    return {name: final.disallowed[name] for name in faster}


def faster_whole_devices(final: FinalComparison) -> dict[str, str]:
    """What is said of whole devices that were measured to be faster than the answer over their parts."""
    return {name: WHOLE.format(name) for name in final.whole_devices if _is_faster(final, name)}


def _is_faster(final: FinalComparison, name: str) -> bool:
    return name in final.comparison.samples and final.comparison.ratio(name, final.answer).value > 1.0


def nearest_of(final: FinalComparison) -> tuple[str, Ratio] | None:
    """The finalist with the best ratio to the best single device, which the answer is; None where none was compared."""
    others = [name for name in final.finalists if name in final.ratios and name not in rejected(final)]
    best = max(others, key=lambda name: final.ratios[name].value, default=None)
    return None if best is None else (best, final.ratios[best])


def _interval(ratio: Ratio) -> str:
    if not ratio.is_known:
        return f"(from {ratio.num_rounds} rounds, too few for an interval)"
    return f"(95% interval {ratio.low:.2f} to {ratio.high:.2f})"
