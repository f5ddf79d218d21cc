"""Training of a policy: rollouts are drawn and evaluated, and their advantages give the policy's gradient.

Legend: B plans of an update, M decisions, T steps of an episode, U placement units.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.incumbent import LEAST_GAIN
from hsdag.methods.learned.advantages import Advantages
from hsdag.methods.learned.buffer import Buffer
from hsdag.methods.learned.learner import Learner, rate
from hsdag.methods.learned.limited_memory import LimitedMemory
from hsdag.methods.learned.options import TrainingOptions
from hsdag.methods.learned.policy import Exploring, Policy, Rollout
from hsdag.methods.learned.states import State, check_same, described
from hsdag.runtime.problem.plan import Plan
from hsdag.search.evaluators.base import Checkpoint, Evaluator

HEAT = 1.4
"""Factor by which the temperature rises each time that plans are drawn again because they were repetitions."""

SAVE_EVERY_S = 2.0
"""Seconds between two stored states if plans are simulated; if they are measured, every update is stored."""

NUM_FIRST = 16
"""Number of plans of a trained policy that are evaluated at once: its most probable one, and draws."""


class Updates:
    """Counts of a training's updates.

    Attributes:
        number: Number of updates.
        num_idle: Number of updates in a row, up to the last one, that drew no new plan.
        better_at: Number of updates before the last one that found a better plan.
        step_share: Share of the evaluator's budget that the last step of the optimiser took.
        none_fits: Whether no draw of a trained policy fitted into memory at the beginning, so that training is over.
    """

    def __init__(self, options: TrainingOptions) -> None:
        self._options = options
        self.number = 0
        self.num_idle = 0
        self.better_at = 0
        self.step_share = 0.0
        self.none_fits = False

    def note(self, *, is_new: bool, is_better: bool) -> None:
        """Record whether this update drew a new plan, and whether it drew one better than all before."""
        self.num_idle = 0 if is_new else self.num_idle + 1
        if is_better:
            self.better_at = self.number

    @property
    def are_stagnant(self) -> bool:
        """Return whether no better plan was found for as many updates as the option ``stagnation`` allows."""
        return 0 < self._options.stagnation <= self.number - self.better_at

    @property
    def are_over(self) -> bool:
        """Return whether all updates are made, or no new plan or no better plan was found for too many of them."""
        most = np.inf if self._options.updates is None else self._options.updates
        return self.none_fits or self.number >= most or 0 < self._options.patience <= self.num_idle or self.are_stagnant

    def state(self) -> dict[str, int | bool]:
        """Return the state for ``restore``, as JSON values by name."""
        return {
            "update": self.number,
            "idle_updates": self.num_idle,
            "better_at": self.better_at,
            "none_fits": self.none_fits,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by ``state``."""
        self.number, self.num_idle, self.better_at = state["update"], state["idle_updates"], state["better_at"]
        self.none_fits = state["none_fits"]


