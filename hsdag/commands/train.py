"""Training of a policy for reuse: problems of a family, plans of an expert, and what the policy is worth unseen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hsdag.commands.curves import curve_point
from hsdag.commands.families import Family, find_family
from hsdag.commands.train_rules import Exercise, RuleTraining, RuleTrainingOptions, judged
from hsdag.commands.training_state import TrainingState
from hsdag.evaluators.base import SearchStopped
from hsdag.evaluators.policy_file import write_policy
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.evaluators.state_file import StateFile
from hsdag.ir.errors import OptionError, SearchError
from hsdag.learning.doppler.config import Beginning, DopplerConfig
from hsdag.learning.doppler.making import policy_card
from hsdag.learning.doppler.pretraining import Lesson, Pretraining, zero_shot
from hsdag.learning.options import Baseline
from hsdag.learning.training import Progress
from hsdag.placers.learned.base import one_thread, singles_of
from hsdag.placers.lists.rules import METHOD as RULES
from hsdag.placers.lists.rules import WEIGHTS
from hsdag.placers.registry import changed_options, make_placer
from hsdag.reports import CurvePoint
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.simulator import Semantics
from hsdag.search.options import SolveOptions, check_seed
from hsdag.search.solve import solve
from hsdag.version import __version__

UPDATES = {RULES: 1500, "doppler": 6000}
"""Methods that can be trained for reuse, and how many updates they take."""
NOT_FOR_TRAINING = {
    "updates": "--updates says how many",
    "initial": "a training begins with no policy",
    "simulated_updates": "all updates of a training are simulated",
}
"""Hyper-parameters of searches that a training has no use for, and why."""
UNSEEN = 1_000_000
"""Problems from this number on are never trained on."""


@dataclass(frozen=True)
class TrainOptions:
    """What to train on, and for how long. Raises OptionError for a value out of range.

    ``method`` is ``rules`` or ``doppler``. ``expert_s`` are seconds of annealing for each problem, whose best plan
    DOPPLER imitates, and which both are judged by. ``changes`` are hyper-parameters of the training by name.
    """

    family: str
    method: str = RULES
    problems: int = 200
    updates: int | None = None
    """By default those of the method in UPDATES."""
    expert_s: float = 1.0
    unseen: int = 20
    seed: int = 0
    changes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.method not in UPDATES:
            raise OptionError(f"hsdag train has no method {self.method!r}; choose one of {', '.join(UPDATES)}")
        for name in ("problems", "updates", "unseen"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise OptionError(f"--{name} must be at least 1, not {getattr(self, name)}")
        if not self.expert_s > 0:
            raise OptionError(f"--expert must be more than zero, not {self.expert_s:g}")
        if (self.seed + 1) * self.problems > UNSEEN:
            raise OptionError(
                f"--problems times --seed + 1 must be at most {UNSEEN}, the number of the first problem that policies "
                f"are judged on, not {(self.seed + 1) * self.problems}"
            )
        for name, why in NOT_FOR_TRAINING.items():
            if name in self.changes:
                raise OptionError(f"{why}; leave out --set {name}")
        _ = self.same  # raises

    @property
    def num_updates(self) -> int:
        """Updates, by default those of the method."""
        return self.updates or UPDATES[self.method]

    @property
    def same(self) -> dict[str, Any]:
        """What has to be the same where a training goes on, as JSON values by name: all but the number of updates."""
        chosen = asdict(self.of_rules) if self.method == RULES else self.learning.as_dict()
        own = {name: getattr(self, name) for name in ("family", "problems", "seed", "expert_s")}
        return {name: value for name, value in {**own, **chosen}.items() if name != "updates"}

    @property
    def of_rules(self) -> RuleTrainingOptions:
        """Hyper-parameters of rules."""
        options: RuleTrainingOptions = changed_options(RULES, RuleTrainingOptions(), self.changes)
        return options

    @property
    def learning(self) -> DopplerConfig:
        """Hyper-parameters: a stable, slow variant of DOPPLER's."""
        base = DopplerConfig(
            updates=self.num_updates,
            plans_per_update=16,
            kept_per_update=None,
            learning_rate=1e-3,
            entropy=1e-2,
            baseline=Baseline.BATCH,
            elites=4,
            imitation_weight=1.0,
            begins_as=Beginning.HEFT,
            logit_range=20.0,
        )
        options: DopplerConfig = changed_options("doppler", base, self.changes)
        return options


