"""What the shipped rules are worth on problems that they have not seen; all plans are simulated.

Problems of the families that they were trained on and of others, over what ``auto`` finds without rules. Bars for the
best of 16 draws: mean at most 1.10 (other families 1.20), and better than the best list scheduler on 80% (60%) of the
problems. ``--untrained`` is the control: as many rules drawn at random around the one from which training begins. Exit
status 1 where a bar is missed.

    python benchmarks/learned_quality.py [--graphs 100] [--other-graphs 50] [--seconds 10] [--untrained]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from machine import machine
from scipy import stats

from hsdag.ir.errors import OptionError
from hsdag.methods.lists.rules import METHOD as RULES
from hsdag.methods.lists.rules import SHIPPED, SPREAD, WEIGHTS, RulesOptions, RulesPlacer, changed, read_rules
from hsdag.methods.memory_repair import repaired
from hsdag.methods.portfolio.auto import LISTS
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.policy_file import read_policy, write_policy
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.solving.solve import solve
from hsdag.sources import find_family, list_families
from hsdag.training.rules import first_rule

FIRST = 2_000_000
"""Problems from this number on are never trained on."""
DRAWS, ROUNDS, UNTRAINED_SPREAD = 16, 2, 0.5
BARS = {True: (1.10, 0.8), False: (1.20, 0.6)}


def mean(values: Sequence[float]) -> str:
    """The mean and its 95% interval by Student's t."""
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{np.mean(values):.3f} ±{half:.3f}"


def drawn(problem: ScheduleProblem, policy: Path, number: int, seconds: float) -> tuple[float, float, float]:
    """Over ``auto``: the first draw, the best of all draws, the best list scheduler; infinite where nothing fits."""
    units, how = problem_of(problem), Semantics()
    evaluator = ScheduleEvaluator(problem, how, unit_of_op=units.units.partition.labels)
    listed = []
    for method in LISTS:
        try:
            listed.append(make_placer(method, is_cheap=True).search(units, evaluator).score)
        except OptionError:  # not for this problem
            continue
    without = make_placer("auto", changes={"without": "rules"}, is_cheap=True)
    auto_s = solve(problem, without, SolveOptions("auto", budget_s=seconds)).value_s
    assert auto_s is not None
    assert units.costs is not None
    rules = RulesPlacer(RulesOptions(DRAWS * ROUNDS, SPREAD, str(policy)))
    plans = [Plan(repaired(units.costs, p.placement, how), p.order) for p in rules.proposals(units, number)]
    values = np.array([score.value for score in evaluator.evaluate(plans)]).reshape(DRAWS, -1).min(axis=1) / auto_s
    return float(values[0]), float(values.min()), min(listed) / auto_s


def judge(given: argparse.Namespace) -> bool:
    """Print a line for both sorts of families; whether the bars hold."""
    policy, folder = SHIPPED, tempfile.mkdtemp()
    trained = str(read_policy(policy, "rules").card["family"]).split(",")
    if given.untrained:
        rules = changed(np.tile(first_rule(), (len(read_rules(policy)), 1)), UNTRAINED_SPREAD, np.random.default_rng(0))
        policy = Path(folder) / "untrained.safetensors"
        write_policy(policy, {WEIGHTS: rules}, {"method": RULES})
    others, kept = [each.name for each in list_families() if each.name not in trained], True
    for is_trained, names, count in ((True, trained, given.graphs), (False, others, given.other_graphs)):
        family = find_family(",".join(names))
        found = [drawn(family.problem(FIRST + k), policy, k, given.seconds) for k in range(count)]
        fits = [each for each in found if np.isfinite(each[1])]
        share = float(np.mean([best < listed * (1 - 1e-9) for _, best, listed in fits]))
        firsts, bests = [each[0] for each in fits if np.isfinite(each[0])], [each[1] for each in fits]
        print(
            f"{'trained' if is_trained else 'other'} families, {len(fits)} of {count} problems fit, SIMULATED, over "
            f"auto: first draw {mean(firsts)}, best of {DRAWS} draws {mean(bests)}; better than lists on {share:.0%}",
            flush=True,
        )
        kept &= np.mean(bests) <= BARS[is_trained][0] and share >= BARS[is_trained][1]
    return bool(kept)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a search of auto")
    parser.add_argument("--graphs", type=int, default=100)
    parser.add_argument("--other-graphs", type=int, default=50)
    parser.add_argument("--untrained", action="store_true")
    given = parser.parse_args()
    print(machine())
    return 0 if judge(given) else 1


if __name__ == "__main__":
    sys.exit(main())
