"""What learned rules are worth on problems that they have not seen; all plans are simulated.

For problems of the families that the rules were trained on, and of others: the first draw, which is the best plan of
--rounds, and the best of --draws, over what auto finds without rules in --seconds (bars: mean at most 1.15 and 1.10; of
other families 1.25 and 1.20); the share of problems on which these are better than the best list heuristic (bars: 80%,
60%), or no worse; milliseconds a draw, simulation included, of 250 ops (bar: 50). --untrained judges as many rules
drawn at random around the one from which training begins, which is the control. A plan that does not fit into memory
counts like the best single device, or is left out and counted where none fits. Exit status 1 where a bar is missed.

    python benchmarks/zero_shot.py [--policy FILE] [--graphs 100] [--other-graphs 50] [--seconds 10] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from machine import machine
from policies import Graph, add_options, cached, graphs, mean

from hsdag.commands.train_rules import first_rule
from hsdag.evaluators.policy_file import write_policy
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.ir.errors import OptionError
from hsdag.placers.base import Placer
from hsdag.placers.incumbent import LEAST_GAIN
from hsdag.placers.learned.base import singles_of
from hsdag.placers.lists.rules import METHOD as RULES
from hsdag.placers.lists.rules import SPREAD, WEIGHTS, RulesOptions, RulesPlacer, changed, read_rules
from hsdag.placers.memory_repair import repaired
from hsdag.placers.portfolio.auto import LISTS
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.simulator import Semantics
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

BARS = {True: (1.15, 1.10, 0.8), False: (1.25, 1.20, 0.6)}
"""Mean of the first draw and of the best draw over auto, and the share better than lists."""
MS_OF_A_DRAW, OPS_OF_A_DRAW = 50.0, 250
UNTRAINED_SPREAD = 0.5
"""Of the control, in steps of each weight."""


class Found(NamedTuple):
    """Values over auto's: of the first draw, of the best draw, and of the best list; milliseconds a draw."""

    first: float
    drawn: float
    listed: float
    ms: float
    ops: int


def rivals(problem: ScheduleProblem, seconds: float) -> dict[str, Any]:
    """Values of auto without rules, of the lists, and of the best single device, infinite where nothing fits."""
    units = problem_of(problem)
    evaluator = ScheduleEvaluator(problem, Semantics(), unit_of_op=units.units.partition.labels)
    lists = {}
    for method in LISTS:
        try:
            lists[method] = make_placer(method, is_cheap=True).search(units, evaluator).score
        except OptionError:  # not for this problem
            continue
    auto: Placer[Any] = make_placer("auto", changes={"without": "rules"}, is_cheap=True)
    found = solve(problem, auto, SolveOptions("auto", budget_s=seconds))
    single = min(score.value for score in evaluator.evaluate([Plan(each) for each in singles_of(units)]))
    return {"auto": found.value_s, "lists": lists, "single": single}


def judge(graph: Graph, options: argparse.Namespace) -> Found:
    """The plans of rules beside their rivals'."""
    problem = graph.problem
    known = cached(options.folder, f"{graph.name}-{options.seconds:g}s", lambda: rivals(problem, options.seconds))
    units = problem_of(problem)
    evaluator = ScheduleEvaluator(problem, Semantics(), unit_of_op=units.units.partition.labels)
    assert units.costs is not None
    rules = RulesPlacer(RulesOptions(options.draws * options.rounds, options.spread, str(options.policy)))
    begin_s = time.perf_counter()
    plans = [
        Plan(repaired(units.costs, plan.placement, Semantics()), plan.order)
        for plan in rules.proposals(units, graph.number)
    ]
    values = [score.value for score in evaluator.evaluate(plans)]
    ms = 1e3 * (time.perf_counter() - begin_s) / options.draws
    of_draw = np.fmin.reduce(np.fmin(values, known["single"]).reshape(options.draws, -1), axis=1) / known["auto"]
    listed = min(known["lists"].values()) / known["auto"]
    return Found(float(of_draw[0]), float(of_draw.min()), listed, ms, problem.num_ops)


def show(title: str, found: Sequence[Found], bars: tuple[float, float, float]) -> bool:
    """Print the figures of some problems; whether they meet the bars."""
    fit = [each for each in found if np.isfinite(each.drawn)]
    firsts, drawn = [each.first for each in fit if np.isfinite(each.first)], [each.drawn for each in fit]
    first, best, equal = (
        np.mean([value < each.listed * factor for value, each in pairs])
        for pairs, factor in (
            ([(each.first, each) for each in found], 1 - LEAST_GAIN),
            ([(each.drawn, each) for each in found], 1 - LEAST_GAIN),
            ([(each.drawn, each) for each in found], 1 + LEAST_GAIN),
        )
    )
    print(
        f"{title}: {len(found)} problems; on {len(found) - len(firsts)} the first draw does not fit into "
        f"memory, on {len(found) - len(fit)} no plan does\n"
        f"  over auto: first draw {mean(firsts)} (bar {bars[0]}), best draw {mean(drawn)} (bar {bars[1]}), "
        f"best list, where it fits, {mean([each.listed for each in found if np.isfinite(each.listed)])}\n"
        f"  better than the best list: first draw {first:.0%}, best draw {best:.0%} (bar {bars[2]:.0%}), "
        f"no worse {equal:.0%}"
    )
    return bool(firsts and np.mean(firsts) <= bars[0] and np.mean(drawn) <= bars[1] and best >= bars[2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--draws", type=int, default=16, help="how many there are, for the best of them")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of schedules by all rules that make a draw")
    parser.add_argument("--spread", type=float, default=SPREAD, help="how far the rules of rounds are changed")
    parser.add_argument("--untrained", action="store_true", help="judge what training begins with, changed at random")
    options = parser.parse_args()
    print(machine())
    chosen = graphs(options)
    if options.untrained:
        kept = read_rules(options.policy)
        rules = changed(np.tile(first_rule(), (len(kept), 1)), UNTRAINED_SPREAD, np.random.default_rng(0))
        options.policy = Path(tempfile.mkdtemp()) / "untrained.safetensors"
        write_policy(options.policy, {WEIGHTS: rules}, {"method": RULES})
    judge(chosen[0], options)  # compiles
    found = []
    for graph in chosen:
        found.append(judge(graph, options))
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
