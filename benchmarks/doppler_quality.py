"""Whether DOPPLER is better than the methods it was published against, and near ``auto``; all figures are simulated.

Workloads: ChainMM, FFNN, Llama-block and Llama-layer on four P100. For every method the mean of the makespans over
--seeds, their deviation and the gap of the mean to the largest lower bound; learned methods have --seconds each, and
``auto``, once per workload, has --auto-seconds. Bars: DOPPLER's mean is below those of CRITICAL PATH (best of 50),
Placeto, GDP, RNN and ENUMERATIVEOPTIMIZER on every workload, and within 5% of ``auto`` on at least three of four.
Exit status 1 where a bar is missed. --ablation compares DOPPLER with variants of itself instead.

    python benchmarks/doppler_quality.py [--seeds 5] [--seconds 20] [--auto-seconds 60] [--only NAME,...]
        [--rivals NAME,...] [--ablation]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from machine import machine

from hsdag.commands.workload import build_problem
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.search.options import SolveOptions
from hsdag.search.solution import relative_gap
from hsdag.search.solve import solve

WORKLOADS = ("chainmm", "ffnn", "llama-block", "llama-layer")
MOST_OVER_AUTO = 1.05
LEAST_NEAR_AUTO = 0.75
"""Share of the workloads on which DOPPLER has to be near ``auto``."""


@dataclass(frozen=True)
class Entry:
    """A method, and changes of its hyper-parameters."""

    method: str
    changes: Mapping[str, str] = field(default_factory=dict)


DOPPLER, AUTO = "doppler", "auto"
RIVALS = {
    "critical-path": Entry("critical-path"),
    "enumerative": Entry("enumerative"),
    "placeto": Entry("placeto"),
    "gdp": Entry("gdp"),
    "rnn": Entry("rnn"),
}
FROM_NOTHING = {"begins_as": "nothing"}
VARIANTS = {
    "learning off": Entry(DOPPLER, {"learning_rate": "1e-100", "last_learning_rate": "0"}),
    "- scores of single ops": Entry(DOPPLER, {"own_scores": "false"}),
    "- best and worst of 64 (all of 16)": Entry(DOPPLER, {"plans_per_update": "16"}),
    "- beginning as CRITICAL PATH": Entry(DOPPLER, FROM_NOTHING),
    "stage I: 50 updates of imitation": Entry(DOPPLER, {**FROM_NOTHING, "teacher_updates": "50"}),
    "SEL alone": Entry(DOPPLER, {"learns_devices": "false"}),
    "PLC alone": Entry(DOPPLER, {"learns_order": "false"}),
    "- self-imitation": Entry(DOPPLER, {"elites": "0"}),
    "+ expert iteration": Entry(DOPPLER, {"expert_every": "20"}),
    "the expert alone (annealing)": Entry("sa"),
}


@dataclass(frozen=True)
class Outcome:
    """Makespans of a method's searches, by seed, and the largest bound that one of them proved."""

    values_s: list[float]
    bound_s: float
    plans: float

    @property
    def mean_s(self) -> float:
        """Over seeds."""
        return float(np.mean(self.values_s))


def outcome(problem: ScheduleProblem, entry: Entry, seconds: float, seeds: int) -> Outcome:
    """Search with every seed."""
    found = [
        solve(
            problem,
            make_placer(entry.method, changes=entry.changes, is_cheap=True),
            SolveOptions(entry.method, budget_s=seconds, seed=seed),
        )
        for seed in range(seeds)
    ]
    values = [each.value_s for each in found if each.value_s is not None]
    plans = float(np.mean([each.num_evaluations for each in found]))
    return Outcome(values, max(each.lower_bound_s for each in found), plans)


def show(name: str, found: Outcome, bound_s: float) -> None:
    """A line of the table."""
    deviation_s = float(np.std(found.values_s, ddof=1)) if len(found.values_s) > 1 else 0.0
    gap = relative_gap(found.mean_s, bound_s)
    figures = f"{found.mean_s * 1e3:9.3f} {deviation_s * 1e3:7.3f} {min(found.values_s) * 1e3:9.3f} {gap:7.2%}"
    print(f"  {name:34s} {figures} {found.plans:9.0f}", flush=True)


def table(name: str, entries: Mapping[str, Entry], options: argparse.Namespace) -> dict[str, Outcome]:
    """Print and return what methods find on a workload; ``auto`` comes first, for its bound is the best."""
    problem = build_problem(name, "p100x4")
    print(f"{name}: {problem.num_ops} ops; ms: mean, deviation, best; gap to the bound; plans", flush=True)
    found = {AUTO: outcome(problem, Entry(AUTO), options.auto_seconds, 1)}
    show(AUTO, found[AUTO], found[AUTO].bound_s)
    for each, entry in {DOPPLER: Entry(DOPPLER), **entries}.items():
        found[each] = outcome(problem, entry, options.seconds, options.seeds)
        show(each, found[each], found[AUTO].bound_s)
    return found


def main() -> int:
    """Print a table per workload, and which bars hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="searches per method")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a search by a learned method")
    parser.add_argument("--auto-seconds", type=float, default=60.0, help="of auto's one search")
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, with commas between them")
    parser.add_argument("--rivals", default=",".join(RIVALS), help="methods, with commas between them")
    parser.add_argument("--ablation", action="store_true", help="variants of DOPPLER in place of its rivals")
    options = parser.parse_args()
    rivals = {name: RIVALS[name] for name in options.rivals.split(",")}
    entries = VARIANTS if options.ablation else rivals
    print(machine())
    found = {name: table(name, entries, options) for name in options.only.split(",")}
    if options.ablation:
        return 0
    near = 0
    better = True
    for name, outcomes in found.items():
        own = outcomes[DOPPLER].mean_s
        ahead = [rival for rival in rivals if outcomes[rival].mean_s <= own]
        over = own / outcomes[AUTO].mean_s
        near, better = near + (over <= MOST_OVER_AUTO), better and not ahead
        print(f"{name}: {over:.3f} of auto; not better than {', '.join(ahead) or 'none'}")
    is_near = near >= LEAST_NEAR_AUTO * len(found)
    print(f"better than every rival everywhere: {better}; within 5% of auto on {near} of {len(found)}: {is_near}")
    return 0 if better and is_near else 1


if __name__ == "__main__":
    sys.exit(main())
