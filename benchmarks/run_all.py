"""Whether every benchmark still runs and prints its figure, with settings that make it short.

Settings are too small for the figures to mean anything, and a bar that is missed is no failure. A benchmark fails that
ends with a traceback, takes longer than its time, or prints no figure.

Usage: make benchmarks, or python benchmarks/run_all.py [--only NAME,...]
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from machine import options

HERE = Path(__file__).parent
LIMIT_S = 300.0
BENCHMARKS = {
    "anywhere hetero threads --models tiny_resnet --placements 2 --inferences 400": r"hetero: 2 placements right, 0",
    "auto_quality --seconds 1 --rival-seconds 1 --wired 0 --small 1 --only chainmm --rivals sa": r"proves \d of 1",
    "deep_quality chains --blocks 4 --platforms p100x4 --seconds 2": r"\d of 2 bars are kept",
    "every_op --ops relu --log /dev/null": r"2 models",
    "hsdag_ablation --seeds 1 --only default": r"1 seeds from \d+ on, \d+ s of one core",
    "learned_quality at_once --each 1 --seconds 1 --only enas": r"at once, others +\d",
    "learned_quality trained --each 1 --seconds 1 --seeds 1 --only enas": r"doppler, trained, others +\d",
    "learned_quality alone --alone 1 --seeds 2 --only ffnn": r"hsdag over annealing +[\d.]+",
    "newcomer --budget 10": r"80 columns: \d+ s, [\d.]+ budgets",
    "measured_rewards hidden --each 1 --seeds 2 --hidden-s 5": r"hsdag over the best single device, SIMULATED: [\d.]+",
    "mutants --count 1 --only features": r"\d of 1 are noticed",
    "overlap --model tiny_inception --runs 1 --budget 10s --seconds 1": r"two copies side by side: [\d.]+",
    "paper_tables hsdag-1 --seeds 1 --budget-s 2": r"mean degree \|",
    "real_models --models light-zfnet512 --placements 1 --divisions 1": r"\d+ of \d+ placements right",
    "reliability executor --inferences 500": r"0 that did not end as they should",
    "reliability solve --kills 2 --row 2": r"\d of 2 kills survived",
    "search_and_judge --only tiny_bert --seconds 1 --judged 1 --seeds 1": r"over searched by units: [\d.]+",
    "settings_grid latency --only tiny_resnet --budget 10s --seconds 2": r"times as fast as the best of \d+",
    "shard_truth graphs --graphs 20": r"graphs: \d+ right, \d+ wrong",
    "speed --largest 1000": r"simulation, 261 ops, independent links +[\d.]+ us",
    "stranger budget --models tiny_resnet --budget-s 60": r"budget: \d of 1 within",
    "truth simulation --models tiny_resnet --placements 5 --rounds 2": r"SIMULATED against measured: Spearman",
    "truth explanation --cases tiny_bert/hetero --budget 10s --seconds 3s": r"\d of \d cases meet the bar of 4 of 5",
    "truth parity --models tiny_resnet": r"largest of all: [\d.e-]+",
    "truth limits --budget 5s --limits 1e-2": r"\d of \d runs keep their limits",
    "truth faster --comparisons 4 --singles 1": r"largest share of false claims [\d.]+%",
}
"""Command lines that are short, and the pattern of the figure that each prints."""


def run(command_line: str, figure: str) -> str | None:
    """Why a benchmark failed, None where it printed its figure."""
    name, *arguments = command_line.split()
    command = [sys.executable, str(HERE / f"{name}.py"), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=HERE.parent)
    except subprocess.TimeoutExpired:
        return f"took longer than {LIMIT_S:.0f} s"
    if "Traceback (most recent call last)" in done.stderr:
        return done.stderr.strip().splitlines()[-1]
    found = re.search(figure, done.stdout)
    if found is None:
        return f"printed no figure like {figure!r}: {(done.stdout + done.stderr)[-300:]!r}"
    line = next(line for line in done.stdout.splitlines() if found[0].splitlines()[0] in line)
    print(f"    {line.strip()[:150]}")
    return None


def main() -> int:
    only, failed = options(__doc__, only=(None, "names, separated by commas")).only, 0
    chosen = [line for line in BENCHMARKS if only is None or line.split()[0] in only.split(",")]
    for line in chosen:
        begin_s = time.perf_counter()
        reason = run(line, BENCHMARKS[line])
        failed += reason is not None
        print(f"{line:60.60s} {time.perf_counter() - begin_s:5.1f} s: {reason or 'ok'}", flush=True)
    print(f"{failed} of {len(chosen)} benchmarks failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
