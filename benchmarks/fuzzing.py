"""What becomes of inputs that are made wrong at random, by format: read, refused in one line, or worse.

Bars: no traceback, no crash, no answer after more than 10 s, and no more than 1 GB of memory at any time. Inputs are
those of tests/fuzz; an input that breaks a promise is written to --findings, where it can be looked at.

Usage: python benchmarks/fuzzing.py [--inputs 10000] [--formats ir,onnx,...] [--seed 0] [--findings FOLDER]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from machine import machine

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzz.campaign import Campaign
from tests.fuzz.formats.base import format_names, seeds_of, write_files
from tests.fuzz.trial import Outcome, input_number

COLUMNS = ("inputs", "accepted", "refused", "tracebacks", "hangs", "peak MB", "seconds")


def row(campaign: Campaign) -> list[int]:
    """The figures of a format; a crash counts as a traceback."""
    counts = campaign.counts
    broken = counts[Outcome.TRACEBACK] + counts[Outcome.CRASH]
    fine = [counts[Outcome.ACCEPTED], counts[Outcome.REFUSED]]
    peak_mb = round(campaign.peak_bytes / 1e6)
    return [counts.total(), *fine, broken, counts[Outcome.HANG], peak_mb, round(campaign.elapsed_s)]


def keep(campaign: Campaign, folder: Path) -> None:
    """Write the inputs that broke a promise."""
    seeds = seeds_of(campaign.name)
    for number, _, _ in campaign.findings:
        where = folder / campaign.name / f"{campaign.seed}-{number}"
        where.mkdir(parents=True, exist_ok=True)
        write_files(input_number(campaign.name, seeds, campaign.seed, number), where)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--formats", default=",".join(format_names()))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--findings", type=Path, default=Path("artifacts/fuzzing"))
    chosen = parser.parse_args()
    print(machine(), flush=True)
    print(f"{'format':10s}" + "".join(f" {column:>10s}" for column in COLUMNS), flush=True)
    missed = 0
    for name in chosen.formats.split(","):
        campaign = Campaign(name, chosen.seed, tell=lambda line: print(line, file=sys.stderr, flush=True))
        campaign.run(chosen.inputs)
        keep(campaign, chosen.findings)
        missed += len(campaign.findings)
        print(f"{name:10s}" + "".join(f" {figure:10d}" for figure in row(campaign)), flush=True)
    print(f"{missed} inputs broke a promise")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
