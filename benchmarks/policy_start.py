"""How soon auto with learned rules is as good as without them after --seconds; all plans are simulated.

Auto searches every problem three times for so long: twice without rules, with two seeds, and with rules. What a search
has found by then is compared with what the two had in the end, in the geometric mean of them and over problems; those
two come to 1 at their end, which is the control. The bar is that the search with rules is at 1 after half of --seconds.
Printed beside it is the mean time until searches of the second seed have the value of the first one, to the last digit;
one that never has it counts with all its seconds.

    python benchmarks/policy_start.py [--policy FILE] [--graphs 100] [--other-graphs 50] [--seconds 10] [--folder KEPT]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from machine import machine
from policies import Graph, add_options, cached, graphs, mean

from hsdag.evaluators.base import SearchStopped
from hsdag.evaluators.recording import Budget, Event, RecordingEvaluator
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.ir.graph import FloatArray
from hsdag.placers.incumbent import LEAST_GAIN, Limits
from hsdag.placers.registry import make_placer
from hsdag.policies import SHIPPED
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.simulator import Semantics

WITHOUT = {"without": "rules"}
BAR = 0.5
MOST = 4.0
"""What a value counts at most, over those it is compared with."""
STEPS = 1000
SHOWN = [10, 50, 100, 250, 500, 750, 1000]


Course = list[tuple[float, float]]
"""Seconds and the best value found by then, whenever it became better."""


def search(problem: ScheduleProblem, changes: Mapping[str, str], seed: int, seconds: float) -> Course:
    """The course of a search by auto."""
    units = problem_of(problem)
    placer = make_placer("auto", changes=changes, is_cheap=True)
    placer.prepare(units, takes_order=True)
    evaluator = ScheduleEvaluator(problem, Semantics(), unit_of_op=units.units.partition.labels)
    course: Course = []

    def note(event: Event) -> None:
        if event.score.failure is None and (not course or event.score.value < course[-1][1] * (1 - LEAST_GAIN)):
            course.append((event.elapsed_s, event.score.value))

    recorder = RecordingEvaluator(evaluator, Budget(seconds), on_event=note)
    with contextlib.suppress(SearchStopped):
        placer.search(units, recorder, Limits(seconds, seed=seed))
    return course


def compare(graph: Graph, options: argparse.Namespace) -> tuple[Course, Course, Course]:
    """Courses without rules, without them and with another seed, and with them and that seed."""
    problem, digest = graph.problem, hashlib.sha256(options.policy.read_bytes()).hexdigest()[:12]
    kept, name, seconds = options.folder, f"{graph.name}-{options.seconds:g}s", options.seconds
    begun = {} if options.policy == SHIPPED else {"initial": str(options.policy)}
    first, control = (
        cached(kept, f"without-{seed}-{name}", lambda seed=seed: {"course": search(problem, WITHOUT, seed, seconds)})
        for seed in (0, 1)
    )
    with_rules = cached(kept, f"{digest}-1-{name}", lambda: {"course": search(problem, begun, 1, seconds)})
    return first["course"], control["course"], with_rules["course"]


def reached_s(course: Course, value: float, seconds: float) -> float:
    """When a search had a value, all its seconds where it never had."""
    return next((s for s, found in course if found <= value * (1 + LEAST_GAIN)), seconds)


def value_at(course: Course, now_s: float) -> float:
    """What had been found by then; infinite where nothing had."""
    return min((found for s, found in course if s <= now_s), default=np.inf)


def means(courses: Sequence[Course], values: Sequence[float], times_s: FloatArray) -> FloatArray:
    """[T] the geometric mean of what had been found by then over ``values``; MOST where nothing had."""
    found = np.array([[value_at(course, now_s) for now_s in times_s] for course in courses])
    return np.asarray(np.exp(np.log(np.minimum(found / np.array(values)[:, None], MOST)).mean(axis=0)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    options = parser.parse_args()
    print(machine())
    chosen = graphs(options)
    search(chosen[0].problem, {}, 0, 1.0)  # compiles
    courses, seconds = [], options.seconds
    for graph in chosen:
        courses.append(compare(graph, options))
        ends = " ".join(f"{1e3 * value_at(course, seconds):.6g}" for course in courses[-1])
        print(f"{graph.name:60s} ms without rules, by two seeds, and with rules: {ends}", flush=True)
    first, control, rules = zip(*courses, strict=True)
    values = [(value_at(a, seconds) * value_at(b, seconds)) ** 0.5 for a, b in zip(first, control, strict=True)]
    times_s = np.linspace(0.0, seconds, STEPS + 1)
    without, with_rules = means(first + control, values * 2, times_s), means(rules, values, times_s)
    print(f"{'seconds':16s}" + "".join(f"{now_s:9.3g}" for now_s in times_s[SHOWN]))
    for title, each in (("without rules", without), ("with rules", with_rules)):
        print(f"{title:16s}" + "".join(f"{value:9.4f}" for value in each[SHOWN]))
    for title, found in (("without rules", control), ("with rules", rules)):
        there_s = [reached_s(course, value_at(a, seconds), seconds) for course, a in zip(found, first, strict=True)]
        there = sum(s < seconds for s in there_s)
        print(f"{title}: the first search's value after {mean(there_s)} s, on {there} of {len(found)} problems")
    late = np.flatnonzero(with_rules > 1.0 + LEAST_GAIN)
    share = float("inf") if late[-1:] == STEPS else (int(late[-1]) + 1 if len(late) else 0) / STEPS
    print(f"auto with rules is as good as without after {share:.2f} of the time (bar {BAR})")
    return 0 if share <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
