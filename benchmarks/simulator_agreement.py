"""The simulator against the slow reference of the tests, over random problems of 1 to 200 ops and 1 to 8 devices.

The problems go round all combinations of execution, order, links, overheads and noise. Prints their number and the
largest relative deviation of any makespan, start, end, transfer or peak memory. Exit status 1 above 1e-9.

Usage: python benchmarks/simulator_agreement.py [--problems 1000] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from hsdag.runtime.simulator import Semantics

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.runtime.simulator.reference_simulator import COMBINATIONS, largest_deviation, random_case

BAR = 1e-9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    worst, num_ops = 0.0, []
    for i in range(options.problems):
        execution, order, links, op_overhead_s, transfer_overhead_s, sigma = COMBINATIONS[i % len(COMBINATIONS)]
        n, d = int(rng.integers(1, 201)), int(rng.integers(1, 9))
        seed = int(rng.integers(10**9))
        case = random_case(seed, n, d, op_overhead_s, transfer_overhead_s)
        deviation = largest_deviation(case, Semantics(execution, order, links, sigma, seed))
        if deviation > BAR:
            print(f"problem {i}, seed {seed}: {COMBINATIONS[i % len(COMBINATIONS)]}, {n} ops, {d} devices: {deviation}")
        worst = max(worst, deviation)
        num_ops.append(n)
    combinations = min(options.problems, len(COMBINATIONS))
    print(
        f"{options.problems} problems of {min(num_ops)} to {max(num_ops)} ops (mean {np.mean(num_ops):.0f}), "
        f"{combinations} combinations of semantics: largest relative deviation {worst:.1e} (bar {BAR:.0e})"
    )
    return 1 if worst > BAR else 0


if __name__ == "__main__":
    sys.exit(main())
