"""Training of a policy for reuse: problems of a family, plans of an expert, and what the policy is worth unseen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hsdag.commands.curves import curve_point
from hsdag.commands.families import Family, find_family
from hsdag.evaluators.base import SearchStopped
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.evaluators.state_file import StateFile
from hsdag.ir.errors import OptionError
from hsdag.learning.doppler.config import Beginning, DopplerConfig
from hsdag.learning.doppler.making import policy_card
from hsdag.learning.doppler.pretraining import Lesson, Pretraining, zero_shot
from hsdag.learning.policy_file import write_policy
from hsdag.learning.training import Progress
from hsdag.placers.learned.base import one_thread, singles_of
from hsdag.placers.registry import changed_options, make_placer
from hsdag.reports import CurvePoint
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.simulator import Semantics
from hsdag.search.options import SolveOptions, check_seed
from hsdag.search.solve import solve
from hsdag.version import __version__

UNSEEN = 1_000_000
"""Problems from this number on are never trained on."""


@dataclass(frozen=True)
class TrainOptions:
    """What to train on, and for how long. Raises OptionError for a value out of range.

    ``expert_s`` are seconds of annealing for each problem, whose best plan is imitated. ``changes`` are
    hyper-parameters of DOPPLER by name.
    """

    family: str
    problems: int = 200
    updates: int = 6000
    expert_s: float = 1.0
    unseen: int = 20
    seed: int = 0
    changes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name in ("problems", "updates", "unseen"):
            if getattr(self, name) < 1:
                raise OptionError(f"--{name} must be at least 1, not {getattr(self, name)}")
        if not self.expert_s > 0:
            raise OptionError(f"--expert-seconds must be above 0, not {self.expert_s}")

    @property
    def learning(self) -> DopplerConfig:
        """Hyper-parameters: a stable, slow variant of DOPPLER's."""
        base = DopplerConfig(
            updates=self.updates,
            plans_per_update=16,
            kept_per_update=None,
            learning_rate=1e-3,
            entropy=1e-2,
            elites=4,
            imitation_weight=1.0,
            begins_as=Beginning.HEFT,
            logit_range=20.0,
        )
        options: DopplerConfig = changed_options("doppler", base, self.changes)
        return options


@dataclass(frozen=True, eq=False)
class TrainResult:
    """Where the policy was written, its card, and the learning curve, of a resumed training from there on: values over
    the best plan of the update's problem that was known then."""

    path: Path
    card: Mapping[str, Any]
    curve: tuple[CurvePoint, ...]


def run_train(
    options: TrainOptions,
    path: Path,
    *,
    resume: bool = False,
    on_phase: Callable[[str], None] = lambda _: None,
    on_update: Callable[[CurvePoint], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainResult:
    """Train, judge on problems that were not trained on, and write the policy with its card.

    The state goes to ``path`` with the suffix .state every few seconds; ``resume`` goes on from there, to the same
    curve. An interrupt leaves the state and raises SearchStopped. Raises OptionError and OutputError.
    """
    begin_s, family, learning = time.monotonic(), find_family(options.family), options.learning
    state = StateFile(path.with_suffix(".state"))
    if not resume:
        state.path.unlink(missing_ok=True)
    is_new = state.load() is None
    on_phase(f"{options.problems} problems of {family.name}" + (f", {options.expert_s:g} s of annealing each" * is_new))
    lessons = []
    for number in range(options.problems):
        lessons.append(lesson_of(family, options.seed * options.problems + number, options.expert_s * is_new))
        if should_stop():
            raise SearchStopped
    curve: list[CurvePoint] = []

    def keep(progress: Progress) -> None:
        curve.append(curve_point(progress, progress.best_so_far))
        on_update(curve[-1])

    training = Pretraining(learning, lessons, options.seed, keep, should_stop)
    on_phase(f"training, {options.updates} updates")
    with one_thread():
        training.run(state)
    on_phase(f"judging on {options.unseen} problems that were not trained on")
    figures = judge(training, family, options)
    card = {
        **policy_card(family.name, learning),
        "hsdag": __version__,
        "learning": learning.as_dict(),
        "family": family.name,
        "problems": options.problems,
        "updates": options.updates,
        "expert_s": options.expert_s,
        "seed": options.seed,
        "unseen": figures,
        "seconds": round(time.monotonic() - begin_s, 1),
        "figures": "simulated",
    }
    write_policy(path, training.network.state_dict(), card)
    state.path.unlink(missing_ok=True)
    return TrainResult(path, card, tuple(curve))


def lesson_of(family: Family, number: int, expert_s: float) -> Lesson:
    """A problem of a family, by number, with the best plan of so many seconds of annealing; 0 for none."""
    problem = family.problem(number)
    units = problem_of(problem)
    evaluator = ScheduleEvaluator(problem, Semantics(), unit_of_op=units.units.partition.labels)
    assert units.costs is not None
    experts: tuple[Plan, ...] = ()
    if expert_s:
        found = make_placer("sa", is_cheap=True)
        answer = solve(problem, found, SolveOptions("sa", budget_s=expert_s, seed=number))
        if answer.device is not None:
            first = np.unique(units.units.partition.labels, return_index=True)[1]
            order = None if answer.priority is None else answer.priority[first]
            experts = (Plan(answer.device[first], order),)
    return Lesson(units.costs, evaluator, tuple(singles_of(units)), experts)


def judge(training: Pretraining, family: Family, options: TrainOptions) -> dict[str, float]:
    """Mean ratios to annealing for ``expert_s`` on unseen problems: of the most probable plan, of the best of 16."""
    ratios = []
    for number in range(UNSEEN, UNSEEN + options.unseen):
        lesson = lesson_of(family, number, options.expert_s)
        if lesson.experts:
            best = min(score.value for score in lesson.evaluator.evaluate(lesson.experts))
            found = zero_shot(training.network, options.learning, lesson, 16, options.seed)
            ratios.append([value / best for value in found])
    first, least = np.array(ratios).reshape(-1, 2).mean(axis=0) if ratios else (np.nan, np.nan)
    return {"problems": len(ratios), "most_probable_over_annealing": float(first), "best_of_16": float(least)}
