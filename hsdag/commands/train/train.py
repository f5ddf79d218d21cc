"""Train a policy on problems of a family, and compare it with an expert on problems that it was not trained on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from hsdag.base.errors import OptionError, SearchError, check_seed, option
from hsdag.base.files import FileLock
from hsdag.base.version import __version__
from hsdag.commands.sources import find_family
from hsdag.commands.train.networks import NetworkTraining, reusable_options
from hsdag.commands.train.problems import TrainingProblem, training_problems
from hsdag.commands.train.rules import RuleTraining, RuleTrainingOptions
from hsdag.methods.learned.base import one_thread
from hsdag.methods.learned.options import ReusableOptions
from hsdag.methods.learned.states import State, check_same, described
from hsdag.methods.learned.training import SAVE_EVERY_S
from hsdag.methods.lists.rules import METHOD as RULES
from hsdag.methods.policy_file import StateFile, write_policy
from hsdag.methods.registry import changed_options, find_method
from hsdag.runtime.objectives import LATENCY
from hsdag.runtime.problem.semantics import Semantics
from hsdag.search.driver import Watcher
from hsdag.search.evaluators.base import SearchStopped
from hsdag.search.options import SolveOptions
from hsdag.workers.option import check_workers, pool_of
from hsdag.workers.pool import Pool

UNUSED = ("initial", "updates", "teacher_updates", "simulated_updates", "stagnation", "patience")
"""Hyper-parameters of learned methods that have no effect on a training for reuse."""
UNSEEN = 1_000_000
"""Number of the first problem of each family that is used for tests and never for training."""


@dataclass(frozen=True)
class TrainOptions:
    """Options of a training. Raises OptionError for a value out of range.

    Args:
        family: Name of a family of problems, several joined by commas, or all.
        method: Method whose policy is trained: rules, doppler or hsdag.
        problems: Number of problems to train on.
        updates: Number of updates of the policy.
        expert_evaluations: Number of plans that the expert evaluates: annealing, limited by a number and not by time
            so that it finds the same plan on any machine.
        unseen: Number of other problems to test the policy on.
        changes: Hyper-parameters of the training by name.
        workers: Other processes that share the training: ``local:N``, ``ray`` or ``ray://HOST:PORT``.
    """

    family: str
    method: str = RULES
    problems: int = 200
    updates: int = 1500
    expert_evaluations: int = 60_000
    unseen: int = 20
    seed: int = 0
    changes: Mapping[str, str] = field(default_factory=dict)
    workers: str | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.workers is not None:
            check_workers(self.workers)
        for name in ("problems", "updates", "unseen", "expert_evaluations"):
            if getattr(self, name) < 1:
                raise OptionError(f"{option(name)} must be at least 1, not {getattr(self, name)}")
        if (self.seed + 1) * self.problems > UNSEEN:
            raise OptionError(
                f"{option('problems')} times {option('seed')} + 1 must be at most {UNSEEN}, the number of the first "
                f"problem that policies are tried on, not {(self.seed + 1) * self.problems}"
            )
        _ = self.learning  # raises an error for wrong hyper-parameters

    @property
    def learning(self) -> RuleTrainingOptions | ReusableOptions:
        """Return the hyper-parameters of the training.

        Raises OptionError for a method that is not trained, an unknown name or a wrong value.
        """
        options = RuleTrainingOptions() if self.method == RULES else reusable_options(self.method)
        learning = changed_options(self.method, options, self.changes)
        if isinstance(learning, ReusableOptions):
            if unused := sorted({*UNUSED, *([] if learning.is_portable else ["portable_features"])} & {*self.changes}):
                raise OptionError(
                    f"{' and '.join(unused)} cannot be set in a training of networks, which begins untrained and makes "
                    f"as many updates as {option('updates')} says; leave it out of {option('settings')}"
                )
            find_method(self.method)(learning).check_request(LATENCY, Semantics(), has_costs=True)
        return learning

    @property
    def expert(self) -> SolveOptions:
        """Return the options of the expert's search."""
        return SolveOptions("sa", budget_s=math.inf, max_evaluations=self.expert_evaluations)

    @property
    def source(self) -> dict[str, str | int | float]:
        """Return the options that determine the problems and the expert, as JSON values."""
        return {name: getattr(self, name) for name in ("family", "problems", "seed", "expert_evaluations")}

    @property
    def identity(self) -> dict[str, Any]:
        """Return the options in which a resumed training must agree with the stored state: all but ``updates``."""
        learning = self.learning
        of_method = learning.as_dict() if isinstance(learning, ReusableOptions) else asdict(learning)
        return described(self.method, self.source | of_method)


class TrainResult(BaseModel):
    """The file of a trained policy, and the policy's card."""

    model_config = ConfigDict(frozen=True)

    policy: Path
    card: dict[str, Any]


