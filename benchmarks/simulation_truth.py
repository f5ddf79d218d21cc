"""How far the simulation of HETERO can be trusted: simulated against measured latency of 60 random placements.

For each model on two CPU partitions, or on other devices: profile it, calibrate launches and links on a few cuts, then
simulate 60 other random placements, contiguous and not, and measure them in common rounds. Prints rank and linear
correlation and the median relative error, with calibration and without, and a scatter plot. Exit status 1 when a bar is
missed: Spearman and Pearson 0.9, median error 10%. Published beside it: DOPPLER's simulator against its engine, 0.69
and 0.79.

Usage: python benchmarks/simulation_truth.py [--models resnet50,inception_v3] [--placements 60] [--rounds 5]
           [--devices DEVICES], and --models mixed for the model of mixed_network.py
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import openvino as ov
from machine import machine
from mixed_network import mixed_model
from scipy.stats import pearsonr, spearmanr

from hsdag.commands.profile import random_placements, run_profile
from hsdag.ir.processes import CandidateFailed
from hsdag.models import save_model_files
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.platforms.devices import DeviceSet, resolve_devices
from hsdag.runtime.problems.plan import Plan
from hsdag.search.session import Session

SPEARMAN, PEARSON, ERROR = 0.9, 0.9, 0.10
WIDTH, HEIGHT = 64, 20


def measured_s(session: Session, problem: object, placements: np.ndarray, rounds: int) -> np.ndarray:
    """Seconds of each placement, the median over rounds in which all run in turn; NaN where one fails."""
    taken: dict[str, list[float]] = {}
    for i, placement in enumerate(placements):
        try:
            session.runner.open(str(i), session.placed(problem, Plan(placement)))
            session.runner.run(str(i), 2)
            taken[str(i)] = []
        except CandidateFailed as failure:
            print(f"placement {i} does not run: {failure.reason}")
    for _ in range(rounds):
        for key, times_s in taken.items():
            session.runner.run(key, 1)
            times_s.append(float(np.median(session.runner.run(key, 3))))
    return np.array([np.median(taken[str(i)]) if str(i) in taken else np.nan for i in range(len(placements))])


def scatter(simulated_ms: np.ndarray, real_ms: np.ndarray) -> str:
    """A plot in characters: simulated to the right, measured upwards, the diagonal dotted."""
    low, high = min(simulated_ms.min(), real_ms.min()), max(simulated_ms.max(), real_ms.max())
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]
    for x in range(WIDTH):
        cells[HEIGHT - 1 - round(x * (HEIGHT - 1) / (WIDTH - 1))][x] = "."
    for x_ms, y_ms in zip(simulated_ms, real_ms, strict=True):
        x = round((x_ms - low) / (high - low) * (WIDTH - 1))
        y = round((y_ms - low) / (high - low) * (HEIGHT - 1))
        cells[HEIGHT - 1 - y][x] = "o"
    body = "\n".join("  |" + "".join(row) for row in cells)
    return f"  measured, {low:.1f} to {high:.1f} ms, over SIMULATED, same range\n{body}\n  +{'-' * WIDTH}"


def report(label: str, simulated_s: np.ndarray, real_s: np.ndarray) -> bool:
    """Print the figures of one set of costs; whether they meet the bars."""
    rank, linear = spearmanr(simulated_s, real_s)[0], pearsonr(simulated_s, real_s)[0]
    errors = np.abs(simulated_s / real_s - 1.0)
    median, worst = float(np.median(errors)), float(errors.max())
    print(f"  {label}: Spearman {rank:.3f}, Pearson {linear:.3f}, median error {median:.1%}, largest {worst:.1%}")
    return bool(rank >= SPEARMAN and linear >= PEARSON and median <= ERROR)


def one_model(name: str, folder: Path, devices: DeviceSet, count: int, rounds: int) -> bool:
    """Profile, simulate and measure one model; whether the calibrated costs meet the bars."""
    path = folder / f"{name}.xml"
    if name == "mixed":
        ov.save_model(mixed_model(), path)
    else:
        save_model_files(name, path)
    result = run_profile(path, devices, cache=ProfileCache(folder / "cache"))
    placements = random_placements(result.problem, count, np.random.default_rng(1))
    with Session(path, devices) as session:
        real_s = measured_s(session, result.problem, placements, rounds)
    ran = np.isfinite(real_s)
    ops = result.problem.expand(placements[ran])
    plain = HeteroCosts.of(result.graph, result.profile.costs())
    submodels = plain.collector.crossings(ops, 2).launches.sum(axis=1)
    print(f"{name}: {result.problem.num_units} units, {int(ran.sum())} placements, {submodels.min()} to", end=" ")
    print(f"{submodels.max()} submodels, measured {1e3 * real_s[ran].min():.1f} to {1e3 * real_s[ran].max():.1f} ms")
    report("SIMULATED from the profile alone", plain.latency_s(ops), real_s[ran])
    simulated_s = result.costs.latency_s(ops)
    met = report(f"SIMULATED, calibrated on {len(result.measured_s)} other cuts", simulated_s, real_s[ran])
    print(scatter(1e3 * simulated_s, 1e3 * real_s[ran]))
    return met and bool(ran.all())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet50,inception_v3")
    parser.add_argument("--devices", help="default: two partitions of the CPU")
    parser.add_argument("--placements", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(machine())
    devices = resolve_devices(arguments.devices or "CPU", None if arguments.devices else 2)
    count, rounds = arguments.placements, arguments.rounds
    print(f"bars: Spearman {SPEARMAN}, Pearson {PEARSON}, median error {ERROR:.0%}; DOPPLER's simulator 0.69 and 0.79")
    with tempfile.TemporaryDirectory() as name:
        met = [one_model(m, Path(name), devices, count, rounds) for m in arguments.models.split(",")]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
