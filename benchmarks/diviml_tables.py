"""DiviML's Tables I and III, the paper's column beside ours. Device costs are simulated (see diviml_costs.py).

Networks are randomly wired: ER(0.2), 10 nodes a module. The costs are fitted to the columns best device, MET, Greedy
and HEFT of Table I; the other columns are not fitted.

Table 1: latency by method, in ms and in shares of the best device. Table 3: seconds to the best solution of the exact
solver and of milp-split, and to a solution of milp-split that is as good as the exact solver's best.

Usage: python benchmarks/diviml_tables.py --table 1 [--seconds 30] [--kinds sdep-2,wdep-2] [--modules 10] [--seed 0]
       python benchmarks/diviml_tables.py --table 3 [--seconds 1200] [--split-seconds 20] [--modules 5,10,20]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hsdag.evaluators.recording import RecordingEvaluator
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

sys.path.insert(0, str(Path(__file__).resolve().parent))
from diviml_costs import KINDS, network

METHODS = ("best-device", "met", "greedy", "heft", "ea", "sa", "cpsat", "milp-split")
PAPER_1 = {
    "1-chan": (211.7, 209.9, 104.4, 99.9, 97.5, 98.9, 80.1, 80.1, 80.1),
    "sdep-2": (234.9, 219.3, 111.8, 109.3, 103.8, 106.2, 78.9, 79.1, 73.7),
    "sdep-3": (236.5, 235.4, 114.2, 108.5, 104.7, 106.1, 79.9, 80.3, 68.1),
    "sdep-4": (250.5, 249.1, 116.3, 111.3, 107.6, 109.5, 79.1, 79.4, 61.3),
    "wdep-2": (225.2, 223.8, 103.7, 101.7, 97.3, 98.1, 74.3, 77.6, 73.3),
    "wdep-3": (229.9, 229.3, 107.4, 104.3, 100.9, 103.1, 76.6, 78.7, 71.8),
    "wdep-4": (242.9, 240.7, 106.8, 104.4, 102.0, 103.6, 71.6, 77.0, 62.1),
}
PAPER_3 = {
    ("sdep", 5): (82.69, 2.26), ("sdep", 10): (232.24, 4.83), ("sdep", 20): (1907.12, 13.49),
    ("wdep", 5): (129.08, 2.45), ("wdep", 10): (271.66, 5.00), ("wdep", 20): (5850.37, 14.81),
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What a method came to: value and bound, when its best was first known, and (seconds, value) of all placements."""

    value_s: float
    bound_s: float
    best_after_s: float
    progress: tuple[tuple[float, float], ...]

    def seconds_to(self, value_s: float) -> float:
        """When a solution as good as ``value_s`` was known; infinite where none was."""
        return min((after_s for after_s, found_s in self.progress if found_s <= value_s * (1 + 1e-9)), default=np.inf)


def measured(problem: ScheduleProblem, method: str, seconds: float, seed: int) -> Run:
    """Run a method for latency; with the moment of its best."""
    recorders: list[RecordingEvaluator] = []
    watcher = Watcher(on_event=lambda _, recorder: recorders.append(recorder))
    options = SolveOptions(method, LATENCY, budget_s=seconds, seed=seed)
    solution = solve(problem, make_placer(method), options, watcher)
    value_s = np.inf if solution.value_s is None else solution.value_s
    after_s = solution.best_after_s
    events = ((event.elapsed_s, event.score.value) for recorder in recorders[-1:] for event in recorder.events)
    return Run(value_s, solution.lower_bound_s, after_s, (*events, (after_s, value_s)))


def latency_by_method(options: argparse.Namespace) -> None:
    """Table I."""
    modules = int(options.modules)
    print(f"Simulated latency in ms and in shares of the best device; {modules} modules, seed {options.seed}, "
          f"{options.seconds:g} s a method; fitted: the first four columns")  # fmt: skip
    print(f"{'':8}{'':7}" + "".join(f"{name:>19}" for name in (*METHODS, "bound")))
    for kind in options.kinds.split(","):
        problem = network(kind, modules, options.seed)
        runs = [measured(problem, method, options.seconds, options.seed) for method in METHODS]
        ours_ms = [1e3 * run.value_s for run in runs] + [1e3 * max(run.bound_s for run in runs)]
        if modules == 10:
            print(f"{kind:8}{'paper':7}" + _shares(PAPER_1[kind]))
        print(f"{kind:8}{'ours':7}" + _shares(ours_ms), flush=True)


def _shares(values_ms: Sequence[float]) -> str:
    return "".join(f"{value:11.1f} ({value / values_ms[0]:5.3f})" for value in values_ms)


def solver_speed(options: argparse.Namespace) -> None:
    """Table III."""
    print(f"Seconds until the best solution is known; the exact solver (cpsat) had {options.seconds:g} s, "
          f"milp-split {options.split_seconds:g} s")  # fmt: skip
    for modules in map(int, options.modules.split(",")):
        for kind in options.kinds.split(","):
            problem = network(kind, modules, options.seed)
            exact = measured(problem, "cpsat", options.seconds, options.seed)
            split = measured(problem, "milp-split", options.split_seconds, options.seed)
            paper = PAPER_3.get((kind[:4], modules))
            beside = f"paper {paper[0]:.2f} s, {paper[1]:.2f} s, {paper[0] / paper[1]:.0f}x; " if paper else ""
            as_good_s = split.seconds_to(exact.value_s)
            print(
                f"{kind}, {modules} modules, {problem.num_ops} ops: {beside}"
                f"ours {exact.best_after_s:.2f} s to {1e3 * exact.value_s:.2f} ms, "
                f"{split.best_after_s:.2f} s to {1e3 * split.value_s:.2f} ms, "
                f"{exact.best_after_s / max(split.best_after_s, 1e-3):.1f}x; as good as the exact solver's "
                f"after {as_good_s:.2f} s, {exact.best_after_s / max(as_good_s, 1e-3):.0f}x",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=int, choices=(1, 3), required=True)
    parser.add_argument("--seconds", type=float, default=30.0, help="budget of every method")
    parser.add_argument("--split-seconds", type=float, default=20.0, help="budget of milp-split for table 3")
    parser.add_argument("--kinds", help="all seven for table 1, sdep-2,wdep-2 for table 3")
    parser.add_argument("--modules", help="10 for table 1, 5,10,20 for table 3")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.kinds = options.kinds or (",".join(KINDS) if options.table == 1 else "sdep-2,wdep-2")
    options.modules = options.modules or ("10" if options.table == 1 else "5,10,20")
    print("Device costs are simulated.")
    (latency_by_method if options.table == 1 else solver_speed)(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
