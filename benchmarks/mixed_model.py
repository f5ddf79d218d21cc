"""Placing a model of which no single device is best for all: convolutions, trigonometric chains, a wide average pool.

On the software GPUs (docs/testing-without-a-gpu.md) chains run faster than on the CPU, convolutions and pools slower,
and the two branches do not wait for each other. Searches with both executors from nothing, several times, and prints
what each answer gains over the best single device. Exit status 1 when an answer is no split that is faster than every
single device, or the work-conserving executor's is not faster than HETERO with the same placement.

Usage: tests/software_gpu/run .venv/bin/python benchmarks/mixed_model.py [--devices CPU,GPU.0] [--budget 60s] [--runs 5]
"""

from __future__ import annotations

import argparse
import itertools
import sys

from machine import machine
from mixed_network import mixed_model

import hsdag

F32 = "[INFERENCE_PRECISION_HINT=f32]"


def search(executor: str, devices: str, budget: str, seed: int) -> bool:
    """Place the model from nothing; whether the answer is what the page promises."""
    outcome = hsdag.place(mixed_model(), devices, executor=executor, budget=budget, seed=seed, fresh=True)
    rows = {row.name: row for row in outcome.rows}
    answer = next(row for row in outcome.rows if row.is_answer)
    is_split = sum(count > 0 for count in answer.ops.values()) > 1
    gain = f"{answer.ratio.value:.2f} [{answer.ratio.interval_text}] of the best single device's speed"
    under = rows.get(f"HETERO:{answer.name}")
    more = "" if under is None else f", {under.median / answer.median:.2f} of HETERO's with the same placement"
    print(f"{executor}, seed {seed}: {answer.name}, {1e3 * answer.median:.2f} ms, {gain}{more}")
    print(f"  {outcome.sentence}", flush=True)
    beats_hetero = executor == "hetero" or (under is not None and under.median > answer.median)
    return is_split and answer.ratio.is_faster and beats_hetero


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default=f"CPU{F32},GPU.0{F32}")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    print(machine())
    searches = itertools.product(range(arguments.runs), ("hetero", "work-conserving"))
    met = [search(executor, arguments.devices, arguments.budget, seed) for seed, executor in searches]
    print(f"{sum(met)} of {len(met)} searches found a split that wins by measurement")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
