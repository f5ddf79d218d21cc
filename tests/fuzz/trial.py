"""Trials: what becomes of an input."""

from __future__ import annotations

import traceback
from enum import Enum
from pathlib import Path

from hsdag.ir.errors import HsdagError
from tests.fuzz.formats.base import Format

LIMIT_S = 10.0
"""What a reader may take."""

PEAK_BYTES = 1_000_000_000
"""What the process may hold at any time."""


class Outcome(Enum):
    """What became of an input; the first two are right."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    TRACEBACK = "traceback"


def try_input(format_: Format, folder: Path) -> tuple[Outcome, str]:
    """Read the input that lies in a folder; what became of it, and why."""
    try:
        format_.read(folder)
    except HsdagError as error:
        text = str(error)
        if len(text.splitlines()) > 1:
            return Outcome.TRACEBACK, f"a message of several lines: {text!r:.200}"
        return Outcome.REFUSED, text[:200]
    except Exception as error:  # noqa: BLE001 - which is what is looked for
        own = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
        where = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
        return Outcome.TRACEBACK, f"{type(error).__name__} at {where}: {str(error)[:150]!r}"
    return Outcome.ACCEPTED, ""
