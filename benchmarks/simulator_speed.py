"""Microseconds per simulated placement on one core, growth up to 1,000,000 ops, and several cores.

Random layered graphs with two inputs per op, random placements on 4 devices, FIFO queues. Every kind of link is
checked against the reference simulator of the tests first; compilation is not timed. Devices that slow each other down
are simulated in turn with those that do not. Exit status 1 when a bar is missed: 20 us for 261 ops, 120 us for 1,000
ops, independent links; twice the time where devices slow each other down, by the median of paired ratios.

Growth is timed in batches of 10 placements, sorting the edges of a new problem included and also shown alone.

Usage: python benchmarks/simulator_speed.py [--largest 1000000]
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from machine import machine

from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Links, Semantics, simulate_makespans

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.runtime.simulator.reference_simulator import Reference

BARS_US = {261: 20.0, 1000: 120.0}
BAR_CONTENDED = 2.0
NUM_DEVICES = 4
SLOWDOWN = 1.4
SIMULATED = (Links.INDEPENDENT, Links.EGRESS, Links.CHANNEL)


def layered(num_ops: int, seed: int) -> ScheduleProblem:
    """Ops that each read two of those shortly before them."""
    rng = np.random.default_rng(seed)
    dst = np.repeat(np.arange(1, num_ops), 2)
    src = dst - 1 - np.minimum(rng.geometric(1 / 12, len(dst)) - 1, dst - 1)
    return ScheduleProblem.from_arrays(
        rng.uniform(1e-5, 1e-3, (num_ops, NUM_DEVICES)),
        np.unique(np.stack([src, dst], axis=1), axis=0),
        output_bytes=rng.integers(1, 1_000_000, num_ops),
        link_latency_s=1e-5,
        link_bandwidth_bytes_per_s=1e10,
    )


def check() -> None:
    """Exit when product and reference disagree; compiles all kinds of links on the way."""
    problem, rng = layered(80, 5), np.random.default_rng(6)
    placements = rng.integers(0, NUM_DEVICES, (5, problem.num_ops))
    for links, p in itertools.product(SIMULATED, (problem, contended(problem))):
        found = simulate_makespans(p, placements, Semantics(links=links), num_threads=1)
        slow = [Reference(p, row.tolist(), links=links.value).work_conserving() for row in placements]
        if not np.allclose(found, slow, rtol=1e-9, atol=0):
            sys.exit(f"{links.value}: {found} instead of {slow}")


def contended(problem: ScheduleProblem) -> ScheduleProblem:
    """The same on devices that slow each other down."""
    return replace(problem, slowdown=np.full((NUM_DEVICES, NUM_DEVICES), SLOWDOWN))


def microseconds(num_ops: int, links: Links, rounds: int) -> np.ndarray:
    """[2, R] raw samples: per placement, over rounds of batches of about a million ops; free, and contended."""
    problem, rng = layered(num_ops, 1), np.random.default_rng(2)
    count = max(1, 1_000_000 // num_ops)
    placements = rng.integers(0, NUM_DEVICES, (count, num_ops))
    samples = np.empty((2, rounds))
    for row, i in itertools.product(range(rounds), range(2)):
        p, begin = (problem, contended(problem))[i], time.perf_counter()
        simulate_makespans(p, placements, Semantics(links=links), num_threads=1)
        samples[i, row] = 1e6 * (time.perf_counter() - begin) / count
    return samples


def growth(num_ops: int) -> str:
    """Nanoseconds per op and placement in a batch, the first call of a problem apart."""
    problem, count = layered(num_ops, 1), 10
    placements = np.random.default_rng(2).integers(0, NUM_DEVICES, (count, num_ops))
    seconds = []
    for rows in [placements[:1], *[placements] * 3]:
        begin = time.perf_counter()
        simulate_makespans(problem, rows, num_threads=1)
        seconds.append(time.perf_counter() - begin)
    median_s = float(np.median(seconds[1:])) / count
    return (
        f"{num_ops:8d} ops, independent: median {1e3 * median_s:8.2f} ms, {1e9 * median_s / num_ops:4.0f} ns per op; "
        f"first call with one placement {1e3 * seconds[0]:.1f} ms"
    )


def cores(num_ops: int, num_threads: int) -> str:
    """How much faster several threads are, and that they find the same."""
    problem, count = layered(num_ops, 1), 10_000_000 // num_ops
    placements = np.random.default_rng(2).integers(0, NUM_DEVICES, (count, num_ops))
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(3):
        found = []
        for i, threads in enumerate((1, num_threads)):
            begin = time.perf_counter()
            found.append(simulate_makespans(problem, placements, num_threads=threads))
            seconds[i].append(time.perf_counter() - begin)
        if not np.array_equal(*found):
            sys.exit("the makespans depend on the number of threads")
    ratio = float(np.median(seconds[0]) / np.median(seconds[1]))
    return f"{num_ops:8d} ops, {num_threads} threads: {ratio:.2f}x as fast as one"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=1_000_000)
    largest = parser.parse_args().largest
    print(machine())
    check()
    missed = False
    for num_ops, bar_us in BARS_US.items():
        for links in SIMULATED:
            free, slowed = microseconds(num_ops, links, 9)
            ratio = float(np.median(slowed / free))
            line = f"{num_ops:8d} ops, {links.value:11s}: median {np.median(free):8.1f} us, best {min(free):8.1f} us"
            if links is Links.INDEPENDENT:
                missed |= float(np.median(free)) > bar_us
                line += f" (bar {bar_us:.0f} us)"
            missed |= ratio > BAR_CONTENDED
            print(f"{line}; contended {ratio:.2f}x as long (bar {BAR_CONTENDED:.0f})")
    num_ops = 1000
    while num_ops <= largest:
        print(growth(num_ops))
        num_ops *= 10
    if (num_threads := len(os.sched_getaffinity(0))) > 1:
        print(cores(1000, num_threads))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
