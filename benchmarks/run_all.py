"""Whether every benchmark still runs and prints its figure, with settings that make it short.

Settings are too small for the figures to mean anything, and a bar that is missed is no failure. A benchmark fails that
ends with a traceback, takes longer than its time, or prints no figure.

Usage: make benchmarks, or python benchmarks/run_all.py [--only NAME,...]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from machine import machine

HERE = Path(__file__).parent
LIMIT_S = 300.0


@dataclass(frozen=True)
class Small:
    """Arguments that make a benchmark short, and the pattern of its figure."""

    arguments: str
    figure: str


BENCHMARKS = {
    "auto_quality": Small(
        "--seconds 1 --rival-seconds 1 --wired 0 --small 1 --only chainmm --rivals heft,sa", r"it proves \d of 1 optima"
    ),
    "deep_quality": Small("--only chains --blocks 4 --platforms p100x4 --seconds 2", r"\d of 2 bars are kept"),
    "explain_truth": Small("--cases tiny_bert/hetero --budget 10s --for 3s", r"\d of \d cases meet the bar of 4 of 5"),
    "false_faster": Small("--comparisons 4 --singles 1 --processes 1", r"largest share of false claims [\d.]+%"),
    "faults": Small("--candidates 6 --limit 10 --inferences 500", r"0 that did not end as they should"),
    "hsdag_ablation": Small("--seeds 1 --only default", r"1 seeds from \d+ on, \d+ s of one core"),
    "kill_survival": Small("--kills 2 --row 2 --commands solve", r"\d of 2 kills survived"),
    "learned_quality": Small("--each 1 --seconds 1 --only at-once", r"at once, others +\d"),
    "limits": Small("--budget 5s --shares 0.95 --limits 1e-2", r"\d of \d runs keep their limits"),
    "mutants": Small("--count 1 --only features", r"\d of 1 are noticed"),
    "overlap": Small("--model tiny_inception --runs 1 --budget 10s --seconds 1", r"two copies side by side: [\d.]+"),
    "paper_tables": Small("hsdag-1 --seeds 1 --budget-s 2", r"mean degree \|"),
    "place_defaults": Small(
        "--models resnet50 --runs 1 --budget 5s --rivals mincut --rival-budget 5s",
        r"the best of all over the worst answer",
    ),
    "real_models": Small("--models light-zfnet512 --placements 1", r"\d+ of \d+ placements right"),
    "shard_truth": Small("graphs --graphs 20", r"graphs: \d+ shardings right, \d+ wrong"),
    "speed": Small("--largest 1000", r"simulation, 261 ops, independent links +[\d.]+ us"),
    "torch_engine": Small("overhead parity --rounds 3 --models resnet50", r"largest of all: [\d.e-]+"),
    "truth": Small("--models tiny_resnet --placements 5 --rounds 2", r"SIMULATED against measured: Spearman"),
}


def run(name: str, small: Small) -> str | None:
    """Why a benchmark failed, None where it printed its figure."""
    command = [sys.executable, str(HERE / f"{name}.py"), *small.arguments.split()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=HERE.parent)
    except subprocess.TimeoutExpired:
        return f"took longer than {LIMIT_S:.0f} s"
    if "Traceback (most recent call last)" in done.stderr:
        return done.stderr.strip().splitlines()[-1]
    found = re.search(small.figure, done.stdout)
    if found is None:
        return f"printed no figure like {small.figure!r}: {(done.stdout + done.stderr)[-300:]!r}"
    line = next(line for line in done.stdout.splitlines() if found[0].splitlines()[0] in line)
    print(f"    {line.strip()[:150]}")
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names, separated by commas")
    chosen = parser.parse_args().only
    print(machine())
    failed = 0
    for name, small in BENCHMARKS.items():
        if chosen is None or name in chosen.split(","):
            begin_s = time.perf_counter()
            reason = run(name, small)
            failed += reason is not None
            print(f"{name:22s} {time.perf_counter() - begin_s:5.1f} s: {reason or 'ok'}", flush=True)
    print(f"{failed} of {len(BENCHMARKS)} benchmarks failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
