"""Training of a policy for reuse: problems of a family, plans of an expert, and what the policy is worth unseen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from hsdag.drawing import CurvePoint
from hsdag.ir.errors import OptionError, SearchError
from hsdag.ir.files import FileLock
from hsdag.methods.learned.base import one_thread
from hsdag.methods.learned.doppler.network import Beginning, DopplerConfig
from hsdag.methods.learned.doppler.policy import policy_card
from hsdag.methods.learned.doppler.pretraining import Pretraining, TrainingProblem, zero_shot
from hsdag.methods.learned.options import Baseline
from hsdag.methods.learned.training import Progress, check_same
from hsdag.methods.lists.rules import METHOD as RULES
from hsdag.methods.lists.rules import WEIGHTS
from hsdag.methods.registry import changed_options
from hsdag.scoring.base import SearchStopped
from hsdag.scoring.policy_file import StateFile, write_policy
from hsdag.search.options import check_seed
from hsdag.sources.families import Family, find_family
from hsdag.training.curves import curve_point
from hsdag.training.problems import Expert, RuleProblem, training_problems
from hsdag.training.rules import RuleTraining, RuleTrainingOptions, worth_of_rules
from hsdag.version import __version__
from hsdag.workers.pool import Pool, check_workers, pool_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TrainingState:
    """A checkpoint that holds, beside the state, what it is of: a method and its ``options``, JSON values by name.

    A state has as ``done`` how many updates were made, of which there may be at most ``updates``.
    """

    file: StateFile
    method: str
    options: Mapping[str, Any]
    updates: int

    def save(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Replace the stored state. Raises OutputError."""
        self.file.save(tensors, {"method": self.method, "config": self.options, **state})

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """The stored state, or None when nothing was stored yet.

        Raises FileFormatError, and SearchError where it is of another training or has made more updates.
        """
        stored = self.file.load()
        if stored is not None:
            check_same(self.method, self.options, stored[1])
            done = stored[1]["done"]
            if done > self.updates:
                raise SearchError(
                    f"the stored training has made {done} updates; --updates has to be at least as many, "
                    f"not {self.updates}"
                )
        return stored


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
    DOPPLER imitates, and which both are compared with; ``expert_evaluations`` limit it instead, where they are given.
    ``changes`` are hyper-parameters of the training by name.
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
    expert_evaluations: int | None = None
    workers: str | None = None
    """What computes parts of the training in other processes, as ``make_pool`` takes it."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.workers is not None:
            check_workers(self.workers)
        if self.method not in UPDATES:
            raise OptionError(f"hsdag train has no method {self.method!r}; choose one of {', '.join(UPDATES)}")
        for name in ("problems", "updates", "unseen", "expert_evaluations"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                option = name.replace("_", "-")
                raise OptionError(f"--{option} must be at least 1, not {getattr(self, name)}")
        if not self.expert_s > 0:
            raise OptionError(f"--expert must be more than zero, not {self.expert_s:g}")
        if (self.seed + 1) * self.problems > UNSEEN:
            raise OptionError(
                f"--problems times --seed + 1 must be at most {UNSEEN}, the number of the first problem that policies "
                f"are tried on, not {(self.seed + 1) * self.problems}"
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
        own = {name: getattr(self, name) for name in ("family", "problems", "seed")} | self.limits
        return {name: value for name, value in {**own, **chosen}.items() if name != "updates"}

    @property
    def expert(self) -> Expert:
        """What is imitated, and compared with."""
        return Expert(self.expert_s, self.expert_evaluations)

    @property
    def limits(self) -> dict[str, Any]:
        """Of the expert, as JSON values by name."""
        given = {"expert_s": self.expert_s, "expert_evaluations": self.expert_evaluations}
        return {name: value for name, value in given.items() if value is not None}

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


class TrainResult(BaseModel):
    """The ``policy``'s file, its ``card``, and the learning curve, of a resumed training from there on: of
    DOPPLER values over the best plan of the update's problem that was known then, of rules what training lowers."""

    model_config = ConfigDict(frozen=True)

    policy: Path
    card: dict[str, Any]
    curve: tuple[CurvePoint, ...] = Field(exclude=True)


