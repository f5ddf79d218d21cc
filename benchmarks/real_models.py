"""Whether placements hold on models that nobody here wrote: under HETERO, under our executor, and in prediction.

Models come from packages of the registry (see real_model_sources.py): files that they ship, their definitions with
random weights, and variants that NNCF quantised. Each is placed on two CPU devices of one thread and single precision:
random placements of its co-location sets, and contiguous halves. A placement is made of the model as it is read first,
and compiled with the model as it is read again. It is right where it compiles and every output is within the tolerance
of the whole model's on the CPU; what HETERO draws of its submodels is compared op by op with what we predict. Each
model runs in a process of its own; one that dies or hangs loses the placement it was at.

Prints a line a model and totals. Exit status 1 when a placement failed or other submodels than predicted were made.

Usage: python benchmarks/real_models.py [--models NAME,...] [--placements 6] [--limit 600] [--json]
                                        [--folder artifacts/real-models] [--list]
The packages: pip install --no-deps -r benchmarks/real_models_requirements.txt
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from machine import machine
from real_model_sources import Source, all_sources
from real_model_trial import EXECUTORS, Attempt, Opening, run_trial

FOLDER = Path("artifacts", "real-models")


@dataclass(frozen=True)
class Row:
    """What came of one model; without an opening, ``reason`` says why it could not be placed."""

    name: str
    took_s: float
    opening: Opening | None
    attempts: tuple[Attempt, ...]
    reason: str | None = None

    def right(self, executor: str) -> str:
        """How many placements were right, of how many."""
        of_it = [a for a in self.attempts if a.executor == executor]
        return f"{sum(a.is_right for a in of_it)}/{len(of_it)}"

    @property
    def same_members(self) -> str:
        """How many placements HETERO split as predicted, of how many it compiled."""
        compiled = [a.same_members for a in self.attempts if a.same_members is not None]
        return f"{sum(compiled)}/{len(compiled)}"

    @property
    def is_right(self) -> bool:
        """Whether nothing failed."""
        return all(a.is_right and a.same_members is not False for a in self.attempts)

    def line(self) -> str:
        """The row as text."""
        if self.opening is None:
            return f"{self.name:26s} not placed: {self.reason}"
        differences = [a.difference for a in self.attempts if a.difference is not None]
        tolerances = [a.tolerance for a in self.attempts if a.tolerance is not None]
        counts = [f"{self.right(executor):>7s}" for executor in EXECUTORS]
        return (
            f"{self.name:26s} {self.opening.ops:6d} {self.opening.sets:6d} {' '.join(counts)} {self.same_members:>9s} "
            f"{max(differences, default=float('nan')):10.1e} {max(tolerances, default=float('nan')):9.1e} "
            f"{self.took_s:6.0f}{'' if self.is_right else '   <-- MISSED'}"
        )


HEADER = (
    f"{'model':26s} {'ops':>6s} {'sets':>6s} {'HETERO':>7s} {'ours':>7s} {'submodels':>9s} {'difference':>10s} "
    f"{'tolerance':>9s} {'s':>6s}"
)


def try_model(source: Source, folder: Path, count: int, limit_s: float) -> Row:
    """All placements of one model, in as many processes as die of them."""
    begin, opening, attempts = time.monotonic(), None, list[Attempt]()
    total = (count + 1) * len(EXECUTORS)
    while len(attempts) < total:
        left_s = limit_s - (time.monotonic() - begin)
        found, ending = _child(source, folder, count, len(attempts), left_s)
        opening = next((Opening(**line) for line in found if "ops" in line), opening)
        attempts += [Attempt(**line) for line in found if "placement" in line]
        if ending is None:
            break
        if opening is None:
            return Row(source.name, time.monotonic() - begin, None, (), ending)
        if len(attempts) < total:
            attempts.append(Attempt(len(attempts) // len(EXECUTORS), EXECUTORS[len(attempts) % len(EXECUTORS)], ending))
    return Row(source.name, time.monotonic() - begin, opening, tuple(attempts))


def _child(
    source: Source, folder: Path, count: int, start: int, left_s: float
) -> tuple[list[dict[str, Any]], str | None]:
    """What a process printed that went on from an attempt, and why it ended before the last one, if it did."""
    arguments = ["--child", source.name, "--folder", str(folder), "--placements", str(count), "--start", str(start)]
    with tempfile.TemporaryFile("w+") as answers, tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen([sys.executable, __file__, *arguments], stdout=answers, stderr=log)
        ending = None
        try:
            code = child.wait(max(left_s, 0.0))
        except subprocess.TimeoutExpired:
            child.kill()
            code, ending = child.wait(), "the time limit of the model passed"
        answers.seek(0)
        log.seek(0)
        lines = [json.loads(line) for line in answers if line.startswith("{") and line.endswith("}\n")]
        if code < 0 and ending is None:
            ending = f"the process died of {signal.Signals(-code).name}"
        elif code > 0:
            ending = (log.read().strip().splitlines() or [f"exit status {code}"])[-1]
    return lines, ending


def child(source: Source, folder: Path, count: int, start: int) -> None:
    """Print what ``run_trial`` yields; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in run_trial(source, folder, count, start):
        print(json.dumps(line), file=answers)


def report(rows: list[Row]) -> str:
    """Totals, and how often what went wrong."""
    placed = [row for row in rows if row.opening]
    attempts = [a for row in placed for a in row.attempts]
    lines = [f"{len(placed)} models placed, {sum(row.is_right for row in placed)} of them without a failure"]
    for executor in EXECUTORS:
        of_it = [a for a in attempts if a.executor == executor]
        lines.append(f"{executor}: {sum(a.is_right for a in of_it)} of {len(of_it)} placements right")
    members = [a.same_members for a in attempts if a.same_members is not None]
    lines.append(f"submodels as predicted, member by member: {sum(members)} of {len(members)} placements")
    reasons = Counter(
        (row.name, a.executor, (a.reason or "")[:110]) for row in placed for a in row.attempts if a.reason
    )
    lines += [f"  {count} x {name}, {executor}: {reason}" for (name, executor, reason), count in reasons.items()]
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", help="names, or beginnings of names, separated by commas; all but our own zoo's by default"
    )
    parser.add_argument("--placements", type=int, default=6, help="random ones of each model, beside the halves")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one model")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where converted models are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--list", action="store_true", help="print the models and what they need, and end")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = _options()
    sources = all_sources()
    if options.child:
        child(next(s for s in sources if s.name == options.child), options.folder, options.placements, options.start)
        return 0
    if options.models:
        sources = [s for s in sources if s.name.startswith(tuple(options.models.split(",")))]
    else:
        sources = [s for s in sources if s.needs != "hsdag"]
    if options.list:
        print("\n".join(f"{s.name:26s} {s.needs:22s} {'' if s.is_there else 'missing'}" for s in sources))
        return 0
    out = sys.stderr if options.json else sys.stdout
    missing = sorted({s.needs for s in sources if not s.is_there})
    print(machine(), file=out)
    if missing:
        print(f"left out for want of packages: pip install --no-deps {' '.join(missing)}", file=out)
    print(HEADER, file=out)
    rows = []
    for source in (s for s in sources if s.is_there):
        rows.append(try_model(source, options.folder, options.placements, options.limit))
        print(rows[-1].line(), file=out, flush=True)
    print(report(rows), file=out)
    if options.json:
        print(json.dumps({"machine": machine(), "rows": [asdict(row) for row in rows]}))
    return 0 if rows and all(row.is_right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
