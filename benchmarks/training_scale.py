"""How the training of rules scales with workers: measured with processes of this machine, simulated with more.

Every training begins with the same seed, and has to end with the same rules as one process without workers, which the
speed-ups are over. The simulation takes from that process how long each judging of an exercise took, and what was not
judging; and from one worker what a job costs beside, and how much of that the training process computes. Jobs are then
handed out as the pool does it, to workers with a processor each. It knows no network, and no memory that processors
share. Exit status 1 where the rules differ, or three workers with a processor each are less than twice as fast as one.

    python benchmarks/training_scale.py [--workers 1 2 3 4] [--simulated 8 16 32 64] [--problems 100] [--updates 20]
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from machine import machine

sys.path.insert(0, str(Path(__file__).parents[1]))
from hsdag.commands.exercises import Exercise, Exercises, parts_of
from hsdag.commands.families import find_family
from hsdag.commands.lessons import lessons_of
from hsdag.commands.train_rules import RuleTraining, first_rule
from hsdag.fleet.pool import Pool
from hsdag.fleet.workers import make_pool
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.runtime.platforms.usable_cpus import usable_cpus

BAR = 2.0
"""How many times as fast as one worker three have to be."""
ROUND_TRIPS = 30


class Nowhere:
    """Keeps no state."""

    def save(self, *_: object) -> None:
        """Forget it."""

    def load(self) -> None:
        """Nothing."""


class Timed:
    """Exercises that are judged here; ``calls_s`` are the seconds of each, by what is judged at once."""

    def __init__(self, exercises: Sequence[Exercise]) -> None:
        self._exercises = Exercises(exercises)
        self.calls_s: list[list[float]] = []

    def __len__(self) -> int:
        return len(self._exercises)

    def values(self, rules: Sequence[FloatArray], which: IntArray, check: Callable[[], None]) -> FloatArray:
        """As Exercises says."""
        columns = []
        self.calls_s.append([])
        for i in which:
            begin_s = time.perf_counter()
            columns.append(self._exercises.values(rules, np.array([i]), check))
            self.calls_s[-1].append(time.perf_counter() - begin_s)
        return np.concatenate(columns, axis=1)


@dataclass(frozen=True)
class Costs:
    """What a job costs beside its judging, and the part of it that the training process computes."""

    job_s: float
    dispatch_s: float


def trained(
    exercises: Sequence[Exercise], arguments: argparse.Namespace, pool: Pool | None, timed: Timed | None = None
) -> tuple[RuleTraining, float]:
    """A training, and the seconds that it took once the workers are there and have the exercises."""
    training = RuleTraining(exercises, arguments.rules, arguments.seed, pool=pool)
    if timed is not None:
        training._exercises = timed
    training._judged([first_rule()], np.arange(len(exercises)))
    if timed is not None:
        timed.calls_s.clear()
    begin_s = time.perf_counter()
    training.run(arguments.updates, Nowhere())
    return training, time.perf_counter() - begin_s


def costs_of(exercises: Sequence[Exercise], pool: Pool) -> Costs:
    """Measured with single jobs, one after another."""
    there, here = Exercises(exercises, pool), Exercises(exercises)
    rounds: list[tuple[float, float]] = []
    for judges in (here, there):
        for number in range(ROUND_TRIPS + 1):
            begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
            judges.values([first_rule()], np.arange(1), lambda: None)
            if number:  # the first one starts the worker
                rounds.append((time.perf_counter() - begin_s, time.process_time() - begin_cpu_s))
    inside_s = median(wall_s for wall_s, _ in rounds[:ROUND_TRIPS])
    job_s = median(wall_s for wall_s, _ in rounds[ROUND_TRIPS:]) - inside_s
    return Costs(max(job_s, 0.0), median(cpu_s for _, cpu_s in rounds[ROUND_TRIPS:]))


def makespan_s(parts_s: Sequence[float], num_workers: int, costs: Costs) -> float:
    """When the last job ends: each goes to the worker that is free first, once the training process has sent it."""
    free_s = [0.0] * num_workers
    for number, part_s in enumerate(parts_s, 1):
        begin_s = max(heapq.heappop(free_s), number * costs.dispatch_s)
        heapq.heappush(free_s, begin_s + part_s + max(costs.job_s - costs.dispatch_s, 0.0))
    return max(free_s)


def simulated_s(calls_s: Sequence[Sequence[float]], serial_s: float, num_workers: int, costs: Costs) -> float:
    """Seconds of a training with so many workers."""
    total_s = serial_s
    for call_s in calls_s:
        parts = parts_of(np.arange(len(call_s)), num_workers)
        total_s += makespan_s([float(np.array(call_s)[part].sum()) for part in parts], num_workers, costs)
    return total_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 3, 4])
    parser.add_argument("--simulated", type=int, nargs="*", default=[1, 2, 3, 4, 8, 16, 32, 64])
    parser.add_argument("--family", default="random-wired,transformer,chain,nmt")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--rules", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(machine())
    lessons = lessons_of(find_family(arguments.family), range(arguments.problems), None, lambda: None, None)
    exercises = [Exercise(lesson.costs, lesson.evaluator) for lesson in lessons]
    timed = Timed(exercises)
    alone, alone_s = trained(exercises, arguments, None, timed)
    judging_s = sum(map(sum, timed.calls_s))
    print(
        f"{arguments.problems} problems, {arguments.rules} rules, {arguments.updates} updates; this process may use "
        f"{usable_cpus()} processors. Without workers: {arguments.updates / alone_s:.2f} updates a second, of which "
        f"{judging_s / alone_s:.2%} is judging"
    )
    found_s, is_same = {}, True
    for count in arguments.workers:
        with make_pool(f"local:{count}") as pool:
            again, found_s[count] = trained(exercises, arguments, pool)
        same = bool(np.array_equal(again.rules, alone.rules))
        is_same &= same
        _tell(count, "measured", found_s[count], alone_s, arguments.updates, "" if same else ", OTHER RULES")
    with make_pool("local:1") as pool:
        costs = costs_of(exercises, pool)
    print(f"a job costs {1e3 * costs.job_s:.1f} ms beside its judging, {1e3 * costs.dispatch_s:.1f} ms of them here")
    for count in arguments.simulated:
        took_s = simulated_s(timed.calls_s, alone_s - judging_s, count, costs)
        _tell(count, "simulated", took_s, alone_s, arguments.updates)
    print("the rules are the same with all numbers of workers" if is_same else "THE RULES DIFFER")
    if usable_cpus() < 3 or not {1, 3} <= found_s.keys():
        print(f"bar of {BAR:g} times as many updates with three workers: not measured, for want of processors or runs")
        return 0 if is_same else 1
    ratio = found_s[1] / found_s[3]
    print(f"three workers over one: {ratio:.2f} (bar {BAR:g})")
    return 0 if is_same and ratio >= BAR else 1


def _tell(count: int, how: str, took_s: float, alone_s: float, updates: int, note: str = "") -> None:
    if how == "measured" and count > usable_cpus():
        note = ", more than processors" + note
    speed = f"{updates / took_s:8.2f} updates a second, {alone_s / took_s:6.2f} times"
    print(f"{count:4d} workers, {how}: {speed}{note}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