@dataclass(eq=False)
class Trainer:
    """Training of one policy on the plans that it draws.

    Attributes:
        name: Name of the method; a stored state can be resumed only with the same name and options.
        policy: Policy to train.
        evaluator: Evaluator of plans, which also keeps track of the budget.
        options: Hyper-parameters.
        generator: Source of all randomness.
        singles: Plans of single devices.
        teacher: Function that gives decisions to imitate in the first updates.
        memory: What is done with plans that exceed a memory; None if none is limited.
        is_trained: Whether the policy is trained already; then ``NUM_FIRST`` of its plans are evaluated first.
        spread: Factor of the options' weight of entropy.
        learner: Optimiser of the policy's weights; trainings of several problems may share one.
    """

    name: str
    policy: Policy
    evaluator: Evaluator
    options: TrainingOptions
    generator: torch.Generator
    singles: Sequence[Plan] = ()
    teacher: Callable[[torch.Generator], list[Rollout]] | None = None
    memory: LimitedMemory | None = None
    is_trained: bool = False
    spread: float = 1.0

    def __post_init__(self) -> None:
        self.buffer = Buffer(self.options, self.evaluator.version)
        self.updates = Updates(self.options)
        self.learner = Learner(dict(self.policy.network.named_parameters()), self.options)
        self._advantages = Advantages(self.options)

    @property
    def progress(self) -> float:
        """Return the share of the training that is over: of the updates if their number is set, else of the budget."""
        return self.updates.number / self.options.updates if self.options.updates else self.evaluator.progress

    def run(self, checkpoint: Checkpoint | None = None, *, resumes: bool = True) -> None:
        """Train until all updates are made, or no new plan or no better plan was found for too many of them.

        The evaluator keeps the best plan. Raises SearchStopped when the evaluator does.

        Args:
            checkpoint: Where states are stored.
            resumes: Whether to resume from the state in the checkpoint, if there is one.
        """
        saved_s = -np.inf
        if not (resumes and _resume(self, checkpoint)):
            self.begin()
            _save(self, checkpoint)
        while not self.updates.are_over:
            self.update()
            if not self.evaluator.is_cheap or time.monotonic() - saved_s > SAVE_EVERY_S:
                _save(self, checkpoint)
                saved_s = time.monotonic()
        _save(self, checkpoint)

    def begin(self) -> None:
        """Evaluate the plans of single devices, if the options ask for it, and the first plans of a trained policy."""
        if self.options.single_devices_first and self.singles:
            self._evaluate(self.singles, single=True)
        if self.is_trained:
            draws = self.policy.draw(NUM_FIRST - 1, Exploring(), self.generator)
            best = self.buffer.best
            values = self._evaluate_draws([self.policy.best(self.generator), *draws])
            is_limited = self.memory is not None and self.evaluator.is_cheap
            self.updates.none_fits = is_limited and bool(np.isnan(values).all()) and self.buffer.best == best

    def update(self) -> FloatArray:
        """Make one update: imitate the teacher in the first ones, if there is one; else learn from draws.

        Return the values of the draws [B], NaN for those that failed; an empty array if the teacher was imitated.
        """
        values = np.zeros(0)
        num_taught = 0 if self.is_trained else self.options.teacher_updates
        if self.teacher is not None and self.updates.number < num_taught:
            self.evaluator.check()
            self.learner.step(self.policy, [(self.teacher(self.generator), None)], self.progress, self.spread)
        else:
            values = self._learn_from_draws()
        self.updates.number += 1
        return values

    def _learn_from_draws(self) -> FloatArray:
        """Draw plans, evaluate them, and take optimisation steps on them and on the elites; return their values [B]."""
        before, best = len(self.buffer), self.buffer.best
        rollouts = draws_of(self)
        values = self._evaluate_draws(rollouts)
        advantages = torch.tensor(self.advantages(values, rollouts), dtype=torch.float32)
        if self.options.greedy_every and self.updates.number % self.options.greedy_every == 0:
            self._evaluate([self.policy.best(self.generator).plan])
        kept = _extremes(advantages, self.options.kept_per_update)
        groups: list[tuple[Sequence[Rollout], torch.Tensor | None]] = [([rollouts[b] for b in kept], advantages[kept])]
        if self.buffer.elites:
            groups.append((self.policy.replay([plan for plan, _ in self.buffer.elites], self.generator), None))
        is_better = self.buffer.best < best * (1 - LEAST_GAIN)
        self.updates.note(is_new=len(self.buffer) > before, is_better=is_better)
        for _ in range(self.options.epochs):
            self.evaluator.check()
            begin = self.evaluator.progress
            if begin + self.updates.step_share < 1.0:  # else no further draw would use the new weights
                self.learner.step(self.policy, groups, self.progress, self.spread)
                self.updates.step_share = self.evaluator.progress - begin
        return values

    def _evaluate(self, plans: Sequence[Plan], *, single: bool = False) -> FloatArray:
        """Evaluate plans, ``single`` if of single devices each, and return their values [B], NaN for failures."""
        scores = self.evaluator.evaluate(plans)
        self.buffer.update(self.evaluator)
        return self.buffer.add(plans, scores, single=single)

    def _evaluate_draws(self, rollouts: Sequence[Rollout]) -> FloatArray:
        """Evaluate draws and return their values [B], NaN for failures.

        Some of those that exceed a memory are also repaired and evaluated, if plans are simulated.
        """
        values = self._evaluate([rollout.plan for rollout in rollouts])
        if self.memory is not None and self.evaluator.is_cheap:
            failed = [rollouts[b].plan for b in np.flatnonzero(np.isnan(values))[: self.options.repairs]]
            self._evaluate(self.memory.repaired(failed))
        return values

    def advantages(self, values: FloatArray, rollouts: Sequence[Rollout]) -> FloatArray:
        """Return advantages [B], or [B, T] of steps if rollouts have trails of T plans.

        They are rewards less the baseline, discounted, and in unit scale if the baseline asks for it. The reward of a
        step is the reward of the final plan less that of the plan before the step.

        Args:
            values: Values of the rollouts' plans, NaN for failures [B].
            rollouts: Rollouts of an update.
        """
        if self.memory is not None:
            values = self.memory.values([rollout.plan for rollout in rollouts], values)
        rewards = self.buffer.rewards(values)
        if trail := [plan for rollout in rollouts for plan in rollout.trail]:
            of_trail = self._evaluate(trail)
            of_steps = self.buffer.rewards(of_trail if self.memory is None else self.memory.values(trail, of_trail))
            rewards = rewards[:, None] - of_steps.reshape(len(rollouts), -1)
        return self._advantages.of(rewards, np.array([rollout.step for rollout in rollouts], dtype=np.int64))

    def state(self) -> State:
        """Return what changes in a training, but for the weights, their optimiser and the generator."""
        tensors, of_buffer = self.buffer.state()
        return tensors, {
            "buffer": of_buffer,
            "spread": self.spread,
            "is_trained": self.is_trained,
            **self.updates.state(),
            **self._advantages.state(),
        }

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Restore a state returned by ``state``."""
        self.buffer.restore(tensors, state["buffer"])
        self.updates.restore(state)
        self._advantages.restore(state)
        self.spread, self.is_trained = state["spread"], state["is_trained"]


def _save(trainer: Trainer, checkpoint: Checkpoint | None) -> None:
    """Store the weights, the state of the optimiser, and everything else that changes."""
    if checkpoint is None:
        return
    tensors, state = trainer.state()
    tensors |= {**trainer.learner.state(), "generator": trainer.generator.get_state()}
    checkpoint.save(tensors, described(trainer.name, trainer.options.as_dict()) | state)


def _resume(trainer: Trainer, checkpoint: Checkpoint | None) -> bool:
    """Restore the stored state, if there is one, and return whether there is."""
    stored = checkpoint.load() if checkpoint is not None else None
    if stored is None:
        return False
    tensors, state = stored
    check_same(described(trainer.name, trainer.options.as_dict()), state)
    trainer.learner.restore(tensors)
    trainer.generator.set_state(tensors["generator"])
    trainer.restore(tensors, state)
    return True


@torch.no_grad()
def draws_of(trainer: Trainer) -> list[Rollout]:
    """Draw the rollouts of an update; repetitions of evaluated plans are drawn again, at rising temperatures."""
    options = trainer.options
    chosen = set[Plan]()
    rollouts = list[Rollout]()
    count = options.plans_per_update
    share = rate(options.exploration, 0.0, trainer.progress)
    for attempt in range(options.resample_tries):
        draws = trainer.policy.draw(count - len(rollouts), Exploring(share, HEAT**attempt), trainer.generator)
        is_last = attempt + 1 == options.resample_tries
        for draw in draws:
            if is_last or (draw.plan not in trainer.buffer and draw.plan not in chosen):
                rollouts.append(draw)
                chosen.add(draw.plan)
        if len(rollouts) == count:
            break
    return rollouts


def _extremes(advantages: torch.Tensor, most: int | None) -> list[int]:
    """Return the indices of the ``most`` plans to learn from: half of them the best, half the worst; None: all.

    Args:
        advantages: Advantages of plans [B], or of their steps [B, T], whose mean counts.
        most: Number of plans to learn from.
    """
    if most is None or most >= len(advantages):
        return list(range(len(advantages)))
    by_advantage = advantages.reshape(len(advantages), -1).mean(dim=1).argsort(stable=True).tolist()
    return [*by_advantage[: most // 2], *by_advantage[most // 2 - most :]]