def run_train(
    options: TrainOptions,
    path: Path,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> TrainResult:
    """Train a policy, test it on problems that it was not trained on, and write it to ``path`` with its card.

    The state is saved every few seconds to ``path`` with the suffix .state. A resumed training gives the same policy as
    one without a break, with any number of workers. It may be given more updates; the learning rate of networks then
    continues at the share of the new number that has been made, and the policy is not that of one longer training.

    Args:
        path: Policy file to write.
        resume: Continue from the saved state.
        watcher: Gets every update as a step. If it stops the training, the state is saved, and SearchStopped raised.

    Raises SearchError if the state belongs to another training, is missing with ``resume``, or is present without it,
    or if another process is writing to ``path``; OptionError for a wrong family; OutputError if a file cannot be
    written; and DeviceError if a worker cannot be used.
    """
    begin_s = time.monotonic()
    watcher = watcher or Watcher()
    family = find_family(options.family)
    file = StateFile(path.with_suffix(".state"))
    stored = _stored(file, options, resume=resume)

    def check() -> None:
        if watcher.should_stop():
            raise SearchStopped

    numbers = range(options.seed * options.problems, (options.seed + 1) * options.problems)
    taken = f"another training is writing to {path}; wait for it, or name another file with {option('output')}"
    with FileLock(path.with_suffix(".lock"), taken), pool_of(options.workers, watcher.note) as pool, one_thread():
        watcher.on_phase(f"{options.problems} problems of {family.name}")
        problems = training_problems(family, numbers, None, check, pool)
        watcher.on_phase(f"training, {options.updates} updates")
        training = _training(options, problems, check, pool)
        _improve(training, options, file, stored, check, watcher.on_step)
        watcher.on_phase(f"trying it on {options.unseen} problems that were not trained on")
        unseen = training_problems(family, range(UNSEEN, UNSEEN + options.unseen), options.expert, check, pool)
        worth = means_over_expert(training.worth, unseen)
    weights, card = training.policy()
    card |= options.source | {
        "name": family.name,
        "family": family.name,
        "hsdag": __version__,
        "updates": options.updates,
        "unseen": worth,
        "seconds": round(time.monotonic() - begin_s, 1),
        "figures": "simulated",
    }
    write_policy(path, weights, card)
    file.path.unlink(missing_ok=True)
    return TrainResult(policy=path, card=card)


def _training(
    options: TrainOptions, problems: Sequence[TrainingProblem], check: Callable[[], None], pool: Pool | None
) -> RuleTraining | NetworkTraining:
    """Return the training that the options ask for, before its first update."""
    learning = options.learning
    if isinstance(learning, ReusableOptions):
        return NetworkTraining(options.method, problems, learning, options.seed, options.updates, check)
    return RuleTraining(problems, learning, options.seed, check, pool)


def _stored(file: StateFile, options: TrainOptions, *, resume: bool) -> State | None:
    """Return the state to resume, None for a new training. Raises SearchError where it does not fit the options."""
    if not resume and file.path.exists():
        raise SearchError(
            f"{file.path} holds an interrupted training; {option('resume')} goes on with it, or delete the file"
        )
    stored = file.load()
    if stored is not None:
        check_same(options.identity, stored[1])
        if stored[1]["done"] > options.updates:
            done = f"the stored training has made {stored[1]['done']} updates"
            raise SearchError(f"{done}; {option('updates')} has to be at least as many, not {options.updates}")
    elif resume:
        raise SearchError(f"nothing to resume: there is no {file.path}; start the training without {option('resume')}")
    return stored


def _improve(
    training: RuleTraining | NetworkTraining,
    options: TrainOptions,
    file: StateFile,
    stored: State | None,
    check: Callable[[], None],
    on_step: Callable[[str], None],
) -> None:
    """Make the remaining updates, and save the state, also if ``check`` raises SearchStopped."""
    if stored is None:
        training.begin()
    else:
        training.restore(*stored)

    def save() -> None:
        tensors, state = training.state()
        file.save(tensors, options.identity | state)

    saved_s = time.monotonic()
    try:
        while training.num_updates < options.updates:
            check()
            training.update()
            on_step(f"update {training.num_updates} of {options.updates}")
            if time.monotonic() - saved_s > SAVE_EVERY_S:
                save()
                saved_s = time.monotonic()
    except SearchStopped:
        save()
        raise
    save()


def means_over_expert(
    worth: Callable[[TrainingProblem], tuple[float, float]], problems: Sequence[TrainingProblem]
) -> dict[str, float | None]:
    """Return a policy's mean values relative to the expert's, of its first schedules and of the best of 16 rounds.

    Problems for which the policy finds no plan that fits into memory are left out of the means; the entries
    ``first_failed`` and ``best_failed`` count them. A mean over no problems is None.

    Args:
        worth: Function from a problem to the policy's two values on it.
    """
    ratios = []
    for problem in problems:
        if problem.expert is not None:
            best = problem.evaluator.evaluate([problem.expert])[0].value
            ratios.append([value / best for value in worth(problem)])
    first, least = ([ratio for ratio in column if np.isfinite(ratio)] for column in np.array(ratios).reshape(-1, 2).T)
    return {
        "problems": len(ratios),
        "first_over_annealing": float(np.mean(first)) if first else None,
        "first_failed": len(ratios) - len(first),
        "best_of_16": float(np.mean(least)) if least else None,
        "best_failed": len(ratios) - len(least),
    }
