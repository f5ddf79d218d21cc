"""The simulator beside SimPy, which simulates the same placements with one process per op and one per edge.

Layered graphs of 261 ops on 4 devices, random placements, independent links, FIFO queues, one core. The makespans must
be equal; then both are timed, building SimPy's processes included. Exit status 1 when makespans differ or the
simulator is less than 1,000 times as fast.

Usage: python benchmarks/simulator_simpy.py [--placements 40]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Generator

import numpy as np
import simpy
from machine import machine
from simulator_speed import NUM_DEVICES, layered

from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import simulate_makespans

NUM_OPS = 261
BAR = 1000.0
PUBLISHED = "published by others, on their machines: DOPPLER's simulator 94 ms for 229 ops, Placeto's 5 ms for 300"
Process = Generator[simpy.Event, object, None]


class SimPyRun:
    """One placement in SimPy: every device is a resource that serves requests by time, then by op index."""

    def __init__(self, problem: ScheduleProblem, placement: list[int]) -> None:
        self.problem, self.placement = problem, placement
        self.env = simpy.Environment()
        self.devices = [simpy.PriorityResource(self.env) for _ in range(problem.num_devices)]
        self.done = [self.env.event() for _ in placement]
        self.landed: dict[tuple[int, int], simpy.Event] = {}  # transfers that have begun, by op and destination
        inputs: list[list[simpy.Event]] = [[] for _ in placement]
        edges = zip(problem.edge_src.tolist(), problem.edge_dst.tolist(), problem.edge_bytes.tolist(), strict=True)
        for u, v, size_bytes in edges:
            inputs[v].append(self.env.process(self.edge(u, v, size_bytes)))
        for v in range(len(placement)):
            self.env.process(self.op(v, inputs[v]))

    def op(self, v: int, inputs: list[simpy.Event]) -> Process:
        yield self.env.all_of(inputs)
        device = self.placement[v]
        with self.devices[device].request(priority=(self.env.now, v)) as turn:
            yield turn
            yield self.env.timeout(float(self.problem.time_s[v, device]))
        self.done[v].succeed()

    def edge(self, u: int, v: int, size_bytes: float) -> Process:
        yield self.done[u]
        home, to = self.placement[u], self.placement[v]
        if home == to:
            return
        if (u, to) not in self.landed:  # the first edge to a device carries the result there
            latency_s = self.problem.link_latency_s[home, to]
            cost_s = latency_s + size_bytes / self.problem.link_bandwidth_bytes_per_s[home, to]
            self.landed[u, to] = self.env.timeout(float(cost_s))
        yield self.landed[u, to]

    def makespan_s(self) -> float:
        self.env.run()
        return float(self.env.now)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--placements", type=int, default=40)
    count = parser.parse_args().placements
    print(machine(), f"simpy {simpy.__version__}")
    problem = layered(NUM_OPS, 1)
    placements = np.random.default_rng(2).integers(0, NUM_DEVICES, (4000, NUM_OPS))
    found = simulate_makespans(problem, placements[:count], num_threads=1)
    slow_us, slow = [], []
    for row in placements[:count].tolist():
        begin = time.perf_counter()
        slow.append(SimPyRun(problem, row).makespan_s())
        slow_us.append(1e6 * (time.perf_counter() - begin))
    if not np.allclose(found, slow, rtol=1e-12, atol=0):
        print(f"makespans differ by up to {np.max(np.abs(found / np.array(slow) - 1)):.1e}")
        return 1
    fast_us = []
    for _ in range(9):
        begin = time.perf_counter()
        simulate_makespans(problem, placements, num_threads=1)
        fast_us.append(1e6 * (time.perf_counter() - begin) / len(placements))
    ratio = float(np.median(slow_us) / np.median(fast_us))
    print(f"{NUM_OPS} ops on {NUM_DEVICES} devices, {count} makespans equal")
    print(f"SimPy     median {np.median(slow_us):9.1f} us, best {min(slow_us):9.1f} us per placement")
    print(f"simulator median {np.median(fast_us):9.1f} us, best {min(fast_us):9.1f} us per placement, in a batch")
    print(f"ratio of medians {ratio:.0f} (bar {BAR:.0f})")
    print(PUBLISHED)
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
