"""Which method when: how far each is above the best answer of all, by kind of problem and budget; all simulated.

Kinds: DOPPLER's workloads on four P100 (sharded), random-wired networks on two unlike devices of DiviML's platform
(wired), layered graphs on three unlike devices (layered), residual chains under sequential execution with launches
(sequential), and the layered graphs for throughput over channels (throughput). A cell is the geometric mean, over the
problems of a kind, of a method's value over the best value that any method found in any of the budgets; '-' where the
method does not search that kind. The table is Markdown, for docs/choosing.md.

    python benchmarks/choosing.py [--problems 10] [--budgets 1 10 60] [--methods NAME,...]
"""

from __future__ import annotations

import argparse

import numpy as np
from machine import machine

from hsdag.commands.workload import build_problem
from hsdag.ir.errors import OptionError, SearchError
from hsdag.placers.names import method_names
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.runtime.problems.objectives.throughput import THROUGHPUT
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Execution, Links, Semantics
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

Case = tuple[ScheduleProblem, Objective, Semantics]
SHARDED = ("chainmm", "ffnn", "llama-block", "llama-layer")
LAYERED_OPS, RESIDUAL_OPS = 200, 150
SLOWEST = 4.0
"""How many times as long the slowest of unlike devices takes."""


def layered(seed: int) -> ScheduleProblem:
    """Ops that read two of the 16 before them, each faster on a device of its own choice."""
    rng = np.random.default_rng(seed)
    reads = np.maximum(np.arange(1, LAYERED_OPS)[:, None] - rng.integers(1, 17, (LAYERED_OPS - 1, 2)), 0)
    edges = np.unique(np.stack([reads.ravel(), np.repeat(np.arange(1, LAYERED_OPS), 2)], axis=1), axis=0)
    time_s = rng.uniform(0.5, 2.0, (LAYERED_OPS, 1)) * rng.uniform(1.0, SLOWEST, (LAYERED_OPS, 3))
    return ScheduleProblem.from_arrays(time_s, edges, link_latency_s=0.2, output_bytes=rng.random(LAYERED_OPS),
                                       link_bandwidth_bytes_per_s=1.0)  # fmt: skip


def residual(seed: int) -> ScheduleProblem:
    """Blocks of four ops in a row, each added to what it reads; a launch takes as long as some ops."""
    rng = np.random.default_rng(seed)
    edges = [(v, v + 1) for v in range(RESIDUAL_OPS - 1)] + [(v, v + 4) for v in range(0, RESIDUAL_OPS - 4, 4)]
    time_s = rng.uniform(0.1, 1.0, (RESIDUAL_OPS, 1)) * rng.uniform(1.0, SLOWEST, (RESIDUAL_OPS, 2))
    return ScheduleProblem.from_arrays(time_s, edges, launch_s=0.5, link_latency_s=0.3)


def cases(count: int) -> dict[str, list[Case]]:
    """``count`` problems of each kind; of the sharded ones there are four."""
    seeds = range(count)
    wired = [build_problem("random-wired", options={"seed": s, "modules": 2 + s % 5}) for s in seeds]
    channels = Semantics(links=Links.CHANNEL)
    return {
        "sharded": [(build_problem(name, "p100x4"), LATENCY, Semantics()) for name in SHARDED[:count]],
        "wired": [(problem, LATENCY, Semantics()) for problem in wired],
        "layered": [(layered(s), LATENCY, Semantics()) for s in seeds],
        "sequential": [(residual(s), LATENCY, Semantics(Execution.SEQUENTIAL)) for s in seeds],
        "throughput": [(layered(s), THROUGHPUT, channels) for s in seeds],
    }


def value(case: Case, method: str, budget_s: float) -> float:
    """What a method finds, not a number where it does not search such problems."""
    problem, objective, semantics = case
    try:
        placer = make_placer(method, is_cheap=True)
        options = SolveOptions(method, objective, budget_s, semantics=semantics)
        found = solve(problem, placer, options).value_s
    except (OptionError, SearchError):
        return np.nan
    return np.nan if found is None else found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", type=int, default=10)
    parser.add_argument("--budgets", type=float, nargs="+", default=[1.0, 10.0, 60.0])
    parser.add_argument("--methods", default=",".join(method_names()))
    a = parser.parse_args()
    print(machine(), flush=True)
    chosen, methods = cases(a.problems), a.methods.split(",")
    for each in chosen.values():
        value(each[0], "auto", 1.0)  # compiles
    table = {
        kind: np.array([[[value(case, m, s) for s in a.budgets] for m in methods] for case in each])
        for kind, each in chosen.items()
    }
    print(f"| method | {' | '.join(f'{kind} {s:g} s' for kind in table for s in a.budgets)} |")
    print("|---" * (1 + len(table) * len(a.budgets)) + "|")
    for i, method in enumerate(methods):
        cells = []
        for values in table.values():
            ratios = values[:, i] / np.nanmin(values, axis=(1, 2))[:, None]
            cells += ["-" if np.isnan(r).any() else f"{np.exp(np.log(r).mean()):.3f}" for r in ratios.T]
        print(f"| `{method}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
