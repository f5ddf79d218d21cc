"""CP-SAT and the MILP against brute force over all placements and orders, on random problems of up to 9 ops.

Also the bounds: of the placers cpsat, milp and milp-split none may be above an optimum, and no answer below one.
Prints the largest deviation, and how often the simulator, which never lets a device idle while an op is ready for it,
needs longer than the optimum over all schedules. Exit status 1 when a bar is missed.

Usage: python benchmarks/exact_optimality.py [--problems 200] [--first 0] [--ops 9] [--placers 1]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from hsdag.methods.exact.cpsat_model import IntervalModel
from hsdag.methods.exact.formulation import Formulation, generous_horizon_s
from hsdag.methods.exact.highs import solve_linear
from hsdag.methods.exact.milp import MilpModel
from hsdag.methods.exact.solving import solve_model
from hsdag.methods.incumbent import Limits
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.search.options import SolveOptions
from hsdag.solving.solve import solve

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.hsdag.methods.exact.exact_reference import BruteForce, random_problem

TOLERANCE = {"cpsat": 1e-6, "milp": 1e-5}
METHODS = ("cpsat", "milp", "milp-split")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first problem")
    parser.add_argument("--ops", type=int, default=9)
    parser.add_argument("--placers", type=int, default=1, help="0 leaves the placers out")
    options = parser.parse_args()
    worst, spent_s = dict.fromkeys(TOLERANCE, 0.0), dict.fromkeys(("brute force", *TOLERANCE), 0.0)
    wrong, longer = 0, dict.fromkeys(METHODS, 0)
    for seed in range(options.first, options.first + options.problems):
        rng = np.random.default_rng(seed + 1000)
        problem = random_problem(seed, int(rng.integers(2, options.ops + 1)), int(rng.integers(1, 4)))
        best_s = _timed(spent_s, "brute force", lambda p=problem: BruteForce(p).makespan_s())
        found = {
            "cpsat": _timed(spent_s, "cpsat", lambda p=problem: _cpsat_s(p)),
            "milp": _timed(spent_s, "milp", lambda p=problem: _milp_s(p)),
        }
        for name, seconds in found.items():
            worst[name] = max(worst[name], abs(seconds - best_s) / max(best_s, 1.0))
        for method in METHODS if options.placers else ():
            verdict = _placer(problem, method, best_s)
            longer[method] += verdict == "longer"
            wrong += verdict == "wrong"
    print(f"{options.problems} problems of 2 to {options.ops} ops and 1 to 3 devices, seeds from {options.first}")
    for name, deviation in worst.items():
        print(f"{name}: largest relative deviation from brute force {deviation:.1e} (bar {TOLERANCE[name]:.0e})")
    print("seconds: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in spent_s.items()))
    if options.placers:
        print(f"answers below the optimum, or bounds above it: {wrong} (bar 0)")
        print("simulated answers above the optimum of all schedules: " + str(longer))
    return int(wrong > 0 or any(worst[name] > bar for name, bar in TOLERANCE.items()))


def _timed(spent_s: dict[str, float], name: str, call) -> float:  # noqa: ANN001
    begin = time.perf_counter()
    value = call()
    spent_s[name] += time.perf_counter() - begin
    return value


def _cpsat_s(problem: ScheduleProblem) -> float:
    model = IntervalModel(Formulation(problem), generous_horizon_s(problem))
    answer = solve_model(model, Limits(60.0, 1))
    return answer.value * model.ticks.length_s if answer.value is not None else np.inf


def _milp_s(problem: ScheduleProblem) -> float:
    model = MilpModel(Formulation(problem), generous_horizon_s(problem))
    answer = solve_linear(model.linear, Limits(60.0, 1))
    return float(answer.solution[model.makespan]) * model.unit_s if answer.solution is not None else np.inf


def _placer(problem: ScheduleProblem, method: str, best_s: float) -> str:
    solution = solve(problem, make_placer(method), SolveOptions(method, budget_s=20.0))
    value_s, bound_s = solution.value_s, solution.lower_bound_s
    if value_s is None or value_s < best_s * (1 - 1e-9) or bound_s > best_s * (1 + 1e-9):
        print(f"{problem.num_ops} ops, {method}: answer {value_s}, bound {bound_s}, optimum {best_s}")
        return "wrong"
    return "longer" if value_s > best_s * (1 + 1e-6) else "equal"


if __name__ == "__main__":
    sys.exit(main())
