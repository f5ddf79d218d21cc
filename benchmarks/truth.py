"""How far simulations can be trusted: simulated against measured latencies of random placements.

A model on two CPU devices is profiled; random placements, contiguous and scattered, are simulated from the profile and
measured in common rounds, under HETERO and under the work-conserving executor. Printed for each: Spearman's and
Pearson's correlation, the median relative error, and how well one half of the measurements agrees with the other half,
which no simulation can be expected to exceed by much. Exit status 1 when a placement does not run, or when against the
least measured times a correlation is below 0.9 or the median error above 10%. Published beside it: DOPPLER's
simulator against its engine, 0.69 and 0.79.

Usage: python benchmarks/truth.py [--models resnet50,inception_v3] [--placements 40] [--rounds 5] [--devices DEVICES]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from machine import machine
from scipy.stats import pearsonr, spearmanr

from hsdag.ir.processes import CandidateFailed
from hsdag.models import save_model_files
from hsdag.placing.session import Session
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.machine.devices import resolve_devices
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem

CORRELATION, MEDIAN_ERROR = 0.9, 0.1
ONE = "INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32"
EXECUTORS = {"hetero": HeteroCosts, "work-conserving": WorkConservingCosts}


def measured_s(session: Session, problem: Problem, placements: np.ndarray, executor: str, rounds: int) -> np.ndarray:
    """[B, R] seconds of every inference, in rounds in which all placements run in turn; NaN where one fails."""
    taken: dict[int, list[float]] = {}
    for i, placement in enumerate(placements):
        try:
            session.runner.open(str(i), session.placed(problem, Plan(placement), executor))
            session.runner.run(str(i), 2)
            taken[i] = []
        except CandidateFailed as failure:
            print(f"placement {i} does not run: {failure.reason}")
    for _ in range(rounds):
        for i, times_s in taken.items():
            times_s += session.runner.run(str(i), 3)
    return np.array([taken.get(i, [np.nan] * 3 * rounds) for i in range(len(placements))])


def random_placements(problem: Problem, count: int, rng: np.random.Generator) -> np.ndarray:
    """[B, U] legal placements that change device along the topological order, each seldom or often."""
    shape, leave = (count, problem.num_units), np.exp(rng.uniform(np.log(0.02), np.log(0.5), (count, 1)))
    steps = np.where(rng.random(shape) < leave, rng.integers(1, problem.num_devices, shape), 0)
    drawn = (rng.integers(problem.num_devices, size=(count, 1)) + np.cumsum(steps, axis=1)) % problem.num_devices
    is_legal = problem.supported[np.arange(problem.num_units), drawn]
    return np.where(is_legal, drawn, problem.supported.argmax(axis=1))


def agreement(found_s: np.ndarray, expected_s: np.ndarray) -> tuple[float, float, float]:
    """Spearman's and Pearson's correlation, and the median relative error."""
    error = float(np.median(np.abs(found_s / expected_s - 1.0)))
    return float(spearmanr(found_s, expected_s)[0]), float(pearsonr(found_s, expected_s)[0]), error


def words(figures: tuple[float, float, float]) -> str:
    """They, as they are printed."""
    return f"Spearman {figures[0]:.3f}, Pearson {figures[1]:.3f}, median error {figures[2]:.1%}"


def one_model(name: str, folder: Path, given: argparse.Namespace) -> bool:
    """Whether both executors' simulations meet the bars."""
    path, met = save_model_files(name, folder / f"{name}.xml"), True
    with Session(path, resolve_devices(given.devices, None)) as session:
        profile = session.profile(ProfileCache(folder / "cache"), side_by_side=True)
        problem = session.problem(profile=profile)
        placements = random_placements(problem, given.placements, np.random.default_rng(1))
        ops = problem.expand(placements)
        for executor, costs in EXECUTORS.items():
            times_s = measured_s(session, problem, placements, executor, given.rounds)
            ran = np.isfinite(times_s).all(axis=1)
            simulated_s = costs.of(session.graph, profile.costs()).latency_s(ops[ran])
            halves = agreement(times_s[ran][:, ::2].min(axis=1), times_s[ran][:, 1::2].min(axis=1))
            found = agreement(simulated_s, times_s[ran].min(axis=1))
            print(f"{name}, {executor}, {ran.sum()} placements, SIMULATED against measured: {words(found)}")
            print(f"  one half of the measurements against the other: {words(halves)}", flush=True)
            met &= bool(ran.all()) and min(found[:2]) >= CORRELATION and found[2] <= MEDIAN_ERROR
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet50,inception_v3")
    parser.add_argument("--devices", default=f"A=CPU[{ONE}],B=CPU[{ONE}]")
    parser.add_argument("--placements", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        met = [one_model(name, Path(folder), given) for name in given.models.split(",")]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
