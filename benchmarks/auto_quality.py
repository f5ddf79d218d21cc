"""Whether ``--method auto`` is at least as good in --seconds as every single method in --rival-seconds; all simulated.

Problems: DOPPLER's workloads, in the units of its published graphs and on four P100, and random-wired networks on
DiviML's platform; then --small ones that CP-SAT can prove, whose optimum auto has to reach and prove. For every
problem: auto's value, the best single method's, which is not asked where auto proves its answer optimal, auto over it
(bar: at most 1), how far auto went over its budget (bar: 0.5 s), the lower bound and what proves it. Exit status 1
where a bar is missed.

    python benchmarks/auto_quality.py [--seconds 10] [--rival-seconds 60] [--wired 20] [--small 10] [--only 'NAME;...']
"""

from __future__ import annotations

import re
import sys
from collections import Counter

import numpy as np
from machine import options

from hsdag.methods.incumbent import Status
from hsdag.methods.registry import make_placer
from hsdag.models import find_workload
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.search.options import SolveOptions
from hsdag.search.solution import SolveResult
from hsdag.search.solve import solve
from hsdag.sources import build_problem

WORKLOADS = ("chainmm", "ffnn", "llama-block", "llama-layer")
NUM_DEVICES, UNIT, SENT_OVER_RUN = 4, 1e10, 4.0
BYTES = {"f16": 2, "f32": 4, "c64": 8}
RIVALS = ("heft", "etf", "critical-path", "enumerative", "ea", "sa", "milp-split", "cpsat")
LEAST_GAIN, MOST_OVER_S = 1e-9, 0.5


def solved(
    problem: ScheduleProblem,
    method: str,
    seconds: float,
    semantics: Semantics = Semantics(),  # noqa: B008 - frozen
    seed: int = 0,
    **changes: str,
) -> tuple[SolveResult, float]:
    """The result of a search, and its value, infinite where it has none."""
    placer = make_placer(method, changes=changes, is_cheap=True)
    found = solve(problem, placer, SolveOptions(method, budget_s=seconds, semantics=semantics, seed=seed))
    return found, np.inf if found.value is None else found.value


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


def problems(num_wired: int) -> dict[str, ScheduleProblem]:
    """By name."""
    found = {f"{name}, published": published(name) for name in WORKLOADS}
    found |= {f"{name}, p100x4": build_problem(name, "p100x4") for name in WORKLOADS}
    for seed in range(num_wired):
        found[f"random-wired {seed}"] = build_problem(f"random-wired[seed={seed};modules={2 + seed % 5}]")
    return found


def compare(name: str, problem: ScheduleProblem, seconds: float, rival_s: float, rivals: list[str]) -> bool:
    """Whether auto keeps its bars on a problem."""
    own, own_s = solved(problem, "auto", seconds)
    able = [method for method in rivals if method != "enumerative" or any(problem.labels.meta_ops)]
    values = {method: solved(problem, method, rival_s)[1] for method in able if own.status is not Status.OPTIMAL}
    best = min(values, key=values.__getitem__, default="auto")
    value_s = values.get(best, own_s)
    ratio, over_s = own_s / value_s, max(own.elapsed_s - seconds, 0.0)
    print(
        f"{name:24s} {problem.num_ops:4d} ops  auto {own_s:.6g}  {best} {value_s:.6g}  ratio {ratio:.4f}  "
        f"over budget {over_s:.2f} s  gap {100 * (own.gap or 0.0):.2f}% ({own.bound.argument}), {own.status.value}",
        flush=True,
    )
    return ratio <= 1 + LEAST_GAIN and over_s <= MOST_OVER_S


def prove(seed: int, seconds: float, rival_s: float) -> bool:
    """Whether auto reaches and proves the optimum of a small network."""
    problem = build_problem(f"random-wired[seed={seed};modules=1;nodes={10 + 2 * (seed % 6)}]")
    (own, own_s), (exact, exact_s) = solved(problem, "auto", seconds), solved(problem, "cpsat", rival_s)
    ok = own.status is Status.OPTIMAL and own_s <= exact_s * (1 + LEAST_GAIN)
    print(
        f"small network {seed:2d} {problem.num_ops:4d} ops  auto {own_s:.6g} {own.status.value} in "
        f"{own.elapsed_s:.1f} s  cpsat {exact_s:.6g} {exact.status.value} in {exact.elapsed_s:.1f} s",
        flush=True,
    )
    return ok


def main() -> int:
    rivals = ",".join(RIVALS)
    a = options(__doc__, seconds=10.0, rival_seconds=60.0, wired=20, small=10, only="", rivals=rivals)
    chosen = {
        name: p for name, p in problems(a.wired).items() if not a.only or any(o in name for o in a.only.split(";"))
    }
    solved(next(iter(chosen.values()), published("chainmm")), "auto", 1.0)  # compiles
    kept = [compare(name, p, a.seconds, a.rival_seconds, a.rivals.split(",")) for name, p in chosen.items()]
    proven = [prove(seed, a.seconds, a.rival_seconds) for seed in range(a.small)]
    print(
        f"auto keeps its bars on {sum(kept)} of {len(kept)} problems; it proves {sum(proven)} of {len(proven)} optima"
    )
    return 0 if all(kept) and all(proven) else 1


if __name__ == "__main__":
    sys.exit(main())
