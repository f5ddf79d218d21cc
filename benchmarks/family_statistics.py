"""What the problems of the families are like, and that a good placement pays on them; all figures are simulated.

Medians over --seeds problems of a family, from seed --first on, with the range for ops and devices. 'parallel' is the
work of all ops over the longest path, each op on its fastest device; 'sent/run' the seconds of sending every edge once
over the mean link, over the seconds of running every op on the mean device; 'limited' the share of problems with
limited memory; 'list/bound' the best of the list heuristics over the lower bound; 'alone/list' the best single device
over it, where one holds the problem; 'gains' the share of problems on which the heuristic beats every single device,
or none holds the problem; 'ms' the time that a problem takes to be drawn.

    python benchmarks/family_statistics.py [--families all,zoo] [--seeds 50] [--first 0]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
from machine import machine

from hsdag.commands.families import ALL, Family, find_family, list_families
from hsdag.ir.errors import SearchError
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.bounds import critical_path_s, makespan_bound
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

LISTS = ("greedy", "heft", "cpop", "etf", "m-etf", "critical-path")
FEWEST_GAIN = 0.01
"""How much better than every single device counts as a gain."""


@dataclass(frozen=True)
class Row:
    """One problem."""

    ops: float
    edges: float
    devices: float
    parallel: float
    sent: float
    limited: float
    over_bound: float
    alone: float
    gains: float
    draw_ms: float


def row_of(family: Family, seed: int) -> Row:
    """The figures of one problem."""
    begin_s = time.perf_counter()
    problem = family.problem(seed)
    draw_ms = 1e3 * (time.perf_counter() - begin_s)
    best_s, alone_s = np.inf, np.inf
    for method in LISTS:
        try:
            found = solve(problem, make_placer(method), SolveOptions(method))
        except SearchError:
            continue  # it finds nothing that fits into memory
        best_s = min(best_s, np.inf if found.value_s is None else found.value_s)
        alone_s = min([alone_s, *found.single_s.values()])
    return Row(
        ops=problem.num_ops,
        edges=len(problem.edge_src),
        devices=problem.num_devices,
        parallel=float(problem.time_s.min(axis=1).sum()) / critical_path_s(problem),
        sent=sent_over_run(problem),
        limited=float(np.isfinite(problem.memory_bytes).all()),
        over_bound=best_s / makespan_bound(problem).value_s,
        alone=alone_s / best_s if np.isfinite(alone_s) else np.nan,
        gains=float(alone_s > (1 + FEWEST_GAIN) * best_s),
        draw_ms=draw_ms,
    )


def sent_over_run(problem: ScheduleProblem) -> float:
    """Seconds of sending every edge once over the mean link, over those of running every op on the mean device."""
    off = ~np.eye(problem.num_devices, dtype=np.bool_)
    latency_s = float(problem.link_latency_s[off].mean())
    per_byte_s = float((1 / problem.link_bandwidth_bytes_per_s[off]).mean())
    sent_s = latency_s * len(problem.edge_src) + per_byte_s * float(problem.edge_bytes.sum())
    return sent_s / float(problem.time_s.mean(axis=1).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=",".join(family.name for family in list_families()))
    parser.add_argument("--seeds", type=int, default=50, help="problems of each family")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    print(machine())
    row_of(find_family(ALL), 0)  # compiles
    heads = ("ops", "edges", "devices", "parallel", "sent/run", "limited", "list/bound", "alone/list", "gains", "ms")
    print(f"{'family':<14}{heads[0]:>16}{heads[1]:>7}{heads[2]:>10}" + "".join(f"{head:>11}" for head in heads[3:]))
    for name in options.families.split(","):
        rows = [row_of(find_family(name), seed) for seed in range(options.first, options.first + options.seeds)]
        table = {field: np.array([getattr(row, field) for row in rows]) for field in Row.__dataclass_fields__}
        ops, devices = (
            f"{np.median(table[f]):.0f} {table[f].min():.0f}-{table[f].max():.0f}" for f in ("ops", "devices")
        )
        figures = [f"{np.nanmedian(table[f]):>11.2f}" for f in ("parallel", "sent")]
        figures += [
            f"{table['limited'].mean():>11.0%}",
            *(f"{np.nanmedian(table[f]):>11.2f}" for f in ("over_bound", "alone")),
        ]
        figures += [f"{table['gains'].mean():>11.0%}", f"{np.median(table['draw_ms']):>11.1f}"]
        print(f"{name:<14}{ops:>16}{np.median(table['edges']):>7.0f}{devices:>10}{''.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
