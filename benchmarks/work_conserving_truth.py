"""How far the simulation of work-conserving execution can be trusted: simulated against measured makespans.

Inception-V3 on two CPU devices of one thread each: profile it, then simulate 40 random placements and measure them in
common rounds under the work-conserving executor. Half of the placements share out the branches of modules, from all on
one device to balanced; the others change device at random places of the order, or of the way of the data. Eight further
ones calibrate the costs. Every figure is given with the measured slow-downs of the devices and without them. What is
measured is the least of all inferences: whatever else runs on the machine only adds, and two devices suffer from it
more than one. Figures against medians are printed beside it, and what the measured figures of one half of the rounds
have in common with those of the other half: no simulation can be expected to do much better. With --one-core the two
devices share one core, and slow each other down as far as can be.

Exit status 1 when a placement does not run, or when with slow-downs, from the profile alone, the rank correlation or
the correlation with the least times is below 0.9, or the median error above 10%.

Usage: python benchmarks/work_conserving_truth.py [--placements 40] [--calibration 8] [--rounds 5] [--one-core]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from machine import machine
from scipy.stats import pearsonr, spearmanr

from hsdag.commands.profile import random_placements
from hsdag.ir.processes import CandidateFailed
from hsdag.models import save_model_files
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.platforms.devices import resolve_devices
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem
from hsdag.search.session import Session

CORRELATION, MEDIAN_ERROR = 0.9, 0.1
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


def correlations(found_s: np.ndarray, expected_s: np.ndarray) -> str:
    """Spearman's, Pearson's, and the median relative error, in words."""
    error = np.median(np.abs(found_s / expected_s - 1.0))
    rank, linear = spearmanr(found_s, expected_s)[0], pearsonr(found_s, expected_s)[0]
    return f"Spearman {rank:.3f}, Pearson {linear:.3f}, median error {error:.1%}"


def report(label: str, simulated_s: np.ndarray, times_s: np.ndarray) -> bool:
    """Print the figures of one set of costs; whether they meet the bars."""
    least_s = times_s.min(axis=1)
    of_medians = correlations(simulated_s, np.median(times_s, axis=1))
    print(f"  {label}: {correlations(simulated_s, least_s)}; against medians {of_medians}")
    error = float(np.median(np.abs(simulated_s / least_s - 1.0)))
    least_correlation = min(spearmanr(simulated_s, least_s)[0], pearsonr(simulated_s, least_s)[0])
    return bool(least_correlation >= CORRELATION and error <= MEDIAN_ERROR)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--placements", type=int, default=40)
    parser.add_argument("--calibration", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--one-core", action="store_true", help="Have both devices share one core.")
    arguments = parser.parse_args()
    print(machine())
    if arguments.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rng, count = np.random.default_rng(arguments.seed), arguments.placements
    devices = resolve_devices(f"A=CPU[{PROPERTIES}],B=CPU[{PROPERTIES}]", None)
    with tempfile.TemporaryDirectory() as name:
        path = save_model_files("inception_v3", Path(name) / "inception_v3.xml")
        with Session(path, devices) as session:
            profile = session.profile(ProfileCache(Path(name) / "cache"), side_by_side=True)
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
    print(f"subgraphs, measured {least_ms.min():.1f} to {least_ms.max():.1f} ms", end="; ")
    print(f"bars with slow-downs: correlations {CORRELATION}, median error {MEDIAN_ERROR:.0%}")
    for kind, table in profile.contention.factor.items():
        print(f"  {kind}: A beside B takes {table[0, 1]:.2f} times as long, B beside A {table[1, 0]:.2f}")
    halves = (times_s[judged][:, half::2].min(axis=1) for half in (0, 1))
    print(f"  measured in one half of the inferences, against the other half: {correlations(*halves)}")
    is_met = False
    for words, model in (("without slow-downs", replace(costs, slowdown=None)), ("with slow-downs", costs)):
        is_met = report(f"SIMULATED {words}, from the profile", model.latency_s(ops[judged]), times_s[judged])
        calibrated = model.calibrated(ops[seen], times_s[seen].min(axis=1)).latency_s(ops[judged])
        report(f"SIMULATED {words}, calibrated on {seen.sum()} others", calibrated, times_s[judged])
    return 0 if is_met and bool(ran.all()) else 1


if __name__ == "__main__":
    sys.exit(main())
