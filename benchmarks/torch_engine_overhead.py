"""Cost of a task in the dynamic loop on torch devices, in microseconds per empty task (bar: at most 15).

An empty task hands its input on. Graphs are 16 chains side by side, over the devices in turn; 1,000 and 10,000 tasks,
so that growth in cost per task would show. "one chain" leaves one device at work at a time. "crossing" places the
tasks at random, so that most results are copied: transfers count as tasks there, and the copies of 16 bytes are made.

Usage: python benchmarks/torch_engine_overhead.py [--devices 4] [--cuda] [--rounds 9] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from machine import machine

from hsdag.runtime.torch_backend import (
    Feed,
    LogicalDevice,
    Program,
    TorchExecutor,
    TorchGraph,
    TorchNode,
    build_program,
    logical_devices,
)

BAR_US = 15.0
SIZES = (1_000, 10_000)
CHAINS = 16


def chains(num_tasks: int, width: int) -> TorchGraph:
    """``width`` chains of tasks that hand their input on."""
    reads = [0 if i < width else i - width + 1 for i in range(num_tasks)]
    tasks = (TorchNode(f"t{i}", "Empty", ((u, 0),), lambda xs: (xs[0],)) for i, u in enumerate(reads))
    return TorchGraph(
        "empty",
        (TorchNode("x", feed=Feed("x", torch.float32, (4,))), *tasks),
        {f"y{i}": (num_tasks - i, 0) for i in range(width)},
    )


def program_of(num_tasks: int, width: int, devices: Sequence[LogicalDevice], is_crossing: bool) -> Program:
    """Chains over the devices in turn, or every task anywhere."""
    in_turn = np.array([0, *(i % width % len(devices) for i in range(num_tasks))])
    anywhere = np.random.default_rng(0).integers(0, len(devices), num_tasks + 1)
    return build_program(chains(num_tasks, width), anywhere if is_crossing else in_turn, devices)


def cost_us(program: Program, rounds: int) -> list[float]:
    """Microseconds per task of every round but the first three."""
    found = []
    with TorchExecutor(program) as executor:
        executor.load({"x": np.arange(4, dtype=np.float32)})
        for _ in range(3 + rounds):
            begin_s = time.perf_counter()
            results = executor.infer()
            found.append((time.perf_counter() - begin_s) / program.tasks.num_tasks * 1e6)
            assert all(x.tolist() == [0.0, 1.0, 2.0, 3.0] for x in results.values())
    return found[3:]


def verdict(case: str, medians_us: Sequence[float]) -> str:
    """One line on a case, from its medians at each of SIZES: whether it meets the bar, and how its cost grows."""
    met = "met" if max(medians_us) <= BAR_US else "missed"
    return (
        f"{case:<12}bar of {BAR_US:g} us per empty task {met} ({max(medians_us):.1f}); "
        f"{SIZES[-1]:,} tasks over {SIZES[0]:,}: {medians_us[-1] / medians_us[0]:.2f} times the cost per task"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--cuda", action="store_true", help="logical devices on cuda:0 instead of the CPU")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    devices = logical_devices(args.devices, "cuda:0" if args.cuda else "cpu")
    print(f"{machine()}; {args.devices} logical devices on {devices[0].torch_device}")
    cases = [("16 chains", CHAINS, False), ("one chain", 1, False), ("crossing", CHAINS, True)]
    rows = []
    print(f"{'case':<12}{'tasks':>8}{'median':>9}{'least':>8}{'most':>8}   us per task")
    for name, width, is_crossing in cases:
        for size in SIZES:
            program = program_of(size, width, devices, is_crossing)
            samples = cost_us(program, args.rounds)
            rows.append({"case": name, "tasks": program.tasks.num_tasks, "us_per_task": samples})
            median, least, most = np.median(samples), min(samples), max(samples)
            print(f"{name:<12}{program.tasks.num_tasks:>8}{median:>9.1f}{least:>8.1f}{most:>8.1f}")
    for name, _, _ in cases:
        print(verdict(name, [float(np.median(row["us_per_task"])) for row in rows if row["case"] == name]))
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "bar_us": BAR_US, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
