"""How soon auto with learned rules reaches what it reaches without one in --seconds; all plans are simulated.

For every problem, auto without rules searches with one seed for so long. The time in which it has that value with
another seed and rules is compared with the time in which it has it with that seed and without rules, which
is the control: what is found late by one seed may be found early by another. A search that does not get there counts
with all its seconds, and is counted. Bar: the mean time with rules is at most half of --seconds.

    python benchmarks/policy_start.py [--policy FILE] [--graphs 100] [--other-graphs 50] [--seconds 10] [--folder KEPT]
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from machine import machine
from policies import Graph, add_options, cached, graphs, mean

from hsdag.evaluators.recording import Budget, RecordingEvaluator
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.placers.incumbent import LEAST_GAIN, Limits
from hsdag.placers.registry import make_placer
from hsdag.policies import SHIPPED
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.simulator import Semantics

WITHOUT = {"without": "rules"}
BAR = 0.5


def search(
    problem: ScheduleProblem, changes: Mapping[str, str], seed: int, seconds: float, target: float = 0.0
) -> tuple[float, float]:
    """The best value of a search that ends at ``target`` or after so many seconds, and when it had that value."""
    units = problem_of(problem)
    placer = make_placer("auto", changes=changes, is_cheap=True)
    placer.prepare(units, takes_order=True)
    evaluator = ScheduleEvaluator(problem, Semantics(), unit_of_op=units.units.partition.labels)

    def is_there() -> bool:
        return bool(recorder.best()) and recorder.best()[0].score.value <= target * (1 + LEAST_GAIN)

    recorder = RecordingEvaluator(evaluator, Budget(seconds), should_stop=is_there)
    placer.search(units, recorder, Limits(seconds, seed=seed))
    best = next(iter(recorder.best()), None)
    return (np.inf, seconds) if best is None else (best.score.value, best.elapsed_s)


def reached_s(problem: ScheduleProblem, changes: Mapping[str, str], seconds: float, target: float) -> dict[str, Any]:
    """When a search with the other seed reached the target, and whether it did."""
    value, after_s = search(problem, changes, 1, seconds, target)
    there = value <= target * (1 + LEAST_GAIN)
    return {"s": after_s if there else seconds, "there": there}


def without(problem: ScheduleProblem, seconds: float) -> dict[str, Any]:
    """What auto reaches without a policy, when, and how soon with another seed."""
    value, after_s = search(problem, WITHOUT, 0, seconds)
    return {"value": value, "s": after_s, "control": reached_s(problem, WITHOUT, seconds, value)}


def compare(graph: Graph, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """A problem without and with the policy."""
    problem, digest = graph.problem, hashlib.sha256(options.policy.read_bytes()).hexdigest()[:12]
    kept, name, seconds = options.folder, f"{graph.name}-{options.seconds:g}s", options.seconds
    known = cached(kept, f"start-{name}", lambda: without(problem, seconds))
    begun = {} if options.policy == SHIPPED else {"initial": str(options.policy)}
    return known, cached(kept, f"{digest}-{name}", lambda: reached_s(problem, begun, seconds, known["value"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    options = parser.parse_args()
    print(machine())
    chosen = graphs(options)
    search(chosen[0].problem, {}, 0, 1.0)  # compiles
    own, control, policy = [], [], []
    for graph in chosen:
        known, with_policy = compare(graph, options)
        own.append(known["s"])
        control.append(known["control"])
        policy.append(with_policy)
        print(
            f"{graph.name:60s} best at {known['s']:6.2f} s; by another seed {control[-1]['s']:6.2f} s, "
            f"with the policy {policy[-1]['s']:6.2f} s",
            flush=True,
        )
    for title, found in (("control, without the policy", control), ("with the policy", policy)):
        there = sum(each["there"] for each in found)
        seconds = [each["s"] for each in found]
        print(f"{title}: {mean(seconds)} s in the mean, there on {there} of {len(found)} problems")
    share = float(np.mean([each["s"] for each in policy])) / options.seconds
    over = float(np.mean([each["s"] for each in policy])) / float(np.mean([each["s"] for each in control]))
    print(f"the first seed had its best after {mean(own)} s")
    print(f"auto with the policy takes {share:.2f} of the time (bar {BAR}), {over:.2f} of the control's")
    return 0 if share <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