def run_train(
    options: TrainOptions,
    path: Path,
    *,
    resume: bool = False,
    on_phase: Callable[[str], None] = lambda _: None,
    on_update: Callable[[CurvePoint], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda _: None,
) -> TrainResult:
    """Train, try on problems that were not trained on, and write the policy with its card.

    The state goes to ``path`` with the suffix .state every few seconds; ``resume`` goes on from there, to the same
    curve, or to more updates, with as many workers as there are now. ``say`` hears of workers that are lost. An
    interrupt leaves the state and raises SearchStopped. Raises OptionError, OutputError and DeviceError, and
    SearchError where the state is of another training, or missing with ``resume``, or there without, or where another
    process is at this training.
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

    taken = f"another training is writing to {path}; wait for it, or name another file with --output"
    with FileLock(path.with_suffix(".lock"), taken), pool_of(options.workers, say) as pool:
        watching = Watching(on_phase, keep, should_stop)
        weights, card = _trained(options, family, state, watching, pool, has_begun=has_begun)
    card |= {"seconds": round(time.monotonic() - begin_s, 1), "figures": "simulated"}
    write_policy(path, weights, card)
    file.path.unlink(missing_ok=True)
    return TrainResult(policy=path, card=dict(card), curve=tuple(curve))


@dataclass(frozen=True)
class Watching:
    """Who is told what a training does, and asked whether it should stop."""

    on_phase: Callable[[str], None]
    on_update: Callable[[CurvePoint], None]
    should_stop: Callable[[], bool]

    def check(self) -> None:
        """Raise SearchStopped when the training should stop."""
        if self.should_stop():
            raise SearchStopped


def _trained(
    options: TrainOptions,
    family: Family,
    state: TrainingState,
    watching: Watching,
    pool: Pool | None,
    *,
    has_begun: bool,
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Weights and card of a policy, which is tried on problems that it was not trained on."""
    expert = None if has_begun or options.method == RULES else options.expert
    experts = "" if expert is None else f", {expert} of annealing each"
    watching.on_phase(f"{options.problems} problems of {family.name}{experts}")
    numbers = range(options.seed * options.problems, (options.seed + 1) * options.problems)
    problems = training_problems(family, numbers, expert, watching.check, pool)
    watching.on_phase(f"training, {options.num_updates} updates")
    if options.method == RULES:
        weights, card, worth = _train_rules(options, problems, state, watching, pool)
    else:
        weights, card, worth = _train_networks(options, problems, state, watching)
    watching.on_phase(f"trying it on {options.unseen} problems that were not trained on")
    unseen = training_problems(family, range(UNSEEN, UNSEEN + options.unseen), options.expert, watching.check, pool)
    return weights, card | {
        "name": family.name,
        "hsdag": __version__,
        "family": family.name,
        "problems": options.problems,
        "updates": options.num_updates,
        "seed": options.seed,
        "unseen": means_over_expert(worth, unseen),
        **options.limits,
    }


Worth = Callable[[TrainingProblem], tuple[float, float]]
"""What a policy is worth on a problem: the value of its first answer, and the least of 16."""


def _train_rules(
    options: TrainOptions,
    problems: Sequence[TrainingProblem],
    state: TrainingState,
    watching: Watching,
    pool: Pool | None,
) -> tuple[Mapping[str, Any], dict[str, Any], Worth]:
    training = RuleTraining(
        [RuleProblem(problem.costs, problem.evaluator) for problem in problems],
        options.of_rules.rules,
        options.seed,
        lambda update, value: watching.on_update(CurvePoint(update, np.nan, np.nan, value, np.nan)),
        watching.should_stop,
        pool,
    )
    training.run(options.num_updates, state)

    def worth(problem: TrainingProblem) -> tuple[float, float]:
        return worth_of_rules(training.rules, RuleProblem(problem.costs, problem.evaluator), 16, options.seed)

    card = {"method": RULES, "rules": len(training.rules), "curve": np.round(training.curve, 5).tolist()}
    return {WEIGHTS: training.rules}, card, worth


def _train_networks(
    options: TrainOptions, problems: Sequence[TrainingProblem], state: TrainingState, watching: Watching
) -> tuple[Mapping[str, Any], dict[str, Any], Worth]:
    learning = options.learning

    def keep(progress: Progress) -> None:
        watching.on_update(curve_point(progress, progress.best_so_far))

    training = Pretraining(learning, problems, options.seed, keep, watching.should_stop)
    with one_thread():
        training.run(state)

    def worth(problem: TrainingProblem) -> tuple[float, float]:
        return zero_shot(training.network, learning, problem, 16, options.seed)

    card = policy_card(options.family, learning) | {"learning": learning.as_dict()}
    return training.network.state_dict(), card, worth


def means_over_expert(worth: Worth, problems: Sequence[TrainingProblem]) -> dict[str, float | None]:
    """Mean ratios of a policy's values to the expert's: of the first answer, and of the best of 16.

    ``..._failed`` count the problems that have no plan within memory, which means leave out; None where all have none.
    """
    ratios = []
    for problem in problems:
        if problem.experts:
            best = min(score.value for score in problem.evaluator.evaluate(problem.experts))
            ratios.append([value / best for value in worth(problem)])
    first, least = ([ratio for ratio in each if np.isfinite(ratio)] for each in np.array(ratios).reshape(-1, 2).T)
    return {
        "problems": len(ratios),
        "first_over_annealing": float(np.mean(first)) if first else None,
        "first_failed": len(ratios) - len(first),
        "best_of_16": float(np.mean(least)) if least else None,
        "best_failed": len(ratios) - len(least),
    }
