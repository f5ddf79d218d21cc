"""What each departure of the default HSDAG preset from the paper buys, beside controls, on SIMULATED costs.

Two problems of about a hundred ops in sequential execution, on both of which a split wins: encoder layers of a
transformer and modules of parallel branches, whose ops prefer different devices. Figures are the best value of
--evaluations plans over the best single device: means and their 95% intervals over seeds.

    python benchmarks/hsdag_ablation.py [--seeds 10] [--evaluations 300] [--only NAME,...]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch
from machine import machine

from hsdag.runtime.measuring.latency import half_width
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.search.options import SolveOptions
from hsdag.solving.solve import solve

SEQUENTIAL = Semantics(Execution.SEQUENTIAL)
LIMIT_S, SINGLE_S = 600.0, 0.060
"""A search ends by then; what the best single device takes for a whole problem."""
ROWS: dict[str, tuple[str, str, dict[str, str]]] = {
    "random draws": ("random", "default", {}),
    "hill climber": ("ea", "default", {}),
    "annealing": ("sa", "default", {}),
    "list schedule (HEFT)": ("heft", "default", {}),
    "minimum cut": ("mincut", "default", {}),
    "paper": ("hsdag", "paper", {}),
    "default": ("hsdag", "default", {}),
    "learning off": ("hsdag", "default", {"learning_rate": "1e-100", "last_learning_rate": "0"}),
    "- costs among the features": ("hsdag", "default", {"costs": "false"}),
    "- baseline": ("hsdag", "default", {"baseline": "none"}),
    "- importance weighting": ("hsdag", "default", {"clip": "none"}),
    "- sampled parsing": ("hsdag", "default", {"sampled_parsing": "false"}),
    "- graph structure": ("hsdag", "default", {"structure": "false"}),
}
"""Method, preset and changes of every row."""


class Builder:
    """A graph under construction: ops with their type, size of their result and work, and their producers."""

    def __init__(self) -> None:
        self.types: list[str] = []
        self.sides: list[int] = []
        self.bytes: list[float] = []
        self.flops: list[float] = []
        self.edges: list[tuple[int, int]] = []

    def add(self, kind: str, inputs: Sequence[int], channels: int, side: int, flops: float) -> int:
        """A new op; its index."""
        self.types.append(kind)
        self.sides.append(side)
        self.bytes.append(4.0 * channels * side**2)
        self.flops.append(flops)
        self.edges += [(u, len(self.types) - 1) for u in inputs]
        return len(self.types) - 1

    def problem(self, name: str, speed: Sequence[Sequence[float]], cut_s: float) -> ScheduleProblem:
        """Times from FLOPs over ``speed`` [N, D], scaled so that the best single device takes ``SINGLE_S``."""
        time_s = np.array(self.flops)[:, None] / np.array(speed)
        return ScheduleProblem.from_arrays(
            time_s * SINGLE_S / time_s.sum(axis=0).min(),
            self.edges,
            output_bytes=self.bytes,
            launch_s=cut_s,
            link_latency_s=cut_s,
            link_bandwidth_bytes_per_s=10e9,
            name=name,
            labels=OpLabels.empty(len(self.types), self.types),
        )


def inception_like() -> ScheduleProblem:
    """Eleven modules of four parallel branches, 101 ops."""
    b = Builder()
    v = b.add("Convolution", [], 32, 149, 1e8)
    for module in range(11):
        side = (35, 17, 8)[min(module // 4, 2)]
        ends = []
        for depth in (1, 2, 3):
            w = v
            for _ in range(depth):
                w = b.add("Convolution", [w], 96 + 32 * depth, side, 2e7 * (1 + depth))
            ends.append(w)
        pooled = b.add("AvgPool", [v], 256, side, 3e6)
        ends.append(b.add("Convolution", [pooled], 64, side, 2e7))
        v = b.add("Concat", ends, 512, side, 1e6)
    b.add("MatMul", [v], 1000, 1, 4e6)
    speed = [(3.0, 1.0, 1.0) if side > 20 else (1.0, 2.5, 1.0) for side in b.sides]
    return b.problem("inception-like, large maps 3x on A, small 2.5x on B", speed, 0.0002)


def transformer_like() -> ScheduleProblem:
    """Eight encoder layers of matrix products and element-wise ops, 97 ops."""
    b = Builder()
    v = b.add("Gather", [], 768, 1, 1e6)
    for _ in range(8):
        qkv = [b.add("MatMul", [v], 768, 8, 8e7) for _ in range(3)]
        s = b.add("MatMul", qkv[:2], 12, 8, 4e7)
        s = b.add("Softmax", [s], 12, 8, 6e7)
        s = b.add("MatMul", [s, qkv[2]], 768, 8, 4e7)
        s = b.add("MatMul", [s], 768, 8, 8e7)
        v = b.add("Add", [s, v], 768, 8, 3e7)
        v = b.add("MVN", [v], 768, 8, 8e7)
        s = b.add("MatMul", [v], 3072, 8, 3e8)
        s = b.add("Gelu", [s], 3072, 8, 2e8)
        b.add("MatMul", [s], 768, 8, 3e8)
    speed = [(1.0, 3.0) if kind == "MatMul" else (3.0, 1.0) for kind in b.types]
    return b.problem("transformer-like, MatMul 3x on B, rest 3x on A", speed, 0.00002)


def ratio(problem: ScheduleProblem, row: str, evaluations: int, seed: int) -> float:
    """The best value of a search, which evaluates single devices first, over that of the best of them."""
    method, preset, changes = ROWS[row]
    how = {"preset": preset, "changes": changes, "seed": seed, "semantics": SEQUENTIAL}
    options = SolveOptions(method, budget_s=LIMIT_S, max_evaluations=evaluations, **how)
    value_s = solve(problem, options.placer(), options).value_s
    assert value_s is not None
    return value_s / (SINGLE_S + float(problem.launch_s[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="searches per row and problem")
    parser.add_argument("--first-seed", type=int, default=100, help="0 to 9 served to choose the settings")
    parser.add_argument("--evaluations", type=int, default=300, help="plans that a search may evaluate")
    parser.add_argument("--only", default="", help="only rows whose name contains one of these, with commas between")
    given = parser.parse_args()
    torch.set_num_threads(1)
    problems, begin_s = [transformer_like(), inception_like()], time.process_time()
    print(machine())
    for i, problem in enumerate(problems, start=1):
        print(f"P{i}: SIMULATED {problem.name}, {problem.num_ops} ops")
    print(f"{'':<30}{''.join(f' |           P{i}' for i in range(1, len(problems) + 1))}")
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    for row in (name for name in ROWS if any(part in name for part in given.only.split(","))):
        cells = ""
        for problem in problems:
            found = np.array([ratio(problem, row, given.evaluations, seed) for seed in seeds])
            half = half_width(float(found.std(ddof=1)), len(found)) if len(found) > 1 else 0.0
            cells += f" | {found.mean():6.3f}±{half:5.3f}"
        print(f"{row:<30}{cells}", flush=True)
    print(f"{given.seeds} seeds from {given.first_seed} on, {time.process_time() - begin_s:.0f} s of one core")


if __name__ == "__main__":
    main()
