"""Milliseconds of exact minimum cuts of two devices, and of balanced stages, on graphs of 10,000 ops.

Random layered graphs with two inputs per op, transfers from negligible to as dear as hundreds of ops, and op times that
are random or alike over long stretches. Cuts and stages are checked against brute force on small graphs first;
compilation is not timed. Exit status 1 when any cut or any partition takes more than 1 s.

Usage: python benchmarks/mincut_speed.py [--ops 10000]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable

import numpy as np
from machine import machine

from hsdag.placers.cuts.boundary_costs import BoundaryCosts
from hsdag.placers.cuts.cut_graph import pair_cut
from hsdag.placers.cuts.stage_partition import Line, balanced_stages
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Execution, Semantics, period_s, simulate_makespans

BAR_S = 1.0
ROUNDS = 5
SEQUENTIAL = Semantics(Execution.SEQUENTIAL)


def layered(
    num_ops: int, seed: int, *, transfer_s: float = 1e-4, alike: int = 1, num_devices: int = 2
) -> ScheduleProblem:
    """Ops that each read two of those shortly before them; ``alike`` ops in a row prefer the same device."""
    rng = np.random.default_rng(seed)
    dst = np.repeat(np.arange(1, num_ops), 2)
    src = dst - 1 - np.minimum(rng.geometric(1 / 12, len(dst)) - 1, dst - 1)
    stretch = rng.uniform(0.5, 2.0, (num_ops // alike + 1, num_devices)).repeat(alike, axis=0)[:num_ops]
    return ScheduleProblem.from_arrays(
        rng.uniform(1e-5, 1e-3, (num_ops, 1)) * stretch * rng.uniform(0.9, 1.1, (num_ops, num_devices)),
        np.unique(np.stack([src, dst], axis=1), axis=0),
        output_bytes=rng.integers(1, 1_000_000, num_ops),
        link_latency_s=transfer_s / 2,
        link_bandwidth_bytes_per_s=1e6 / transfer_s,
    )


def check() -> None:
    """Exit when a cut or a partition is not the best of all; compiles on the way."""
    for seed in range(20):
        problem = layered(12, seed, transfer_s=3e-4)
        every = np.array(list(itertools.product(range(2), repeat=12)))
        cut = pair_cut(BoundaryCosts.of(problem), 0, 1)
        assert cut is not None
        found_s = simulate_makespans(problem, cut.placement[None], SEQUENTIAL)[0]
        best_s = simulate_makespans(problem, every, SEQUENTIAL).min()
        stages = balanced_stages(Line.of(problem, boundary=0.0), problem.memory_bytes)
        assert stages is not None
        begins = np.arange(13)[:, None] <= np.arange(12)[None, :]
        halves = np.concatenate([begins, ~begins]).astype(np.int64)[:, np.argsort(problem.topological_order)]
        same = np.isclose(period_s(problem, stages[None])[0], period_s(problem, halves).min(), rtol=1e-9)
        if not np.isclose(found_s, best_s, rtol=1e-9) or not same:
            sys.exit(f"seed {seed}: the cut takes {found_s} s instead of {best_s} s, or the stages are not balanced")


def timed_ms(work: Callable[[], object]) -> list[float]:
    """Raw samples."""
    samples = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        samples.append(1e3 * (time.perf_counter() - begin))
    return samples


def shown(name: str, samples: list[float]) -> bool:
    """Print a line; whether the bar holds."""
    print(f"{name}: median {np.median(samples):7.1f} ms, worst {max(samples):7.1f} ms (bar {1e3 * BAR_S:.0f} ms)")
    return max(samples) <= 1e3 * BAR_S


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, default=10_000)
    num_ops = parser.parse_args().ops
    print(machine())
    check()
    held = True
    for transfer_s, alike in itertools.product((1e-6, 1e-4, 1e-3, 1e-2, 1e-1), (1, 100, 2000)):
        problem = layered(num_ops, 1, transfer_s=transfer_s, alike=alike)
        cut = pair_cut(BoundaryCosts.of(problem), 0, 1)
        assert cut is not None
        moved = int(cut.placement.sum())
        samples = timed_ms(lambda problem=problem: pair_cut(BoundaryCosts.of(problem), 0, 1))
        name = f"cut, {num_ops} ops, transfers {transfer_s:g} s, {alike:4d} alike, {moved:5d} on the second"
        held &= shown(name, samples)
    for num_devices in (2, 4, 6):
        problem = layered(num_ops, 1, num_devices=num_devices)
        line = Line.of(problem, boundary=1.0)
        samples = timed_ms(lambda line=line, problem=problem: balanced_stages(line, problem.memory_bytes))
        held &= shown(f"stages, {num_ops} ops on {num_devices} different devices", samples)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
