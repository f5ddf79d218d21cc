"""Transfer: DOPPLER's policy trained on one problem and moved to another, as it is and after some episodes there.

Legend: N ops.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hsdag.commands.reproducing.base import Effort, Ours, Recipe
from hsdag.commands.reproducing.searches import Search, SearchTable, summary
from hsdag.commands.runs import run_once
from hsdag.commands.workload import build_problem
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.ir.graph import IntArray
from hsdag.learning.policy import first_plans
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import problem_of
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

if TYPE_CHECKING:
    from hsdag.placers.learned.doppler import DopplerPlacer

SHOTS = {"zero-shot": 0, "2k-shot": 2000, "4k-shot": 4000}
"""Episodes on the problem that the policy is moved to."""
UNTRAINED = "untrained"
"""The control of zero-shot: what the policy would do before it has learned anything."""
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
        """Those of the other searches, and zero-shot without training."""
        return (UNTRAINED, *self.others.controls)

    def row(self, name: str, columns: Sequence[str], effort: Effort, watcher: Watcher) -> Iterator[tuple[str, Ours]]:
        """Figures of a row: transfers first, then the other searches."""
        shots = [column for column in columns if column in SHOTS]
        with tempfile.TemporaryDirectory(prefix="hsdag-") as folder:
            paths = [Path(folder) / f"{seed}.safetensors" for seed in range(effort.num_seeds)] if shots else []
            for seed, path in enumerate(paths):
                watcher.on_phase(f"{name}: training with seed {seed}")
                _train(self.source(name), effort, seed, path, watcher)
                if watcher.should_stop():
                    return
            for column in shots:
                watcher.on_phase(f"{name}: {column}")
                found = self._shot(self.others.problem(name), SHOTS[column], paths, effort, watcher)
                if watcher.should_stop():
                    return
                yield column, found
        if UNTRAINED in columns:
            values = [zero_shot_s(self.others.problem(name), None, seed) for seed in range(effort.num_seeds)]
            yield UNTRAINED, Ours.over([self.others.shown(value) for value in values])
        others = [column for column in columns if column not in (*SHOTS, UNTRAINED)]
        yield from self.others.row(name, others, effort, watcher)

    def _shot(
        self, problem: ScheduleProblem, episodes: int, paths: Sequence[Path], effort: Effort, watcher: Watcher
    ) -> Ours:
        begin_s = time.monotonic()
        if episodes == 0:
            values = [zero_shot_s(problem, path, seed) for seed, path in enumerate(paths)]
            return Ours.over([self.others.shown(value) for value in values], elapsed_s=time.monotonic() - begin_s)
        runs = [run_once(problem, _going_on(path, episodes, seed, effort), watcher) for seed, path in enumerate(paths)]
        return summary(Search("doppler"), runs, self.others.shown)


class EdgeCounts(Recipe):
    """Table 10: the rows are SHOTS; where edges lead of a FFNN that a policy of four P100 places on eight V100."""

    about = (
        "Plans are simulated. The policy is trained on FFNN on four P100 in the budget of a search, and moved to eight "
        "V100, devices 0 to 3 being a group; our FFNN has more edges than the paper's."
    )
    kind = "computed"

    def row(self, name: str, columns: Sequence[str], effort: Effort, watcher: Watcher) -> Iterator[tuple[str, Ours]]:
        """Edges of the plan of each seed."""
        problem, begin_s, counts = build_problem("ffnn", "v100x8"), time.monotonic(), []
        with tempfile.TemporaryDirectory(prefix="hsdag-") as folder:
            for seed in range(effort.num_seeds):
                watcher.on_phase(f"{name}: training with seed {seed}")
                path = Path(folder) / f"{seed}.safetensors"
                _train(build_problem("ffnn", "p100x4"), effort, seed, path, watcher)
                if watcher.should_stop():
                    return
                device = _device_after(problem, path, seed, SHOTS[name], effort, watcher)
                if device is None or watcher.should_stop():
                    return
                counts.append(edges_by_link(problem, device))
        elapsed_s = (time.monotonic() - begin_s) / len(columns)
        for column in columns:
            yield column, Ours.over([float(each[column]) for each in counts], elapsed_s=elapsed_s)


def edges_by_link(problem: ScheduleProblem, device: IntArray) -> dict[str, int]:
    """Edges of a placement [N] on two groups of GPUs, the first half of the devices and the others."""
    ends = device[problem.edge_src], device[problem.edge_dst]
    is_group = np.equal(*(end >= problem.num_devices // 2 for end in ends))
    is_device = np.equal(*ends)
    counts = {"across groups": ~is_group, "same group": is_group & ~is_device, "same GPU": is_device}
    return {column: int(where.sum()) for column, where in counts.items()}


def _device_after(
    problem: ScheduleProblem, path: Path, seed: int, episodes: int, effort: Effort, watcher: Watcher
) -> IntArray | None:
    """[N] what a policy file places on a problem, as it is or after some episodes."""
    if episodes == 0:
        return zero_shot_plans(problem, path, seed)[0].placement[problem_of(problem).units.partition.labels]
    options = _going_on(path, episodes, seed, effort)
    return solve(problem, options.placer(), options, Watcher(should_stop=watcher.should_stop)).device


def _going_on(path: Path, episodes: int, seed: int, effort: Effort) -> SolveOptions:
    """A search of so many episodes that begins with a policy file."""
    changes = {"initial": str(path), "teacher_updates": "0"}
    most = min(episodes, effort.max_evaluations or episodes)
    return SolveOptions("doppler", budget_s=effort.budget_s, max_evaluations=most, seed=seed, changes=changes)


def _train(problem: ScheduleProblem, effort: Effort, seed: int, path: Path, watcher: Watcher) -> None:
    """Train a policy on a problem and write it; an interrupt leaves none, which the caller notices."""
    most = min(SOURCE_EPISODES, effort.max_evaluations or SOURCE_EPISODES)
    options = SolveOptions(
        "doppler",
        budget_s=effort.budget_s,
        max_evaluations=most,
        seed=seed,
        changes={"own_scores": "false"},  # which would stay behind
    )
    placer: DopplerPlacer = options.placer()  # type: ignore[assignment]
    solve(problem, placer, options, Watcher(should_stop=watcher.should_stop))
    if not watcher.should_stop():
        placer.save(path)


def zero_shot_plans(problem: ScheduleProblem, path: Path | None, seed: int, num: int = 1) -> list[Plan]:
    """The most probable plan of a policy file on a problem, or of none, and draws until there are so many plans."""
    import torch

    changes = {} if path is None else {"initial": str(path)}
    placer: DopplerPlacer = SolveOptions("doppler", changes=changes).placer()  # type: ignore[assignment]
    generator = torch.Generator().manual_seed(seed)
    return first_plans(placer.policy(problem_of(problem), generator), num, generator)


def zero_shot_s(problem: ScheduleProblem, path: Path | None, seed: int, num: int = 1) -> float:
    """Simulated seconds of the best of these plans, infinite where none is within memory."""
    units, plans = problem_of(problem), zero_shot_plans(problem, path, seed, num)
    evaluator = ScheduleEvaluator(problem, units.semantics, unit_of_op=units.units.partition.labels)
    return min(score.value for score in evaluator.evaluate(plans))
