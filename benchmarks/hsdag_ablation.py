"""What each departure of the default HSDAG preset from the paper buys, beside controls, on SIMULATED costs.

Two problems of about a hundred ops in sequential execution, on both of which a split wins: encoder layers of a
transformer and modules of parallel branches, whose ops prefer different devices. Figures are the best value of
--evaluations plans over the best single device: means and their 95% intervals over seeds.

    python benchmarks/hsdag_ablation.py [--seeds 10] [--evaluations 300] [--only NAME,...]
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from machine import options

from hsdag.runtime.measuring.latency import half_width
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

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
    "learning off": ("hsdag", "default", {"learning_rate": "0", "last_learning_rate": "0"}),
    "- costs among the features": ("hsdag", "default", {"costs": "false"}),
    "- baseline": ("hsdag", "default", {"baseline": "none"}),
    "- importance weighting": ("hsdag", "default", {"clip": "none"}),
    "- sampled parsing": ("hsdag", "default", {"sampled_parsing": "false"}),
    "- graph structure": ("hsdag", "default", {"structure": "false"}),
}
"""Method, preset and changes of every row."""


Op = tuple[str, Sequence[int], int, int, float]
"""Its type, its producers, channels and side of its result, and its FLOPs."""


def problem_of(name: str, ops: Sequence[Op], speed: Sequence[Sequence[float]], cut_s: float) -> ScheduleProblem:
    """Times from FLOPs over ``speed`` [N, D], scaled so that the best single device takes ``SINGLE_S``."""
    types, producers, channels, sides, flops = zip(*ops, strict=True)
    time_s = np.array(flops)[:, None] / np.array(speed)
    return ScheduleProblem.from_arrays(
        time_s * SINGLE_S / time_s.sum(axis=0).min(),
        [(u, v) for v, inputs in enumerate(producers) for u in inputs],
        output_bytes=4.0 * np.array(channels) * np.array(sides) ** 2,
        launch_s=cut_s,
        link_latency_s=cut_s,
        link_bandwidth_bytes_per_s=10e9,
        name=name,
        labels=OpLabels.empty(len(ops), types),
    )


def inception_like() -> ScheduleProblem:
    """Eleven modules of four parallel branches, 101 ops."""
    ops: list[Op] = [("Convolution", [], 32, 149, 1e8)]
    for module in range(11):
        side, v, ends = (35, 17, 8)[min(module // 4, 2)], len(ops) - 1, []
        for depth in (1, 2, 3):
            for k in range(depth):
                ops.append(("Convolution", [len(ops) - 1 if k else v], 96 + 32 * depth, side, 2e7 * (1 + depth)))
            ends.append(len(ops) - 1)
        ops += [("AvgPool", [v], 256, side, 3e6), ("Convolution", [len(ops)], 64, side, 2e7)]
        ops.append(("Concat", [*ends, len(ops) - 1], 512, side, 1e6))
    ops.append(("MatMul", [len(ops) - 1], 1000, 1, 4e6))
    speed = [(3.0, 1.0, 1.0) if side > 20 else (1.0, 2.5, 1.0) for _, _, _, side, _ in ops]
    return problem_of("inception-like, large maps 3x on A, small 2.5x on B", ops, speed, 0.0002)


def transformer_like() -> ScheduleProblem:
    """Eight encoder layers of matrix products and element-wise ops, 97 ops."""
    ops: list[Op] = [("Gather", [], 768, 1, 1e6)]
    v = 0
    for _ in range(8):
        n = len(ops)
        ops += [("MatMul", [v], 768, 8, 8e7)] * 3
        ops += [("MatMul", [n, n + 1], 12, 8, 4e7), ("Softmax", [n + 3], 12, 8, 6e7)]
        ops += [("MatMul", [n + 4, n + 2], 768, 8, 4e7), ("MatMul", [n + 5], 768, 8, 8e7)]
        ops += [("Add", [n + 6, v], 768, 8, 3e7), ("MVN", [n + 7], 768, 8, 8e7)]
        ops += [("MatMul", [n + 8], 3072, 8, 3e8), ("Gelu", [n + 9], 3072, 8, 2e8), ("MatMul", [n + 10], 768, 8, 3e8)]
        v = n + 8
    speed = [(1.0, 3.0) if kind == "MatMul" else (3.0, 1.0) for kind, *_ in ops]
    return problem_of("transformer-like, MatMul 3x on B, rest 3x on A", ops, speed, 0.00002)


def ratio(problem: ScheduleProblem, row: str, evaluations: int, seed: int) -> float:
    """The best value of a search, which evaluates single devices first, over that of the best of them."""
    method, preset, changes = ROWS[row]
    how = {"preset": preset, "changes": changes, "seed": seed, "semantics": SEQUENTIAL}
    options = SolveOptions(method, budget_s=LIMIT_S, max_evaluations=evaluations, **how)
    value_s = solve(problem, options.placer(), options).value
    assert value_s is not None
    return value_s / (SINGLE_S + float(problem.launch_s[0]))


def main() -> None:
    only, first_seed = ("", "rows whose name contains one of these"), (100, "0 to 9 served to choose the settings")
    given = options(__doc__, seeds=10, first_seed=first_seed, evaluations=300, only=only)
    torch.set_num_threads(1)
    problems, begin_s = [transformer_like(), inception_like()], time.process_time()
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
