"""MILP-SPLIT against the exact solver and HEFT on randomly wired networks of ER(0.2) modules; costs are simulated.

Bars: on one channel the optimum of the modules is that of all; on several, within 3% of the best that the exact
solver finds in --exact-seconds (1200 in full), and found 50 times faster than the exact solver's own best, which
needs the full time to be told. HEFT's is to be at least 1.3 times as long. Exit status 1 when a bar is missed.

Usage: python benchmarks/milp_split_quality.py [--exact-seconds 1200] [--split-seconds 20] [--kinds sdep-2,wdep-2]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hsdag.runtime.problem import Objective

sys.path.insert(0, str(Path(__file__).resolve().parent))
from diviml_tables import measured, network

BAR, FACTOR, LONGER = 1.03, 50.0, 1.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exact-seconds", type=float, default=1200.0)
    parser.add_argument("--split-seconds", type=float, default=20.0)
    parser.add_argument("--kinds", default="sdep-2,wdep-2")
    parser.add_argument("--modules", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spread", type=float, default=0.6)
    options = parser.parse_args()
    missed = 0
    for kind in options.kinds.split(","):
        problem = network(kind, options.modules, options.seed, options.spread)
        run = {
            method: measured(problem, method, seconds, Objective.LATENCY, options.seed)
            for method, seconds in (
                ("heft", 10.0),
                ("milp-split", options.split_seconds),
                ("cpsat", options.exact_seconds),
            )
        }
        split, exact, heft = run["milp-split"], run["cpsat"], run["heft"]
        ratio, faster = split.value_s / exact.value_s, exact.best_after_s / max(split.best_after_s, 1e-3)
        missed += ratio > BAR or (kind != "1-chan" and faster < FACTOR) or heft.value_s / split.value_s < LONGER
        print(
            f"{kind}, {problem.num_ops} ops: milp-split {1e3 * split.value_s:.3f} ms after {split.best_after_s:.2f} s, "
            f"exact {1e3 * exact.value_s:.3f} ms after {exact.best_after_s:.1f} s of {options.exact_seconds:g} s: "
            f"{ratio:.4f} of it (bar {BAR}), {faster:.1f}x faster (bar {FACTOR:g}x); HEFT {1e3 * heft.value_s:.3f} ms, "
            f"{heft.value_s / split.value_s - 1:.1%} longer; split bound {1e3 * (split.bound_s or 0):.3f} ms, "
            f"exact bound {1e3 * (exact.bound_s or 0):.3f} ms"
        )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
