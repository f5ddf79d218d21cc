"""What a newcomer sees of ``hsdag place`` on a terminal: glued lines, how long '0 s left' stays, time over budget.

    python benchmarks/newcomer.py [MODEL.xml] [--budget 30] [--busy]

Runs the command on pseudo-terminals of 80 and of 40 columns, with a process that computes beside it where ``--busy`` is
given, and prints a line for each; the exit status is 1 where a bar is missed. Needs pyte, which emulates the terminal.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyte

ROWS = 24
BAR = re.compile(r"\d+%, .* left|longer than planned")
"""What is in the row of the progress, and in no other one."""
OVER = re.compile(r"100%, 0 s left")
MOST_SHARE, MOST_OVER_S = 1.1, 5.0
"""Bars: of the budget, and of how long '0 s left' may stay."""

SPIN = "while True: pass"


def watched(command: list[str], columns: int) -> tuple[float, float, set[str]]:
    """Run a command on a terminal: seconds in all, the longest time that '0 s left' stayed, and glued rows."""
    import pty
    import termios

    screen = pyte.Screen(columns, ROWS)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (ROWS, columns))
    begin_s = time.monotonic()
    over_since_s: float | None = None
    longest_s, glued = 0.0, set[str]()
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm"}):
        os.close(theirs)
        with contextlib.suppress(OSError):  # which is how Linux tells that nobody writes any more
            while True:
                if select.select([ours], [], [], 0.2)[0]:
                    if not (chunk := os.read(ours, 1 << 16)):
                        break
                    stream.feed(chunk)
                now_s = time.monotonic()
                shown = [row.rstrip() for row in screen.display if row.strip()]
                glued |= {row for row in shown for found in [BAR.search(row)] if found and not is_progress(row)}
                is_over = any(OVER.search(row) for row in shown)
                over_since_s = (over_since_s or now_s) if is_over else None
                longest_s = max(longest_s, now_s - (over_since_s or now_s))
    os.close(ours)
    return time.monotonic() - begin_s, longest_s, glued


def is_progress(row: str) -> bool:
    """Whether a row is the progress alone: a bar, where there is one, then the time, a colon and what is done."""
    return re.match(r"^[━╸╺ ]*(\d+%, [\dhmins ]+ left|[\dhmins ]+ longer than planned)(:|…|$)", row) is not None


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--budget", type=float, default=30.0)
    parser.add_argument("--busy", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model = given.model or Path(folder) / "resnet50.xml"
        hsdag = [sys.executable, "-m", "hsdag"]
        if given.model is None:
            subprocess.run([*hsdag, "models", "build", "resnet50", "-o", model], check=True, stdout=subprocess.DEVNULL)
        missed = False
        if given.busy:
            spinning = stack.enter_context(subprocess.Popen([sys.executable, "-c", SPIN]))
            stack.callback(spinning.kill)
        for columns in (80, 40):
            place = ["place", str(model), "--partition-cpu", "2", "--budget", f"{given.budget:g}s", "--fresh"]
            taken_s, over_s, glued = watched([*hsdag, *place, "-o", f"{folder}/{columns}.json"], columns)
            share = taken_s / given.budget
            print(
                f"{columns} columns: {taken_s:.0f} s, {share:.2f} budgets; '0 s left' for {over_s:.1f} s at most; "
                f"{len(glued)} rows glued to the progress {sorted(glued)[:2]}"
            )
            missed |= share > MOST_SHARE or over_s > MOST_OVER_S or bool(glued)
    sys.exit(missed)


if __name__ == "__main__":
    main()
