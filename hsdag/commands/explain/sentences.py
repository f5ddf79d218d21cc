"""Sentences of explanations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hsdag.runtime.objectives import LATENCY, find_objective

if TYPE_CHECKING:
    from hsdag.commands.explain.explanation import Explanation, Rival

WORTH_SAYING = 0.01
"""Mention a change only if it gains at least this share of the time."""

MOST_NAMED = 3
"""Name at most this many ops in a sentence."""

CAUSES: dict[str, Callable[[str], str]] = {
    "launches": lambda _: "Fewer pieces: if launches took no time, the placement",
    "transfers": lambda name: f"Less to send: if {f'the link from {name}' if name else 'transfers'} took no time, it",
    "slow-downs": lambda _: "Devices that share less: if they did not slow each other down, the placement",
}
"""Beginning of a sentence on what would be gained without a cost, by kind of cost that a user can influence."""


def sentences_of(explanation: Explanation) -> tuple[str, ...]:
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
    known = [f"{text(value.measured)} measured"] if value.measured is not None else []
    if value.simulated is not None:
        ratio = "" if value.ratio is None else f", {value.ratio:.2f} times what was measured"
        known.append(f"{text(value.simulated)} simulated{ratio}")
    return f"{where}: {'; '.join(known) or 'no time is known'}."


def _spread_sentences(explanation: Explanation) -> list[str]:
    if explanation.copies:
        held = ", and on ".join(f"{name}, {count} at a time" for name, count in explanation.copies.items())
        return [f"The whole model is on {held}: an inference runs where it should end first."]
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
