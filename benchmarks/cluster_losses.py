"""Whether searches on a Ray cluster of three nodes outlive the loss of one, and how fast clusters and processes are.

Each run solves a random network on a cluster of its own on this machine, one node of which is killed
at a random moment: the head in every third run. The answer has to be a legal plan with the value that simulating it
again gives, and every turn has to be counted once. Then plans a second of annealing on one process, on as many as there
are processors, and on clusters of as many workers, are compared; all plans are simulated. Exit status 1 where a run or
a bar fails.

    python benchmarks/cluster_losses.py [--runs 20] [--seconds 8] [--rounds 3]
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from machine import machine

sys.path.insert(0, str(Path(__file__).parents[1]))
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.fleet.cluster import Cluster
from hsdag.fleet.local import LocalHost
from hsdag.fleet.pool import Pool
from hsdag.placers.incumbent import Status
from hsdag.placers.portfolio.auto import LISTS
from hsdag.runtime.platforms.usable_cpus import usable_cpus
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.simulator import Semantics
from tests.clusters.local_cluster import LocalCluster
from tests.hsdag.placers.portfolio.searches import random_problem, searched

BAR_LOCAL, BAR_CORES = 1.0, 2.0
"""Bars of plans a second: of a cluster over as many processes here, of three workers over one where cores allow."""


def survives(seed: int, seconds: float) -> tuple[bool, str]:
    """Whether a search outlives the loss of a node, and what became of it."""
    rng = np.random.default_rng(seed)
    problem, said = random_problem(int(rng.integers(60, 200)), 3, seed), []
    node, after_s = (0 if seed % 3 == 2 else int(rng.integers(1, 3))), float(rng.uniform(0.5, seconds - 1))
    with LocalCluster() as nodes:
        cluster = Cluster(nodes.address)
        with Pool(cluster.hosts, LocalHost, said.append, cluster.close) as pool:
            searched(problem, "sa", pool, 1.0)  # the workers are there when the search begins
            killing = threading.Timer(after_s, nodes.kill, [node])
            killing.start()
            begin_s, before = time.monotonic(), pool.num_answers.total()
            found, recorder = searched(problem, "auto", pool, seconds, seed)
            took_s = time.monotonic() - begin_s
            killing.join()
            num_answers = pool.num_answers.total() - before
    assert found.plan is not None
    labels = problem_of(problem).units.partition.labels
    again = ScheduleEvaluator(problem, Semantics(), unit_of_op=labels).evaluate([found.plan])[0].value
    (best,) = recorder.best()
    failed = [each.failure for each in found.contributions if each.failure]
    counts = Counter(each.method for each in found.contributions)
    held = (
        len(found.contributions) <= num_answers + 1  # workers answer once for each turn; the first is taken here
        and all(counts[method] <= 1 for method in LISTS)
        and found.status in (Status.TIME_LIMIT, Status.OPTIMAL)
        and best.score.value == found.score
        and again == found.score
        and not failed
    )
    value = f"{found.score:.6g} s SIMULATED"
    return (
        held,
        f"node {node} killed after {after_s:.1f} of {took_s:.1f} s, {len(said)} told, {found.status.value}, {value}",
    )


def rate(make: Callable[[], Pool], seconds: float) -> float:
    """Plans a second of annealing on all workers of a pool, which are started before."""
    with make() as pool:
        problem = random_problem(150, 3)
        searched(problem, "sa", pool, 2.0)
        _, recorder = searched(problem, "sa", pool, seconds)
        return recorder.num_evaluations / recorder.elapsed_s


def on_cluster(nodes: LocalCluster, count: int) -> Pool:
    """``count`` workers of a cluster."""
    cluster = Cluster(nodes.address)
    return Pool(cluster.hosts[:count], on_close=cluster.close)


def main() -> int:
    """Print a line for each run and each rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(machine())
    num_held = 0
    for seed in range(given.runs):
        held, line = survives(seed, given.seconds)
        num_held += held
        print(f"run {seed}: {'legal and complete' if held else 'FAILED'}: {line}", flush=True)
    print(f"{num_held} of {given.runs} searches outlive the loss of a node")
    cores = usable_cpus()
    count = min(cores, 3)
    rates: dict[str, list[float]] = {"one process": [], "processes": [], "cluster": []}
    for _ in range(given.rounds):
        rates["one process"].append(rate(lambda: Pool([LocalHost()]), given.seconds))
        rates["processes"].append(rate(lambda: Pool([LocalHost() for _ in range(count)]), given.seconds))
        with LocalCluster() as nodes:
            rates["cluster"].append(rate(lambda: on_cluster(nodes, count), given.seconds))
    for name, values in rates.items():
        workers = 1 if name == "one process" else count
        print(f"{name:12s} {workers} workers: {median(values):12,.0f} SIMULATED plans a second")
    to_local = median(c / p for c, p in zip(rates["cluster"], rates["processes"], strict=True))
    to_one = median(c / p for c, p in zip(rates["cluster"], rates["one process"], strict=True))
    print(f"cluster over processes {to_local:.2f} (bar {BAR_LOCAL}); over one process {to_one:.2f}", end="")
    print(f" (bar {BAR_CORES})" if cores >= 3 else f" (no bar on {cores} processors)")
    is_fast = to_one >= BAR_CORES if cores >= 3 else to_local >= BAR_LOCAL
    return 0 if num_held == given.runs and is_fast else 1


if __name__ == "__main__":
    sys.exit(main())
