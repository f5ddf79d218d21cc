"""Hybrid against measured reward at equal wall time, on a model whose parts prefer different devices.

Heavy matrix products alternate with powers and tangents. One CPU device computes in bf16 on one thread, which halves
the time of the products; the other one computes in f32 on two threads, which halves that of the rest. For each seed
the same method searches with either reward and the same budget, profiling included; with the measured one, every
proposal is compiled and run. Both answers, the best that each search measured, and the single devices are then measured
in common rounds. Prints for every seed the evaluations that were measured, and how many times as fast the hybrid's
answer is, with its 95% interval. Exit status 1 when the hybrid's answer is slower beyond the interval in more than a
tenth of the seeds, more than a twentieth of the evaluations were measured, of all seeds together, or no split was
faster than the best single device.

Usage: python benchmarks/hybrid_cost.py [--method sa] [--budget 60s] [--seeds 10] [--first-seed 0]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov
from machine import machine
from openvino import opset13

from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.latency import Protocol, Ratio, compare
from hsdag.runtime.platforms.devices import resolve_devices
from hsdag.search.options import PlaceOptions, parse_duration
from hsdag.search.searching import Found, search_placements
from hsdag.search.session import Session

DEVICES = (
    "BF16=CPU[INFERENCE_PRECISION_HINT=bf16;INFERENCE_NUM_THREADS=1],"
    "F32=CPU[INFERENCE_PRECISION_HINT=f32;INFERENCE_NUM_THREADS=2]"
)
ROWS, WIDTH, BLOCKS, DEPTH = 128, 1024, 2, 4
SHARE, LEAST_AS_GOOD = 1 / 20, 0.9


def alternating(path: Path) -> Path:
    """Save the model: blocks of matrix products, and of two branches of elementwise ops that take long."""
    rng = np.random.default_rng(0)
    x = first = opset13.parameter([ROWS, WIDTH], np.float32, name="x")
    for _ in range(BLOCKS):
        for _ in range(DEPTH):
            weights = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
            x = opset13.matmul(x, opset13.constant(weights), False, False)
        left = right = x
        for _ in range(DEPTH):
            left = opset13.tan(opset13.multiply(left, opset13.constant(np.float32(0.1))))
            right = opset13.power(opset13.abs(right), opset13.constant(np.float32(1.3)))
        x = opset13.add(left, right)
    ov.save_model(ov.Model([opset13.result(x)], [first], "alternating"), path, compress_to_fp16=False)
    return path


@dataclass(frozen=True)
class Outcome:
    """What one seed gave: measured evaluations, and how fast the answers are."""

    hybrid: int
    measured: int
    as_fast: Ratio  # of the hybrid's answer, over the measured search's
    over_single: float  # of the faster answer, over the best single device


def one_seed(session: Session, options: PlaceOptions) -> Outcome:
    """Search with both rewards, and compare the answers."""
    found: dict[str, Found] = {}
    for reward in ("hybrid", "measured"):
        found[reward] = search_placements(session, PlaceOptions(**{**vars(options), "reward": reward}))
    answers = {reward: each.recorder.best()[0].plan for reward, each in found.items()}
    candidates = {reward: session.placed(found[reward].problem, plan) for reward, plan in answers.items()}
    candidates |= {spec.name: Candidate.on_device(spec) for spec in session.devices.placed}
    for key, candidate in candidates.items():
        session.runner.open(key, candidate)
    protocol = Protocol(limit_s=10.0, hopeless=0.0, interval_width=0.0)
    rng = np.random.default_rng(options.seed)
    comparison = compare(session.runner.run, list(candidates), ["measured"], protocol, rng)
    for key in candidates:
        session.runner.close(key)
    single_s = min(comparison.median_s(spec.name) for spec in session.devices.placed)
    counts = {reward: each.recorder.num_evaluations for reward, each in found.items()}
    best_s = min(comparison.median_s(reward) for reward in found)
    return Outcome(**counts, as_fast=comparison.ratio("hybrid", "measured"), over_single=single_s / best_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="sa")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    arguments = parser.parse_args()
    print(machine())
    outcomes = []
    with tempfile.TemporaryDirectory() as name:
        model = alternating(Path(name) / "alternating.xml")
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            options = PlaceOptions(
                method=arguments.method, budget_s=parse_duration(arguments.budget), seed=seed, fresh=True
            )
            with Session(model, resolve_devices(DEVICES, None), seed=seed) as session:
                each = one_seed(session, options)
            ratio = f"{each.as_fast.value:.3f} [{each.as_fast.low:.3f}, {each.as_fast.high:.3f}]"
            print(
                f"seed {seed}: hybrid {each.hybrid} measured, measured {each.measured}; hybrid {ratio} times as fast;"
                f" the faster one x{each.over_single:.3f} the best single device",
                flush=True,
            )
            outcomes.append(each)
    as_good = np.mean([not each.as_fast.is_slower for each in outcomes])
    share = sum(each.hybrid for each in outcomes) / sum(each.measured for each in outcomes)
    ratio_of_all = float(np.exp(np.mean([np.log(each.as_fast.value) for each in outcomes])))
    print(f"hybrid over measured: {ratio_of_all:.3f} times as fast in the geometric mean of {len(outcomes)} seeds")
    print(f"hybrid at least as good: {as_good:.2f} of the seeds (bar {LEAST_AS_GOOD:g})")
    print(f"measured evaluations: {share:.3f} of the measured search's (bar {SHARE:.2f})")
    wins = max(each.over_single for each in outcomes) > 1
    return 0 if as_good >= LEAST_AS_GOOD and share <= SHARE and wins else 1


if __name__ == "__main__":
    sys.exit(main())
