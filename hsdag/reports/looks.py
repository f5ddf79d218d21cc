"""How reports look: colours that colour-blind readers tell apart, a hatch beside every colour, and sizes of ops."""

from __future__ import annotations

from hsdag.reports.gantt import COLOURS

HATCHES = (" ", "/", ".", "x", "-", "\\", "o", "|", "+", "*")
"""Of devices, in order; the colours are those of Gantt charts."""

UNPLACED_COLOUR = "#9a9a9a"

OP_SIZE, KNOWN_SIZE = (0.84, 0.7), (0.36, 0.22)
"""Width and height of an op, and of one that depends on no data, in layers."""


MOST_LETTERS = 48


def shortened(text: str) -> str:
    """A name as the label of a row, cut where it would leave no room for the figure."""
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"


def colour_of(index: int) -> str:
    """The colour of a device, a group or a method."""
    return COLOURS[index % len(COLOURS)] if index >= 0 else UNPLACED_COLOUR


def hatch_of(index: int) -> str:
    """The hatch of a device."""
    return HATCHES[index % len(HATCHES)] if index >= 0 else " "
