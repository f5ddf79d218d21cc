"""Transfer: DOPPLER's policy trained on one problem and moved to another, as it is and after some episodes there."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hsdag.commands.compare import run_once
from hsdag.commands.reproducing.base import Effort, Ours, Recipe
from hsdag.commands.reproducing.searches import Search, SearchTable, summary
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import problem_of
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

if TYPE_CHECKING:
    from hsdag.placers.learned.doppler import DopplerPlacer

SHOTS = {"zero-shot": 0, "2k-shot": 2000, "4k-shot": 4000}
"""Episodes on the problem that the policy is moved to."""
SOURCE_EPISODES = 4000
"""Episodes on the problem that it is trained on (section 6.1, ChainMM and FFNN)."""


@dataclass(frozen=True)
class TransferTable(Recipe):
    """A table of searches with columns of SHOTS; ``source`` is the problem of a row that the policy is trained on."""

    source: Callable[[str], ScheduleProblem]
    others: SearchTable

    @property
    def about(self) -> str:  # type: ignore[override]
        """What differs from the paper."""
        return (
            f"{self.others.about} The policy is trained on the first problem in the budget of a search, by at most "
            f"{SOURCE_EPISODES} plans; zero-shot is its most probable plan, not the best of several."
        )

    @property
    def controls(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the other searches."""
        return self.others.controls

    def row(self, name: str, columns: Sequence[str], effort: Effort, watcher: Watcher) -> Iterator[tuple[str, Ours]]:
        """Figures of a row: transfers first, then the other searches."""
        shots = [column for column in columns if column in SHOTS]
        with tempfile.TemporaryDirectory(prefix="hsdag-") as folder:
            paths = [Path(folder) / f"{seed}.safetensors" for seed in range(effort.num_seeds)] if shots else []
            for seed, path in enumerate(paths):
                watcher.on_phase(f"{name}: training with seed {seed}")
                _train(self.source(name), effort, seed, path, watcher)
            for column in shots:
                watcher.on_phase(f"{name}: {column}")
                found = self._shot(self.others.problem(name), SHOTS[column], paths, effort, watcher)
                if watcher.should_stop():
                    return
                yield column, found
        yield from self.others.row(name, [column for column in columns if column not in SHOTS], effort, watcher)

    def _shot(
        self, problem: ScheduleProblem, episodes: int, paths: Sequence[Path], effort: Effort, watcher: Watcher
    ) -> Ours:
        options, begin_s = SolveOptions("doppler", budget_s=effort.budget_s), time.monotonic()
        if episodes == 0:
            values = [most_probable_s(problem, path, seed) for seed, path in enumerate(paths)]
            return Ours.over([self.others.shown(value) for value in values], elapsed_s=time.monotonic() - begin_s)
        runs = [
            run_once(problem, replace(options, seed=seed, changes={"initial": str(path), "teacher_updates": "0"},
                                      max_evaluations=min(episodes, effort.max_evaluations or episodes)), watcher)
            for seed, path in enumerate(paths)
        ]  # fmt: skip
        return summary(Search("doppler"), runs, self.others.shown)


def _train(problem: ScheduleProblem, effort: Effort, seed: int, path: Path, watcher: Watcher) -> None:
    """Train a policy on a problem and write it."""
    most = min(SOURCE_EPISODES, effort.max_evaluations or SOURCE_EPISODES)
    options = SolveOptions("doppler", budget_s=effort.budget_s, max_evaluations=most, seed=seed)
    placer: DopplerPlacer = options.placer()  # type: ignore[assignment]
    solve(problem, placer, options, Watcher(should_stop=watcher.should_stop))
    placer.save(path)


def most_probable_s(problem: ScheduleProblem, path: Path, seed: int) -> float:
    """Simulated seconds of the most probable plan of a policy file on a problem."""
    import torch

    placer: DopplerPlacer = SolveOptions("doppler", changes={"initial": str(path)}).placer()  # type: ignore[assignment]
    units, generator = problem_of(problem), torch.Generator().manual_seed(seed)
    plan = placer.policy(units, generator).best(generator).plan
    evaluator = ScheduleEvaluator(problem, units.semantics, unit_of_op=units.units.partition.labels)
    return evaluator.evaluate([plan])[0].value
