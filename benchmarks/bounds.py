"""How far the lower bound on a makespan closes the gap between the simple one and the best known answer.

The simple bound is the larger of the critical path and the best-case load shared evenly. Problems: DOPPLER's four
workloads in the cost units of its published graphs (an op costs what its whole meta-op computes, a transfer four times
its producer, four equal devices, inputs are everywhere) and on four P100; random-wired networks on DiviML's platform.
The best known answer is what annealing finds in --seconds, or the best ever found where that is listed here. Exit
status 1 when the bound closes less than a third of the gap on Llama-block or Llama-layer in published units, is above a
best known answer, or takes longer than --limit.

Usage: python benchmarks/bounds.py [--seconds 10] [--limit 0.5] [--wired 6]
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from dataclasses import replace

import numpy as np
from machine import machine

from hsdag.commands.workload import build_problem
from hsdag.models import find_workload
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.bounds import critical_path_s, makespan_bound
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

WORKLOADS = ("chainmm", "ffnn", "llama-block", "llama-layer")
NUM_DEVICES, UNIT, SENT_OVER_RUN = 4, 1e10, 4.0
BYTES = {"f16": 2, "f32": 4, "c64": 8}
BEST_KNOWN = {
    "chainmm, published": 1200.1,
    "ffnn, published": 56.70,
    "llama-block, published": 148.4,
    "llama-layer, published": 122.6,
}
BAR, BARRED = 1 / 3, ("llama-block, published", "llama-layer, published")
TIGHT = 1e-3
"""Share of the best known answer below which no gap is left to close."""


def published(name: str) -> ScheduleProblem:
    """A workload in the units of DOPPLER's published graphs, 10^10 operations."""
    workload = find_workload(name).build(NUM_DEVICES)
    graph = workload.graph
    kept = np.flatnonzero(np.array(graph.op_types) != "Parameter")
    index = np.full(graph.num_ops, -1)
    index[kept] = np.arange(len(kept))
    elements = graph.output_bytes / np.array([BYTES[kind] for kind in graph.element_types])
    is_reduction = np.isin(graph.op_types, ("ReduceSum", "ReduceMax"))  # they count what they read
    read = np.bincount(graph.edge_dst, elements[graph.edge_src], graph.num_ops)
    count = np.where(np.array(graph.op_types) == "MatMul", graph.flops / 2, np.where(is_reduction, read, elements))
    meta_op = [(re.sub(r"/\d+$", "", op), role) for op, role in zip(workload.meta_ops, workload.roles, strict=True)]
    total: Counter[tuple[str, str]] = Counter()
    for v in kept:
        total[meta_op[v]] += float(count[v])  # type: ignore[assignment]
    run = np.array([total[meta_op[v]] for v in kept]) / UNIT
    inner = index[graph.edge_src] >= 0
    return ScheduleProblem.from_arrays(
        np.repeat(run[:, None], NUM_DEVICES, axis=1),
        np.stack([index[graph.edge_src[inner]], index[graph.edge_dst[inner]]], axis=1),
        output_bytes=SENT_OVER_RUN * run,
        link_bandwidth_bytes_per_s=1.0,
        name=f"{name}, published",
    )


def problems(num_wired: int) -> list[ScheduleProblem]:
    """All of them, in seconds or published units."""
    found = [published(name) for name in WORKLOADS]
    found += [replace(build_problem(name, "p100x4"), name=f"{name}, p100x4") for name in WORKLOADS]
    for seed in range(num_wired):
        channels, dependence = 1 + seed % 3, ("weak", "strong")[seed % 2]
        drawn = {"seed": seed, "channels": channels, "dependence": dependence, "nodes": 16, "modules": 1 + seed}
        name = f"random-wired {1 + seed} modules {channels} channels"
        found.append(replace(build_problem("random-wired", None, drawn), name=name))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of annealing for each best known answer")
    parser.add_argument("--limit", type=float, default=0.5, help="seconds that a bound may take")
    parser.add_argument("--wired", type=int, default=6, help="random-wired problems")
    options = parser.parse_args()
    print(machine())
    print(f"{'problem':<34}{'ops':>5}{'simple':>11}{'bound':>11}{'best known':>11}{'closed':>8}{'ms':>7}  by")
    makespan_bound(published("llama-layer"))  # compiles
    failed = False
    for problem in problems(options.wired):
        simple = max(critical_path_s(problem), float(np.nanmin(problem.time_s, axis=1).sum()) / problem.num_devices)
        begin_s = time.perf_counter()
        bound = makespan_bound(problem)
        took_s = time.perf_counter() - begin_s
        found = solve(problem, make_placer("sa"), SolveOptions("sa", budget_s=options.seconds)).value_s
        best = min(found if found is not None else np.inf, BEST_KNOWN.get(problem.name, np.inf))
        gap = best - simple
        closed = (bound.value_s - simple) / gap if gap > TIGHT * best else np.nan
        figures = f"{simple:>11.5g}{bound.value_s:>11.5g}{best:>11.5g}{closed:>8.0%}{1e3 * took_s:>7.0f}"
        print(f"{problem.name:<34}{problem.num_ops:>5}{figures}  {bound.argument}", flush=True)
        failed |= bound.value_s > best * (1 + 1e-9) or took_s > options.limit
        failed |= problem.name in BARRED and not closed >= BAR
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
