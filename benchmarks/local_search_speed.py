"""How many proposals a second simulated annealing makes on one core, by semantics and by the size of the graph.

The problem of the first table is DOPPLER's Llama layer, 261 ops on 4 devices; a chain starts from HEFT's plan and cools
as in ``sa``. The second table has random graphs of two inputs an op. The bars are 50,000 a second for 261 ops over
independent links, 10,000 over others, and a cost per proposal that grows no faster than the graph. HETERO's time is
measured by local_search_hetero.py.

    python benchmarks/local_search_speed.py --seconds 2 --sizes 1000 10000 100000
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
from machine import machine

from hsdag.commands.workload import build_problem
from hsdag.evaluators.recording import Budget, RecordingEvaluator
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.placers.incumbent import Limits
from hsdag.placers.local.sa import SaPlacer
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.runtime.problems.objectives.throughput import THROUGHPUT
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.simulator import Execution, Links, Semantics

CASES: list[tuple[str, Objective, Semantics, float, int]] = [
    ("independent links, plans", LATENCY, Semantics(), 0.0, 50_000),
    ("independent links, list schedules", LATENCY, Semantics(), 1.0, 0),
    ("egress links", LATENCY, Semantics(links=Links.EGRESS), 0.0, 10_000),
    ("channel links", LATENCY, Semantics(links=Links.CHANNEL), 0.0, 10_000),
    ("sequential", LATENCY, Semantics(Execution.SEQUENTIAL), 0.0, 0),
    ("throughput, blocking links", THROUGHPUT, Semantics(links=Links.BLOCKING), 0.0, 0),
]

FEW, OPS_A_SECOND = 50, 15_000_000
"""Proposals of a search that shows what a beginning takes, and about how many ops are simulated in a second."""


def rate(problem: ScheduleProblem, objective: Objective, how: Semantics, lists: float, seconds: float) -> float:
    """Proposals a second of processor time, with one thread; what every search begins with is left out."""
    units = problem_of(problem, objective, how)
    heft = make_placer("heft").search(units, ScheduleEvaluator(problem, how, objective)).plan
    assert heft is not None
    known = (heft,)
    placer = SaPlacer(replace(SaPlacer().options, num_chains=1, lists=lists, most_idle_rounds=10**6, coldest=0.005))

    def spent_s(most: int) -> float:
        recorder = RecordingEvaluator(ScheduleEvaluator(problem, how, objective), Budget(evaluations=most))
        begin_s = time.process_time()
        placer.search(units, recorder, Limits(num_workers=1, known=known))
        return time.process_time() - begin_s

    spent_s(FEW)  # compiles
    few_s, many = spent_s(FEW), FEW + int(seconds * OPS_A_SECOND / problem.num_ops)
    return (many - FEW) / (spent_s(many) - few_s)


def random_graph(num_ops: int) -> ScheduleProblem:
    """Every op reads two of the 64 before it; 4 devices."""
    rng = np.random.default_rng(num_ops)
    reads = np.maximum(np.arange(1, num_ops)[:, None] - rng.integers(1, 65, (num_ops - 1, 2)), 0)
    edges = np.stack([reads.ravel(), np.repeat(np.arange(1, num_ops), 2)], axis=1)
    return ScheduleProblem.from_arrays(rng.random((num_ops, 4)), edges, link_latency_s=0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10_000, 100_000])
    arguments = parser.parse_args()
    print(machine())
    layer = build_problem("llama-layer", "p100x4")
    for name, objective, how, lists, bar in CASES:
        found = rate(layer, objective, how, lists, arguments.seconds)
        print(f"{layer.num_ops} ops, {name:34s} {found:9,.0f} a second" + (f" (bar {bar:,})" if bar else ""))
    for size in arguments.sizes:
        found = rate(random_graph(size), LATENCY, Semantics(), 0.0, arguments.seconds)
        print(f"{size:7,} ops, independent links {found:9,.0f} a second, {1e9 / found / size:5.1f} ns for each op")


if __name__ == "__main__":
    main()
