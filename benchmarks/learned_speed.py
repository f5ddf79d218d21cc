"""Episodes a second of learned methods with simulated rewards, policy updates included; all plans are simulated.

Bars on two cores: DOPPLER 200 a second on ChainMM and 80 on Llama-layer, both on four P100; HSDAG 1,000 plans a second
on a random network of 400 units; and DOPPLER's time per op on random networks of up to 5,000 ops, which should not
grow.

    python benchmarks/learned_speed.py [--seconds 10] [--largest 5000]
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
from machine import machine

from hsdag.commands.workload import build_problem
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Execution, Semantics
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

BARS = {"chainmm": 200, "llama-layer": 80}
HSDAG_BAR = 1_000
WIRED = {400: (4, 98), 1000: (10, 98), 2000: (20, 98), 5000: (50, 98)}
"""Modules and nodes of networks of about so many ops."""


def rate(method: str, problem: ScheduleProblem, seconds: float, execution: Execution, changes: dict[str, str]) -> float:
    """Plans a second of a search, its first ones left out: plans / seconds as the search counts them."""
    placer = make_placer(method, changes=changes, is_cheap=True)
    found = solve(problem, placer, SolveOptions(method, budget_s=seconds, semantics=Semantics(execution)))
    return found.num_evaluations / found.elapsed_s


def wired(num_ops: int) -> ScheduleProblem:
    """A random network of about so many ops."""
    modules, nodes = WIRED[num_ops]
    return build_problem("random-wired", options={"seed": 0, "modules": modules, "nodes": nodes})


def unlike(problem: ScheduleProblem) -> ScheduleProblem:
    """The problem with ops that each suit one device better than another, so that no device alone is optimal."""
    factor = np.exp(np.random.default_rng(0).normal(0.0, 1.0, problem.time_s.shape))
    return replace(problem, time_s=problem.time_s.mean(axis=1, keepdims=True) * factor)


def main() -> None:
    """Print a line per problem, and whether the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a search")
    parser.add_argument("--largest", type=int, default=5000, help="largest random network")
    options = parser.parse_args()
    print(machine())
    work_conserving = Execution.WORK_CONSERVING
    for name, bar in BARS.items():
        problem = build_problem(name, "p100x4")
        rate("doppler", problem, 2.0, work_conserving, {"teacher_updates": "0"})
        found = rate("doppler", problem, options.seconds, work_conserving, {"teacher_updates": "0"})
        print(f"doppler  {name:12s} {problem.num_ops:5d} ops  {found:8.0f} episodes a second (bar {bar})", flush=True)
    problem = unlike(wired(400))
    found = rate("hsdag", problem, options.seconds, Execution.SEQUENTIAL, {"patience": "0"})
    print(f"hsdag    random-wired {problem.num_ops:5d} ops  {found:8.0f} plans a second (bar {HSDAG_BAR})", flush=True)
    for num_ops in [each for each in WIRED if each <= options.largest]:
        problem = wired(num_ops)
        found = rate("doppler", problem, options.seconds, work_conserving, {"teacher_updates": "0"})
        per_op_us = 1e6 / (found * problem.num_ops)
        print(f"doppler  random-wired {problem.num_ops:5d} ops  {found:8.1f} a second, {per_op_us:.1f} us an op")


if __name__ == "__main__":
    main()
