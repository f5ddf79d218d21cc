"""Whether ``--method auto`` is at least as good in --seconds as every single method in --rival-seconds; all simulated.

With --members: how often each member of ``auto`` found the answer, and how often it found a better plan at all, in
--seconds CPU seconds each: on the workloads, on networks of the zoo on the HSDAG paper's machine in both executions,
and on --drawn problems of each family that no policy was trained on.

Problems: DOPPLER's workloads, in the units of its published graphs and on four P100, and random-wired networks on
DiviML's platform; then --small ones that CP-SAT can prove, whose optimum auto has to reach and prove. For every
problem: auto's value, the best single method's, which is not asked where auto proves its answer optimal, auto over it
(bar: at most 1), how far auto went over its budget (bar: 0.5 s), the lower bound and what proves it. Exit status 1
where a bar is missed.

    python benchmarks/auto_quality.py [--seconds 10] [--rival-seconds 60] [--wired 20] [--small 10] [--only 'NAME;...']
    python benchmarks/auto_quality.py --members [--seconds 10] [--drawn 2]
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
from machine import options

from hsdag.commands.sources import build_problem, list_families
from hsdag.ir.graph.build import graph_of
from hsdag.methods.incumbent import LEAST_GAIN, Status
from hsdag.methods.registry import make_placer
from hsdag.models import build_model, find_workload
from hsdag.models.workload import Workload
from hsdag.runtime.platforms.analytic import analytic_costs
from hsdag.runtime.platforms.platform import load_platform
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.search.options import SolveOptions
from hsdag.search.solution import SolveResult
from hsdag.search.solve import solve

WORKLOADS = ("chainmm", "ffnn", "llama-block", "llama-layer")
NUM_DEVICES, UNIT, SENT_OVER_RUN = 4, 1e10, 4.0
BYTES = {"f16": 2, "f32": 4, "c64": 8}
RIVALS = ("heft", "etf", "critical-path", "enumerative", "ea", "sa", "milp-split", "cpsat")
MOST_OVER_S = 0.5
MODELS = ("inception_v3", "resnet50", "bert_base_uncased", "tiny_llama")
FIRST = 2_000_000
"""The first of the drawn problems: policies were trained on, and tried on, lower numbers."""


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
    return in_published_units(find_workload(name).build(NUM_DEVICES), name)


def in_published_units(workload: Workload, name: str) -> ScheduleProblem:
    """A sharded workload in these units, without its inputs."""
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


def asked(drawn: int) -> Iterator[tuple[ScheduleProblem, Semantics]]:
    """The problems on which members are counted, and how each runs."""
    for problem in problems(0).values():
        yield problem, Semantics()
    platform = load_platform("i9-12900k-uhd770-flex170")
    for name, how in itertools.product(MODELS, Execution):
        yield analytic_costs(graph_of(build_model(name)), platform), Semantics(how)
    for family, number in itertools.product(list_families(), range(drawn)):
        yield family.problem(FIRST + number), Semantics()


def count_members(seconds: float, drawn: int, without: str) -> None:
    """Print for each member of auto how many answers it found, and how often it found a better plan."""
    time.monotonic = time.process_time  # by which searches know their budgets
    last, better = Counter[str](), Counter[str]()
    for problem, semantics in asked(drawn):
        found, value = solved(problem, "auto", seconds, semantics, without=without)
        gained = [each.method for each in found.members if each.has_gained]
        last.update(gained[-1:])
        better.update(set(gained))
        print(f"{problem.name}, {problem.num_ops} ops, {semantics.execution.value}: {value:.6g}, {gained}", flush=True)
    print(f"found the answer: {dict(last.most_common())}\nfound something better: {dict(better.most_common())}")


def main() -> int:
    rivals = ",".join(RIVALS)
    given = {"members": False, "drawn": 2, "without": ""}
    a = options(__doc__, seconds=10.0, rival_seconds=60.0, wired=20, small=10, only="", rivals=rivals, **given)
    if a.members:
        count_members(a.seconds, a.drawn, a.without)
        return 0
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
