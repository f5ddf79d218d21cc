"""What a policy's plans are worth on problems that it has not seen, as it is; all plans are simulated.

For problems of the families that the policy was trained on, and of others: the most probable plan, and the best of
--draws plans, that one among them, over what auto finds without a policy in --seconds (bars: mean at most 1.15 and
1.10; of other families 1.25 and 1.20); the share of problems on which these are better than the best list heuristic
(bars: 80%, 60%); milliseconds a draw, networks included, of 250 ops (bar: 50). A plan that does not fit into memory
counts like the best single device, or is left out and counted where none fits. Exit status 1 where a bar is missed.

    python benchmarks/zero_shot.py [--policy FILE] [--graphs 100] [--other-graphs 50] [--seconds 10] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from machine import machine
from policies import Graph, add_options, cached, graphs, mean

from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.ir.errors import OptionError
from hsdag.learning.doppler.config import DopplerConfig
from hsdag.learning.policy import first_plans
from hsdag.placers.base import Placer
from hsdag.placers.learned.base import singles_of
from hsdag.placers.learned.doppler import DopplerPlacer
from hsdag.placers.portfolio.auto import LISTS
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.simulator import Semantics
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

BARS = {True: (1.15, 1.10, 0.8), False: (1.25, 1.20, 0.6)}
"""Mean of the most probable plan and of the best draw over auto, and the share better than lists."""
MS_OF_A_DRAW, OPS_OF_A_DRAW = 50.0, 250


class Found(NamedTuple):
    """Values over auto's: of the most probable plan, of the best draw, and of the best list; milliseconds a draw."""

    probable: float
    drawn: float
    listed: float
    ms: float
    ops: int


def rivals(problem: ScheduleProblem, seconds: float) -> dict[str, Any]:
    """Values of auto without a policy, of the lists, and of the best single device, infinite where nothing fits."""
    units = problem_of(problem)
    evaluator = ScheduleEvaluator(problem, Semantics(), unit_of_op=units.units.partition.labels)
    lists = {}
    for method in LISTS:
        try:
            lists[method] = make_placer(method, is_cheap=True).search(units, evaluator).score
        except OptionError:  # not for this problem
            continue
    auto: Placer[Any] = make_placer("auto", changes={"without": "doppler"}, is_cheap=True)
    found = solve(problem, auto, SolveOptions("auto", budget_s=seconds))
    single = min(score.value for score in evaluator.evaluate([Plan(each) for each in singles_of(units)]))
    return {"auto": found.value_s, "lists": lists, "single": single}


def judge(graph: Graph, placer: DopplerPlacer, options: argparse.Namespace) -> Found:
    """A policy's plans beside its rivals'."""
    problem = graph.problem
    known = cached(options.folder, f"{graph.name}-{options.seconds:g}s", lambda: rivals(problem, options.seconds))
    units = problem_of(problem)
    evaluator = ScheduleEvaluator(problem, Semantics(), unit_of_op=units.units.partition.labels)
    begin_s, generator = time.perf_counter(), torch.Generator().manual_seed(graph.number)
    plans = first_plans(placer.policy(units, generator), options.draws, generator)
    ms = 1e3 * (time.perf_counter() - begin_s) / len(plans)
    values = np.minimum([score.value for score in evaluator.evaluate(plans)], known["single"]) / known["auto"]
    listed = min(known["lists"].values()) / known["auto"]
    return Found(float(values[0]), float(values.min()), listed, ms, problem.num_ops)


def show(title: str, found: Sequence[Found], bars: tuple[float, float, float]) -> bool:
    """Print the figures of some problems; whether they meet the bars."""
    fit = [each for each in found if np.isfinite(each.drawn)]
    probable, drawn = [each.probable for each in fit if np.isfinite(each.probable)], [each.drawn for each in fit]
    first = np.mean([each.probable < each.listed for each in found])
    best = np.mean([each.drawn < each.listed for each in found])
    print(
        f"{title}: {len(found)} problems; on {len(found) - len(probable)} the most probable plan does not fit into "
        f"memory, on {len(found) - len(fit)} no plan does\n"
        f"  over auto: most probable plan {mean(probable)} (bar {bars[0]}), best draw {mean(drawn)} (bar {bars[1]}), "
        f"best list {mean([each.listed for each in fit])}\n"
        f"  better than the best list: most probable plan {first:.0%}, best draw {best:.0%} (bar {bars[2]:.0%})"
    )
    return bool(probable and np.mean(probable) <= bars[0] and np.mean(drawn) <= bars[1] and best >= bars[2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--draws", type=int, default=16, help="plans of the policy")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    chosen = graphs(options)
    placer = DopplerPlacer(DopplerConfig(initial=str(options.policy)))
    judge(chosen[0], placer, options)  # compiles
    found = []
    for graph in chosen:
        found.append(judge(graph, placer, options))
        print(f"{graph.name:60s} " + " ".join(f"{name} {value:.3f}" for name, value in found[-1]._asdict().items()),
              flush=True)  # fmt: skip
    kept = []
    for is_trained, bars in BARS.items():
        own = [each for graph, each in zip(chosen, found, strict=True) if graph.is_trained is is_trained]
        if own:
            kept.append(show("Trained families" if is_trained else "Other families", own, bars))
    ms = float(np.mean([each.ms * OPS_OF_A_DRAW / each.ops for each in found]))
    print(f"A draw takes {ms:.2f} ms for {OPS_OF_A_DRAW} ops (bar {MS_OF_A_DRAW:g})")
    return 0 if all(kept) and ms <= MS_OF_A_DRAW else 1


if __name__ == "__main__":
    sys.exit(main())
