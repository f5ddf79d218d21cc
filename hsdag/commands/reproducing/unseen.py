"""Unseen graphs: policies that are trained on a family and judged on graphs of it that they were not trained on."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hsdag.commands.families import find_family
from hsdag.commands.reproducing.base import Effort, Ours, Recipe
from hsdag.commands.reproducing.transfer import zero_shot_s
from hsdag.commands.runs import run_once
from hsdag.commands.train import UNSEEN, TrainOptions, run_train
from hsdag.evaluators.base import SearchStopped
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions

TESTED = 5
"""Graphs of a family that methods are judged on."""
PROBLEMS, UPDATES_PER_S, EXPERT_SHARE = 20, 20, 0.02
"""Graphs that a policy is trained on; updates for each second of a budget; the share of it for each graph's expert."""
DRAWS = {"zero-shot": 1, "best of 16 draws": 16}
RULES = "learned rules"
METHODS = {
    RULES: "rules",
    "Placeto": "placeto",
    "HEFT": "heft",
    "random draws": "random",
    "hill climber": "ea",
    "auto": "auto",
}


class UnseenGraphs(Recipe):
    """Rows are families; figures are ratios to annealing in the budget of a search, means over TESTED graphs."""

    about = (
        f"Means over {TESTED} graphs of a family, each relative to annealing in the same budget; half of the graphs "
        "limit memory. Zero-shot is the most probable plan of DOPPLER's policy; 'hsdag train' made it of "
        f"{PROBLEMS} other graphs of the family, in {UPDATES_PER_S} updates per second of the budget. Placeto is "
        "trained on the graph at hand; learned rules are those that come with hsdag."
    )
    controls = (RULES, "random draws", "hill climber", "auto")

    def row(self, name: str, columns: Sequence[str], effort: Effort, watcher: Watcher) -> Iterator[tuple[str, Ours]]:
        """Ratios of a family; deviations are over graphs."""
        watcher.on_phase(f"{name}: annealing")
        tests = [find_family(name).problem(UNSEEN + number) for number in range(TESTED)]
        least_s = [_found_s("sa", test, effort, watcher) for test in tests]
        with tempfile.TemporaryDirectory(prefix="hsdag-") as folder:
            path = Path(folder) / "policy.safetensors"
            if any(column in DRAWS for column in columns) and not watcher.should_stop():
                _train(name, path, effort, watcher)
            for column in columns:
                if watcher.should_stop():
                    return
                watcher.on_phase(f"{name}: {column}")
                begin_s = time.monotonic()
                values_s = _values_s(column, tests, path, effort, watcher)
                ratios = [
                    value / least if least < float("inf") else float("inf")
                    for value, least in zip(values_s, least_s, strict=True)
                ]
                yield column, Ours.over(ratios, elapsed_s=time.monotonic() - begin_s, of="graphs")


def _values_s(
    column: str, tests: Sequence[ScheduleProblem], path: Path, effort: Effort, watcher: Watcher
) -> list[float]:
    """Seconds of the column's plans, infinite where it has none for a graph."""
    if column in METHODS:
        return [_found_s(METHODS[column], test, effort, watcher) for test in tests]
    return [zero_shot_s(test, path, 0, DRAWS.get(column, 1)) for test in tests]


def _train(name: str, path: Path, effort: Effort, watcher: Watcher) -> None:
    """A policy of a family; an interrupt leaves none, which the caller notices."""
    updates = max(1, round(UPDATES_PER_S * effort.budget_s))
    options = TrainOptions(name, "doppler", PROBLEMS, updates, EXPERT_SHARE * effort.budget_s, unseen=1)
    watcher.on_phase(f"{name}: hsdag train")
    with contextlib.suppress(SearchStopped):
        run_train(
            options,
            path,
            on_update=lambda done: watcher.on_step(f"update {done.update + 1} of {updates}"),
            should_stop=watcher.should_stop,
        )


def _found_s(method: str, problem: ScheduleProblem, effort: Effort, watcher: Watcher) -> float:
    """Seconds of a search's answer, infinite where it has none."""
    options = SolveOptions(method, budget_s=effort.budget_s, max_evaluations=effort.max_evaluations)
    value_s = run_once(problem, options, watcher).value_s
    return float("inf") if value_s is None else value_s
