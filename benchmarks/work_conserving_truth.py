"""How far the simulation of work-conserving execution can be trusted: simulated against measured makespans.

Inception-V3 on two CPU devices of one thread each: profile it, then simulate 40 random placements and measure them in
common rounds under the work-conserving executor. Half of the placements share out the branches of modules, from all on
one device to balanced; the others change device at random places of the order, or of the way of the data. Eight further
ones calibrate the costs. What is measured is the least of all inferences: whatever else runs on the machine only adds,
and two devices suffer from it more than one. Medians are printed beside it. Exit status 1 when a placement does not
run, or the rank correlation with the least times, from the profile alone or calibrated, is below 0.9.

Usage: python benchmarks/work_conserving_truth.py [--placements 40] [--calibration 8] [--rounds 5] [--seed 1]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from machine import machine
from scipy.stats import pearsonr, spearmanr

from hsdag.commands.profile import random_placements
from hsdag.models import save_model_files
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.measuring.worker_client import CandidateFailed
from hsdag.runtime.platforms.devices import resolve_devices
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.profiling.profile_cache import ProfileCache
from hsdag.search.session import Session

SPEARMAN = 0.9
PROPERTIES = "INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32"


def drawn(problem: Problem, count: int, rng: np.random.Generator) -> np.ndarray:
    """[B, U] placements, in turn of branches and of contiguous or scattered units."""
    others = random_placements(problem, count // 2, rng)
    shares = np.linspace(0.0, 1.0, count - count // 2)
    return np.concatenate([others, [shared_out(problem, share, rng) for share in shares]])


def shared_out(problem: Problem, share: float, rng: np.random.Generator) -> np.ndarray:
    """[U] branches behind one fork, the longest first, go to the device with less of them, others to the first one.

    ``share`` is the probability of the former.
    """
    branch, fork = branches(problem)
    work_s = np.bincount(branch, problem.costs.time_s[:, 0])
    device = np.zeros(len(work_s), dtype=np.int64)
    load_s = np.zeros((problem.num_units + 1, 2))
    for b in np.argsort(-work_s, kind="stable").tolist():
        if fork[b] >= 0 and rng.random() < share:
            device[b] = load_s[fork[b]].argmin()
        load_s[fork[b], device[b]] += work_s[b]
    return device[branch]


def branches(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """[U] the branch of each unit, and the unit that each branch forks from, -1 for those that begin at a join."""
    graph = problem.units.graph
    branch, fork = np.zeros(graph.num_ops, dtype=np.int64), []
    for v in graph.topological_order.tolist():
        inputs = np.unique(graph.predecessors.of(v))
        if len(inputs) == 1 and len(np.unique(graph.successors.of(int(inputs[0])))) == 1:
            branch[v] = branch[inputs[0]]
        else:
            branch[v] = len(fork)
            fork.append(int(inputs[0]) if len(inputs) == 1 else -1)
    return branch, np.array(fork)


def measured_s(session: Session, problem: Problem, placements: np.ndarray, rounds: int) -> np.ndarray:
    """[B, R] seconds of every inference, in rounds in which all placements run in turn; NaN where one fails."""
    taken: dict[int, list[float]] = {}
    for i, placement in enumerate(placements):
        try:
            session.runner.open(str(i), session.placed(problem, Plan(placement), "work-conserving"))
            session.runner.run(str(i), 2)
            taken[i] = []
        except CandidateFailed as failure:
            print(f"placement {i} does not run: {failure.reason}")
    for _ in range(rounds):
        for i, times_s in taken.items():
            times_s += session.runner.run(str(i), 3)
    return np.array([taken.get(i, [np.nan] * 3 * rounds) for i in range(len(placements))])


def report(label: str, simulated_s: np.ndarray, times_s: np.ndarray) -> bool:
    """Print the figures of one set of costs; whether they meet the bar."""
    least_s, median_s = times_s.min(axis=1), np.median(times_s, axis=1)
    rank, linear = spearmanr(simulated_s, least_s)[0], pearsonr(simulated_s, least_s)[0]
    errors = np.abs(simulated_s / least_s - 1.0)
    print(f"  {label}: Spearman {rank:.3f}, Pearson {linear:.3f}, mean error {errors.mean():.1%}", end="")
    print(f", largest {errors.max():.1%}; against medians Spearman {spearmanr(simulated_s, median_s)[0]:.3f}", end="")
    print(f", mean error {np.abs(simulated_s / median_s - 1.0).mean():.1%}")
    return bool(rank >= SPEARMAN)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--placements", type=int, default=40)
    parser.add_argument("--calibration", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(machine())
    rng, count = np.random.default_rng(arguments.seed), arguments.placements
    devices = resolve_devices(f"A=CPU[{PROPERTIES}],B=CPU[{PROPERTIES}]", None)
    with tempfile.TemporaryDirectory() as name:
        path = save_model_files("inception_v3", Path(name) / "inception_v3.xml")
        with Session(path, devices) as session:
            profile = session.profile(ProfileCache(Path(name) / "cache"))
            problem = session.problem(profile=profile)
            placements = np.concatenate([drawn(problem, n, rng) for n in (count, arguments.calibration)])
            times_s = measured_s(session, problem, placements, arguments.rounds)
            costs = WorkConservingCosts.of(session.graph, profile.costs())
    ops, ran = problem.expand(placements), np.isfinite(times_s).all(axis=1)
    seen, judged = ran & (np.arange(len(ran)) >= count), ran & (np.arange(len(ran)) < count)
    parts = [len(costs.table.parts(p).device) for p in ops[judged]]
    least_ms = 1e3 * times_s[judged].min(axis=1)
    print(
        f"inception_v3: {problem.num_units} units, {judged.sum()} placements of {min(parts)} to {max(parts)}", end=" "
    )
    print(f"subgraphs, measured {least_ms.min():.1f} to {least_ms.max():.1f} ms; bar: Spearman {SPEARMAN}")
    met = [report("SIMULATED from the profile alone", costs.latency_s(ops[judged]), times_s[judged])]
    calibrated = costs.calibrated(ops[seen], np.median(times_s[seen], axis=1))
    label = f"SIMULATED, calibrated on medians of {seen.sum()} others"
    met.append(report(label, calibrated.latency_s(ops[judged]), times_s[judged]))
    return 0 if all(met) and bool(ran.all()) else 1


if __name__ == "__main__":
    sys.exit(main())
