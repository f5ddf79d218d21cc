"""Graphs of 100,000 ops on 64 devices: seconds, peak memory and SIMULATED makespan of every step from file to answer.

Steps are ``hsdag inspect`` of a model file, features, list schedulers, minimum cuts and annealing. Each runs in a
process of its own and is ended after a limit; compilation of kernels is done once before. Makespans are over the best
of the list schedulers. Ops of the problem read two of the 2,000 before them, and each device suits some ops better.

    python benchmarks/scale.py [--ops 100000] [--devices 64] [--seconds 120] [--limit 900] [--steps NAME ...]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from inspect_large import build
from machine import machine

from hsdag.evaluators.recording import Budget, RecordingEvaluator
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.features import feature_matrix
from hsdag.ir import ComputationGraph, graph_from_edges
from hsdag.ir.errors import HsdagError
from hsdag.placers.incumbent import Limits
from hsdag.placers.registry import make_placer
from hsdag.runtime.platforms.usable_cpus import usable_cpus
from hsdag.runtime.problems.bounds import critical_path_s
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.simulator import Semantics

LISTS = ("met", "heft", "cpop", "etf", "m-etf", "critical-path")
STEPS = ("inspect", "features", *LISTS, "mincut", "sa", "auto")
WIDTH, TYPES = 2000, 20
SMALL = 200
"""Ops of the problem that has kernels compiled."""


def edges_of(num_ops: int) -> np.ndarray:
    """[E, 2] two inputs for every op, among those shortly before it."""
    rng = np.random.default_rng(num_ops)
    reads = np.maximum(np.arange(1, num_ops)[:, None] - rng.integers(1, WIDTH + 1, (num_ops - 1, 2)), 0)
    pairs = np.stack([reads.ravel(), np.repeat(np.arange(1, num_ops), 2)], axis=1)
    return np.unique(pairs, axis=0)


def problem_with(num_ops: int, num_devices: int) -> ScheduleProblem:
    """Milliseconds of ops and 0.1 ms of links; the suitability of devices differs by op."""
    rng = np.random.default_rng(num_ops + num_devices)
    time_s = rng.uniform(1e-4, 1e-2, (num_ops, 1)) * rng.uniform(0.5, 2.0, (num_ops, num_devices))
    return ScheduleProblem.from_arrays(
        time_s,
        edges_of(num_ops),
        output_bytes=rng.integers(1, 1_000_000, num_ops),
        link_latency_s=1e-4,
        link_bandwidth_bytes_per_s=1e10,
    )


def graph_with(num_ops: int) -> ComputationGraph:
    """The same edges between ops of twenty types."""
    kinds = np.random.default_rng(0).integers(0, TYPES, num_ops)
    return graph_from_edges([f"T{kind}" for kind in kinds], [tuple(edge) for edge in edges_of(num_ops).tolist()])


def inspected(num_ops: int) -> dict[str, float]:
    """``hsdag inspect``, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.xml"
        build(num_ops, path)
        begin_s = time.perf_counter()
        subprocess.run([sys.executable, "-m", "hsdag", "inspect", str(path), "--json"], check=True, capture_output=True)
        seconds = time.perf_counter() - begin_s
    return {"seconds": seconds, "bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024.0}


def features_of(num_ops: int) -> dict[str, float]:
    """All features of the graph."""
    feature_matrix(graph_with(SMALL))
    graph, begin_s = graph_with(num_ops), time.perf_counter()
    feature_matrix(graph)
    return {"seconds": time.perf_counter() - begin_s}


def searched(method: str, num_ops: int, num_devices: int, seconds: float) -> dict[str, float]:
    """A method's makespan; methods without end have ``seconds``."""

    def search(problem: ScheduleProblem, seconds: float) -> tuple[float, float]:
        units = problem_of(problem)
        begin_s = time.perf_counter()
        recorder = RecordingEvaluator(ScheduleEvaluator(problem, Semantics()), Budget(seconds))
        found = make_placer(method).search(units, recorder, Limits(seconds, usable_cpus()))
        return found.score, time.perf_counter() - begin_s

    search(problem_with(SMALL, num_devices), 5.0)
    problem = problem_with(num_ops, num_devices)
    makespan_s, elapsed_s = search(problem, seconds)
    work_s = float(np.nanmin(problem.time_s, axis=1).sum()) / num_devices
    return {"seconds": elapsed_s, "makespan_s": makespan_s, "bound_s": max(work_s, critical_path_s(problem))}


def run_step(name: str, given: argparse.Namespace) -> None:
    """Print the figures of a step as JSON."""
    steps: dict[str, Callable[[], dict[str, float]]] = {
        "inspect": lambda: inspected(given.ops),
        "features": lambda: features_of(given.ops),
    }
    search = steps.get(name, lambda: searched(name, given.ops, given.devices, given.seconds))
    try:
        figures: dict[str, object] = dict(search())
    except (HsdagError, MemoryError) as error:
        figures = {"failure": str(error) or "out of memory"}
    print(json.dumps({"bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0, **figures}))


def figures_of(name: str, given: argparse.Namespace) -> dict[str, float | str]:
    """What a process of its own says of a step."""
    own = [f"--ops={given.ops}", f"--devices={given.devices}", f"--seconds={given.seconds}"]
    command = [sys.executable, __file__, f"--step={name}", *own]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=given.limit)
    except subprocess.TimeoutExpired:
        return {"failure": f"ended after {given.limit:.0f} s"}
    if done.returncode:
        return {"failure": f"exit code {done.returncode}: {done.stderr.strip()[-200:]}"}
    found: dict[str, float | str] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> int:
    """Print a line for each step; exit status 1 where one fails or takes too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, default=100_000)
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0, help="of searches that have no end of their own")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a step is ended")
    parser.add_argument("--steps", nargs="+", default=STEPS, choices=STEPS)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        run_step(given.step, given)
        return 0
    print(machine())
    found = {}
    for name in given.steps:
        found[name] = figures_of(name, given)
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    best_list_s = min((float(found[name].get("makespan_s", np.inf)) for name in LISTS if name in found), default=np.inf)
    print(f"{given.ops:,} ops, {given.devices} devices; makespans are SIMULATED")
    print("step            seconds  peak GB  makespan s  over best list  over bound")
    for name, figures in found.items():
        if "failure" in figures:
            print(f"{name:14s} {figures['failure']}")
            continue
        figure = {key: float(value) for key, value in figures.items()}
        text = f"{name:14s} {figure['seconds']:8.1f} {figure['bytes'] / 1e9:8.2f}"
        if "makespan_s" in figure:
            makespan_s = figure["makespan_s"]
            over_list = f"{makespan_s / best_list_s:.4f}" if np.isfinite(best_list_s) else "-"
            text += f" {makespan_s:11.4f} {over_list:>15s} {makespan_s / figure['bound_s']:11.4f}"
        print(text)
    return 1 if any("failure" in figures for figures in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