@dataclass(frozen=True, eq=False)
class TrainResult:
    """Where the policy was written, its card, and the learning curve, of a resumed training from there on: of
    DOPPLER values over the best plan of the update's problem that was known then, of rules what training lowers."""

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
    curve, or to more updates. An interrupt leaves the state and raises SearchStopped. Raises OptionError and
    OutputError, and SearchError where the state is of another training, or missing with ``resume``, or there without.
    """
    begin_s, family = time.monotonic(), find_family(options.family)
    file = StateFile(path.with_suffix(".state"))
    if not resume and file.path.exists():
        raise SearchError(f"{file.path} holds an interrupted training; --resume goes on with it, or delete the file")
    state = TrainingState(file, options.method, options.same, options.num_updates)
    has_begun = state.load() is not None
    if resume and not has_begun:
        raise SearchError(f"nothing to resume: there is no {file.path}; start the training without --resume")
    curve: list[CurvePoint] = []

    def keep(point: CurvePoint) -> None:
        curve.append(point)
        on_update(point)

    watching = Watching(on_phase, keep, should_stop)
    lessons = _lessons(options, family, 0.0 if has_begun or options.method == RULES else options.expert_s, watching)
    on_phase(f"training, {options.num_updates} updates")
    train = _train_rules if options.method == RULES else _train_networks
    weights, card, worth = train(options, lessons, state, watching)
    on_phase(f"judging on {options.unseen} problems that were not trained on")
    card |= {
        "name": family.name,
        "hsdag": __version__,
        "family": family.name,
        "problems": options.problems,
        "updates": options.num_updates,
        "expert_s": options.expert_s,
        "seed": options.seed,
        "unseen": judge(worth, family, options),
        "seconds": round(time.monotonic() - begin_s, 1),
        "figures": "simulated",
    }
    write_policy(path, weights, card)
    file.path.unlink(missing_ok=True)
    return TrainResult(path, card, tuple(curve))


@dataclass(frozen=True)
class Watching:
    """Who is told what a training does, and asked whether it should stop."""

    on_phase: Callable[[str], None]
    on_update: Callable[[CurvePoint], None]
    should_stop: Callable[[], bool]


Worth = Callable[[Lesson], tuple[float, float]]
"""What a policy is worth on a problem: the value of its first answer, and the least of 16."""


def _train_rules(
    options: TrainOptions, lessons: Sequence[Lesson], state: TrainingState, watching: Watching
) -> tuple[Mapping[str, Any], dict[str, Any], Worth]:
    training = RuleTraining(
        [Exercise(lesson.costs, lesson.evaluator) for lesson in lessons],
        options.of_rules.rules,
        options.seed,
        lambda update, value: watching.on_update(CurvePoint(update, np.nan, np.nan, value, np.nan)),
        watching.should_stop,
    )
    training.run(options.num_updates, state)

    def worth(lesson: Lesson) -> tuple[float, float]:
        return judged(training.rules, Exercise(lesson.costs, lesson.evaluator), 16, options.seed)

    card = {"method": RULES, "rules": len(training.rules), "curve": np.round(training.curve, 5).tolist()}
    return {WEIGHTS: training.rules}, card, worth


def _train_networks(
    options: TrainOptions, lessons: Sequence[Lesson], state: TrainingState, watching: Watching
) -> tuple[Mapping[str, Any], dict[str, Any], Worth]:
    learning = options.learning

    def keep(progress: Progress) -> None:
        watching.on_update(curve_point(progress, progress.best_so_far))

    training = Pretraining(learning, lessons, options.seed, keep, watching.should_stop)
    with one_thread():
        training.run(state)

    def worth(lesson: Lesson) -> tuple[float, float]:
        return zero_shot(training.network, learning, lesson, 16, options.seed)

    card = policy_card(options.family, learning) | {"learning": learning.as_dict()}
    return training.network.state_dict(), card, worth


def _lessons(options: TrainOptions, family: Family, expert_s: float, watching: Watching) -> list[Lesson]:
    experts = f", {expert_s:g} s of annealing each" if expert_s else ""
    watching.on_phase(f"{options.problems} problems of {family.name}{experts}")
    lessons = []
    for number in range(options.problems):
        lessons.append(lesson_of(family, options.seed * options.problems + number, expert_s))
        if watching.should_stop():
            raise SearchStopped
    return lessons


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


def judge(worth: Worth, family: Family, options: TrainOptions) -> dict[str, float | None]:
    """Mean ratios to annealing for ``expert_s`` on unseen problems: of the first answer, and of the best of 16.

    ``..._failed`` count the problems that have no plan within memory, which means leave out; None where all have none.
    """
    ratios = []
    for number in range(UNSEEN, UNSEEN + options.unseen):
        lesson = lesson_of(family, number, options.expert_s)
        if lesson.experts:
            best = min(score.value for score in lesson.evaluator.evaluate(lesson.experts))
            ratios.append([value / best for value in worth(lesson)])
    first, least = ([ratio for ratio in each if np.isfinite(ratio)] for each in np.array(ratios).reshape(-1, 2).T)
    return {
        "problems": len(ratios),
        "first_over_annealing": float(np.mean(first)) if first else None,
        "first_failed": len(ratios) - len(first),
        "best_of_16": float(np.mean(least)) if least else None,
        "best_failed": len(ratios) - len(least),
    }
