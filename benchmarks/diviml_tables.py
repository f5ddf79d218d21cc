"""DiviML's Tables I, III and IV, the paper's column beside ours. Device costs are simulated.

Networks are randomly wired, ER(0.2) with 10 nodes a module. An op takes its share of the operations of the network in
the times of Table II (CPU 183.39, T4 32.58, A100 25.84 ms for one network of 3 modules), times a factor drawn for
each op and device (lognormal, --spread), for ops differ in what suits them; links are PCIe 4.0 x16. Absolute figures
are therefore no measurements of those devices; compare ratios.

Table 1: latency by method, 10 modules. Table 3: seconds to the best solution of the exact solver and of milp-split.
Table 4: throughput; the paper's is that of a batch of inputs, ours the period of a pipeline over channel links.

Usage: python benchmarks/diviml_tables.py --table 1 [--seconds 30] [--kinds sdep-2,wdep-2] [--modules 10] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hsdag.models.random_wired import RandomWiring, random_wired
from hsdag.placers.base import PlacerSettings
from hsdag.placers.registry import make_placer
from hsdag.runtime.problem import Objective
from hsdag.runtime.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Links, Semantics
from hsdag.search.solution import SolveOptions
from hsdag.search.solve import solve

TABLE_2_S = np.array([183.39e-3, 32.58e-3, 25.84e-3])
PCIE_BYTES_PER_S, PCIE_LATENCY_S = 31.5e9, 10e-6
KINDS = ("1-chan", "sdep-2", "sdep-3", "sdep-4", "wdep-2", "wdep-3", "wdep-4")
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
PAPER_3 = {5: ((82.69, 2.26), (129.08, 2.45)), 10: ((232.24, 4.83), (271.66, 5.00)), 20: ((1907.12, 13.49), (5850.37, 14.81))}  # fmt: skip  # noqa: E501
PAPER_4 = {
    "1-chan": (54, 56, 74, 75, 84, 87, 114, 135, 164),
    "sdep-2": (48, 50, 67, 66, 75, 78, 95, 119, 180),
    "sdep-3": (49, 51, 68, 70, 78, 81, 116, 129, 196),
    "sdep-4": (47, 48, 65, 67, 76, 79, 73, 126, 209),
    "wdep-2": (51, 53, 76, 75, 86, 87, 89, 137, 182),
    "wdep-3": (49, 52, 73, 73, 82, 85, 72, 137, 181),
    "wdep-4": (47, 50, 72, 74, 82, 84, 65, 138, 207),
}


@dataclass(frozen=True)
class Run:
    """What a method came to: value and bound, and when its best was first known."""

    value_s: float
    bound_s: float | None
    best_after_s: float


def network(kind: str, modules: int, seed: int, spread: float, nodes: int = 10) -> ScheduleProblem:
    """A randomly wired network of a kind such as sdep-2, with simulated costs on CPU, T4 and A100."""
    is_single = kind == "1-chan"
    wiring = RandomWiring(
        "er", nodes, modules, 1 if is_single else int(kind[-1]), "strong" if kind.startswith("s") else "weak", seed
    )
    graph = random_wired(wiring).graph
    rng = np.random.default_rng(seed)
    share = graph.flops / graph.flops.sum() * modules / 3
    factor = np.exp(spread * rng.standard_normal((graph.num_ops, 3)) - spread**2 / 2)
    return ScheduleProblem.from_arrays(
        share[:, None] * TABLE_2_S * factor,
        np.stack([graph.edge_src, graph.edge_dst], axis=1),
        output_bytes=graph.output_bytes,
        link_latency_s=PCIE_LATENCY_S,
        link_bandwidth_bytes_per_s=PCIE_BYTES_PER_S,
        name=graph.name,
        device_names=("CPU", "T4", "A100"),
    )


def measured(problem: ScheduleProblem, method: str, seconds: float, objective: Objective, seed: int) -> Run:
    """Run a method; the moment of its best is what the exact methods tell themselves, else its end."""
    semantics = Semantics(links=Links.CHANNEL if objective is Objective.THROUGHPUT else Links.INDEPENDENT)
    placer = make_placer(method, PlacerSettings(seed=seed, is_cheap=True, semantics=semantics, budget_s=seconds))
    solution = solve(problem, placer, SolveOptions(method, objective, semantics, seconds, seed=seed))
    bound_s = getattr(placer, "lower_bound_s", None)
    after_s = getattr(placer, "best_after_s", solution.elapsed_s)
    return Run(solution.value_s or np.inf, max(bound_s or 0.0, solution.lower_bound_s), after_s)


def by_method(options: argparse.Namespace, paper: dict[str, tuple[float, ...]], objective: Objective) -> None:
    """Tables I and IV."""
    show: Callable[[float], float] = (lambda s: 1e3 * s) if objective is Objective.LATENCY else (lambda s: 1 / s)
    unit = "latency in ms" if objective is Objective.LATENCY else "images per second"
    print(f"Simulated {unit}; {options.modules} modules, seed {options.seed}, {options.seconds:g} s a method")
    print(f"{'':8}{'':7}" + "".join(f"{name:>12}" for name in (*METHODS, "bound")))
    for kind in options.kinds.split(","):
        problem = network(kind, options.modules, options.seed, options.spread)
        runs = [measured(problem, method, options.seconds, objective, options.seed) for method in METHODS]
        bound_s = max(run.bound_s or 0.0 for run in runs)
        print(f"{kind:8}{'paper':7}" + "".join(f"{value:12.1f}" for value in paper[kind]))
        print(f"{'':8}{'ours':7}" + "".join(f"{show(run.value_s):12.2f}" for run in runs) + f"{show(bound_s):12.2f}")


def solver_speed(options: argparse.Namespace) -> None:
    """Table III."""
    print(f"Seconds until the best solution is known; the exact solver (cpsat) had {options.seconds:g} s")
    for k, kind in enumerate(("sdep-2", "wdep-2")):
        problem = network(kind, options.modules, options.seed, options.spread)
        exact = measured(problem, "cpsat", options.seconds, Objective.LATENCY, options.seed)
        split = measured(problem, "milp-split", options.seconds, Objective.LATENCY, options.seed)
        paper = PAPER_3.get(options.modules)
        beside = f"paper {paper[k][0]:.2f} s, {paper[k][1]:.2f} s, {paper[k][0] / paper[k][1]:.0f}x; " if paper else ""
        print(
            f"{kind}, {options.modules} modules: {beside}ours {exact.best_after_s:.2f} s to {1e3 * exact.value_s:.2f} ms, "  # noqa: E501
            f"{split.best_after_s:.2f} s to {1e3 * split.value_s:.2f} ms, "
            f"{exact.best_after_s / max(split.best_after_s, 1e-3):.1f}x"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=int, choices=(1, 3, 4), required=True)
    parser.add_argument("--seconds", type=float, default=30.0, help="budget of every method")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--modules", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spread", type=float, default=0.6)
    options = parser.parse_args()
    print("Device costs are simulated.")
    if options.table == 3:
        solver_speed(options)
    else:
        latency = options.table == 1
        by_method(options, PAPER_1 if latency else PAPER_4, Objective.LATENCY if latency else Objective.THROUGHPUT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
