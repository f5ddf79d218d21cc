"""Seconds of HEFT on random layered graphs and 4 devices, and its growth where idle time is plentiful.

Every schedule is checked by code that shares nothing with the scheduler: inputs there before an op starts, no two ops
at once on a device, times as the problem gives them. Compilation is not timed; reading the problem into tables and
upward ranks are. Exit status 1 when a schedule is wrong or a bar is missed: 20 ms for 1,000 ops, 10 s for 100,000.

'layered' ops read two of those shortly before them. 'crowded' ones are slow chains beside as many ops without inputs
that are too long for the idle time the chains leave: a plain search through that idle time would be quadratic.

Usage: python benchmarks/heft_speed.py
"""

from __future__ import annotations

import sys
import time

import numpy as np
from machine import machine
from simulator_speed import NUM_DEVICES, layered

from hsdag.placers.lists.heft import HeftPlacer
from hsdag.placers.lists.schedule import ListSchedule
from hsdag.runtime.problems.schedule_problem import ScheduleProblem

BARS_S = {1000: 0.020, 100_000: 10.0}
ROUNDS, NUM_CHAINS = 5, 6


def crowded(num_ops: int, seed: int) -> ScheduleProblem:
    """Chains whose ops change devices, and ops without edges that fit into none of the idle time between."""
    rng = np.random.default_rng(seed)
    half = num_ops // 2
    times = np.full((num_ops, NUM_DEVICES), 1.0)
    times[:half] = np.where(rng.integers(NUM_DEVICES, size=half)[:, None] == np.arange(NUM_DEVICES), 0.1, 5.0)
    chain = np.arange(half - NUM_CHAINS)
    return ScheduleProblem.from_arrays(times, np.stack([chain, chain + NUM_CHAINS], axis=1), link_latency_s=0.3)


def check(problem: ScheduleProblem, found: ListSchedule) -> None:
    """Exit when the schedule is not a valid one."""
    if not np.array_equal(found.end_s, found.start_s + problem.time_s[np.arange(problem.num_ops), found.device]):
        sys.exit("an op does not take its time")
    src, dst = problem.edge_src, problem.edge_dst
    home, away = found.device[src], found.device[dst]
    link_s = problem.link_latency_s[home, away] + problem.edge_bytes / problem.link_bandwidth_bytes_per_s[home, away]
    if np.any(found.start_s[dst] < found.end_s[src] + np.where(home == away, 0.0, link_s)):
        sys.exit("an op starts before its inputs are there")
    order = np.lexsort((found.start_s, found.device))
    same = found.device[order][1:] == found.device[order][:-1]
    if np.any(same & (found.start_s[order][1:] < found.end_s[order][:-1])):
        sys.exit("two ops overlap on a device")


def main() -> int:
    print(machine())
    missed = False
    for make in (layered, crowded):
        for num_ops in (1000, 10_000, 100_000):
            problem = make(num_ops, 1)
            check(problem, HeftPlacer().schedule(problem))
            samples = []
            for _ in range(ROUNDS):
                begin = time.perf_counter()
                found = HeftPlacer().schedule(problem)
                samples.append(time.perf_counter() - begin)
            bar_s = BARS_S.get(num_ops, np.inf)
            missed |= float(np.median(samples)) > bar_s
            bar = f" (bar {1e3 * bar_s:,.0f} ms)" if np.isfinite(bar_s) else ""
            print(
                f"{make.__name__}, {num_ops:7,d} ops: median {1e3 * np.median(samples):9.2f} ms, "
                f"best {1e3 * min(samples):9.2f} ms{bar}; simulated makespan {found.makespan_s:.4g} s"
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
