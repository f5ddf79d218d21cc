"""Child processes: they end with the process that started them, and are the first to go where memory is short."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
from pathlib import Path

OWN_SCORE, HIGHEST_SCORE = Path("/proc/self/oom_score_adj"), 1000


def die_with_parent() -> None:
    """On Linux, have the kernel end this process when the one that started it is killed."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def go_first() -> None:
    """On Linux, have the kernel kill this process before all others where the memory of the machine runs out."""
    with contextlib.suppress(OSError):
        OWN_SCORE.write_text(str(HIGHEST_SCORE), encoding="ascii")
