"""DiviML's Table IV: throughput of a batch of inputs divided over CPU, T4 and A100; device costs are simulated.

A batch of b takes launch + (t - launch) b, the launch being the device's constant in benchmarks/diviml_costs.py. The
paper's column stands beside ours: images per second, B over the makespan of the batch. Every schedule is checked, and
the exit status is 1 when one is faster than the bound. "exact" is CP-SAT; --milp runs the paper's program too.

Usage: python benchmarks/diviml_throughput.py [--seconds 30] [--kinds sdep-2,wdep-2] [--batch 16] [--milp]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from hsdag.commands.batched import BatchOptions, BatchSolution, solve_batched
from hsdag.placers.exact.batches import BatchTable
from hsdag.runtime.problems.schedule_problem import ScheduleProblem

sys.path.insert(0, str(Path(__file__).resolve().parent))
from diviml_costs import KINDS, Costs, network

METHODS = ("best-device", "met", "greedy", "heft", "ea", "sa", "cpsat", "milp-split")
HEADS = ("BD", "bMET", "bGreedy", "bHEFT", "(1+1) EA", "SA", "exact", "SPLIT", "UBound")
PAPER = {
    "1-chan": (54, 56, 74, 75, 84, 87, 114, 135, 164),
    "sdep-2": (48, 50, 67, 66, 75, 78, 95, 119, 180),
    "sdep-3": (49, 51, 68, 70, 78, 81, 116, 129, 196),
    "sdep-4": (47, 48, 65, 67, 76, 79, 73, 126, 209),
    "wdep-2": (51, 53, 76, 75, 86, 87, 89, 137, 182),
    "wdep-3": (49, 52, 73, 73, 82, 85, 72, 137, 181),
    "wdep-4": (47, 50, 72, 74, 82, 84, 65, 138, 207),
}


def batch_times(problem: ScheduleProblem, num_inputs: int) -> BatchTable:
    """Quarters of a batch, an op's launch being paid once for each of them."""
    sizes = BatchTable.quarters(problem, num_inputs, 0.0)
    launch_s = np.minimum(np.array(Costs().launch_s), problem.time_s)[:, :, None]
    times = launch_s + (problem.time_s[:, :, None] - launch_s) * np.array(sizes.sizes)
    return BatchTable(num_inputs, sizes.sizes, times, sizes.group)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="budget of every method (600 in the paper)")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--modules", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--milp", action="store_true", help="run HiGHS on the paper's program as well")
    options = parser.parse_args()
    print(
        f"Simulated images per second, batches of {options.batch}, {options.modules} modules, seed {options.seed}, "
        f"{options.seconds:g} s a method; the paper's MILP had two hours, its other searches 600 s"
    )
    print(f"{'':8}{'':7}" + "".join(f"{name:>10}" for name in HEADS) + ("      MILP" if options.milp else ""))
    return max(row(kind, options) for kind in options.kinds.split(","))


def row(kind: str, options: argparse.Namespace) -> int:
    """One network; 1 where an answer is faster than a bound."""
    problem = network(kind, options.modules, options.seed)
    table = batch_times(problem, options.batch)
    methods = (*METHODS, "milp") if options.milp else METHODS
    found = {
        method: solve_batched(
            problem, BatchOptions(method, options.batch, budget_s=options.seconds, seed=options.seed), table=table
        )
        for method in methods
    }
    bound_s = max(solution.lower_bound_s for solution in found.values())
    rates = [rate(found[method]) for method in METHODS] + [options.batch / bound_s]
    rates += [rate(found["milp"])] if options.milp else []
    best_heuristic = max(rate(found[method]) for method in ("met", "greedy", "heft", "ea", "sa"))
    print(f"{kind:8}{'paper':7}" + "".join(f"{value:10.0f}" for value in PAPER[kind]))
    print(
        f"{'':8}{'ours':7}" + "".join(f"{value:10.1f}" for value in rates) + f"   {problem.num_ops} ops; SPLIT "
        f"{rate(found['milp-split']) / best_heuristic - 1:+.1%} of the best heuristic",
        flush=True,
    )
    return int(any((solution.value_s or np.inf) < bound_s * (1 - 1e-9) for solution in found.values()))


def rate(solution: BatchSolution) -> float:
    return solution.inputs_per_s or 0.0


if __name__ == "__main__":
    sys.exit(main())
