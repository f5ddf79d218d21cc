"""Trials: what becomes of an input, found in a process of its own. Run as a module, this file is that process.

The process takes inputs from ``first`` on and writes a line before and after each. It is held to a limit of memory far
above the bar, so that a reader that asks for terabytes harms nobody.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import tempfile
import traceback
from enum import Enum
from pathlib import Path
from random import Random

from hsdag.ir.errors import HsdagError
from tests.fuzz.formats.base import READ, Files, Format, drawn, find_format, seeds_of, write_files

LIMIT_S = 10.0
"""What a reader may take."""

PEAK_BYTES = 1_000_000_000
"""What the process may hold at any time."""

ADDRESS_BYTES = 8 * PEAK_BYTES


class Outcome(Enum):
    """What became of an input; the first two are as they should be."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    TRACEBACK = "traceback"
    HANG = "hang"
    CRASH = "crash"
    MEMORY = "memory"


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


def input_number(name: str, seeds: list[Files], seed: int, number: int) -> Files:
    """The same at every call."""
    return drawn(name, seeds, Random(f"{name} {seed} {number}"))


def peak_bytes() -> int:
    """The most that this process, or one that it started and that has ended, has held."""
    own = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert own is not None  # ru_maxrss begins with what the process that started this one held
    return 1024 * max(int(own[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)


def main(name: str, seed: int, first: int, end: int) -> None:
    """Try inputs, and say what became of them."""
    format_, seeds = find_format(name), seeds_of(name)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # readers may print
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for files in seeds:  # valid inputs load what the format needs, before memory is limited
            write_files(files, folder)
            outcome, why = try_input(format_, folder)
            if outcome is not Outcome.ACCEPTED and not why.endswith(READ):
                answers.write(f"seed {outcome.value} {why!r}\n")
            answers.write("loaded\n")
        resource.setrlimit(resource.RLIMIT_DATA, (ADDRESS_BYTES, ADDRESS_BYTES))
        answers.write(f"base {peak_bytes()}\n")
        for number in range(first, end):
            write_files(input_number(name, seeds, seed, number), folder)
            answers.write(f"begin {number}\n")
            outcome, why = try_input(format_, folder)
            answers.write(f"end {number} {outcome.value} {peak_bytes()} {why!r}\n")
            if peak_bytes() > PEAK_BYTES:
                return


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
