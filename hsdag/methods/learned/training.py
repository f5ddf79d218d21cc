"""Training: draws plans, has them evaluated, and improves a policy by what they are worth.

Legend: B plans of an update, M decisions, T steps of an episode, U placement units.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hsdag.base.errors import SearchError
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.incumbent import LEAST_GAIN
from hsdag.methods.learned.options import Baseline, Reward, TrainingOptions
from hsdag.methods.learned.policy import Aim, Exploring, Policy, Rollout
from hsdag.runtime.problem.plan import Plan
from hsdag.search.evaluators.base import Checkpoint, Evaluator, Score

State = tuple[dict[str, torch.Tensor], dict[str, Any]]
"""What has to be kept to go on: tensors by name, and JSON values."""


class Buffer:
    """Digests of the plans that were seen; the best of them, the worst, and the reference.

    That is the best single device, or the first success.
    """

    def __init__(self, options: TrainingOptions) -> None:
        self.options = options
        self._seen: dict[int, None] = {}
        self._best: list[tuple[Plan, float]] = []
        self._marks: dict[str, tuple[Plan, float]] = {}

    def __contains__(self, plan: Plan) -> bool:
        return _digest(plan) in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def elites(self) -> list[tuple[Plan, float]]:
        """The best distinct plans with their values, as many as are imitated; earlier ones win ties."""
        return self._best[: self.options.elites]

    @property
    def best(self) -> float:
        """The best value, infinite before the first success."""
        return self._best[0][1] if self._best else np.inf

    def add(self, plans: Sequence[Plan], scores: Sequence[Score], *, single: bool = False) -> FloatArray:
        """[B] values of evaluated plans, NaN for failures; those of ``single`` devices are references."""
        for plan, score in zip(plans, scores, strict=True):
            self._seen[_digest(plan)] = None
            if score.failure is not None:
                continue
            if "worst" not in self._marks or score.value > self._marks["worst"][1]:
                self._marks["worst"] = plan, score.value
            if "reference" not in self._marks or (single and score.value < self._marks["reference"][1]):
                self._marks["reference"] = plan, score.value
            self._keep(plan, score.value)
        return np.array([np.nan if score.failure is not None else score.value for score in scores])

    def rescore(self, evaluator: Evaluator) -> None:
        """Have the plans that it holds scored again after a recalibration; failures keep their value or are dropped."""
        scores = evaluator.evaluate([plan for plan, _ in self._marks.values()])
        for (name, (plan, value)), score in zip(list(self._marks.items()), scores, strict=True):
            self._marks[name] = plan, value if score.failure is not None else score.value
        best, self._best = [plan for plan, _ in self._best], []
        for plan, score in zip(best, evaluator.evaluate(best), strict=True):
            if score.failure is None:
                self._keep(plan, score.value)

    def rewards(self, values: FloatArray) -> FloatArray:
        """[B] rewards of values; a failure, NaN, counts as FAILURE_FACTOR times the worst value seen."""
        worst, reference = (self._marks[name][1] if self._marks else np.nan for name in ("worst", "reference"))
        if not self._marks and not np.isnan(values).any():  # penalties alone
            worst, reference = float(np.max(values)), float(np.min(values))
        if np.isnan(worst) or worst == 0.0:
            return np.zeros(len(values))
        penalised = np.where(np.isnan(values), FAILURE_FACTOR * worst, values)
        if self.options.reward is Reward.INVERSE:
            return np.asarray(1.0 / penalised, dtype=np.float64)
        ratio = penalised / reference
        scaled = {Reward.NEGATIVE: ratio, Reward.SQUARE_ROOT: np.sqrt(ratio), Reward.LOG_RATIO: np.log(ratio)}
        return np.asarray(-scaled[self.options.reward], dtype=np.float64)

    def state(self) -> State:
        """What ``restore`` takes over."""
        plans = [
            [plan.placement.tolist(), None if plan.priority is None else plan.priority.tolist(), value]
            for plan, value in [*self._marks.values(), *self._best]
        ]
        return {"seen": torch.tensor(list(self._seen), dtype=torch.int64)}, {"marks": list(self._marks), "plans": plans}

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Take over what ``state`` gave."""
        self._seen = dict.fromkeys(tensors["seen"].tolist())
        kept = [
            (Plan(np.array(placement), None if order is None else np.array(order)), value)
            for placement, order, value in state["plans"]
        ]
        self._marks = dict(zip(state["marks"], kept, strict=False))
        self._best = kept[len(self._marks) :]

    def _keep(self, plan: Plan, value: float) -> None:
        if not any(plan == each for each, _ in self._best):
            self._best = sorted([*self._best, (plan, value)], key=lambda each: each[1])
            del self._best[max(self.options.elites, 1) :]


def _digest(plan: Plan) -> int:
    return int.from_bytes(hashlib.blake2b(plan.key, digest_size=8).digest(), signed=True)


FAILURE_FACTOR = 4.0  # a plan that failed counts as this many times the worst value seen
IN_UNIT_SCALE = (Baseline.BATCH, Baseline.RANKS)
ADVANTAGE_LIMIT = 3.0  # standard deviations
HEAT = 1.4  # the temperature rises by this factor for every draw that repeats a plan
SAVE_EVERY_S = 2.0
"""Between states that are stored where plans are simulated; where they are measured, every update is stored."""

NUM_FIRST = 16
"""Plans that a trained policy answers with at once: its most probable one, and draws."""
NUM_RECENT = 10
"""Plans that the recent baseline is the mean of (Placeto A.7)."""


@dataclass(eq=False)
class Trainer:
    """Improves one policy by the plans that it draws; all randomness comes from one generator.

    ``singles`` are plans of single devices, ``teacher`` gives decisions to imitate first. What a policy that
    ``is_trained`` answers at once is evaluated first, ``NUM_FIRST`` plans. ``name`` and the options have to be the same
    where a stored state is resumed. ``penalty`` gives values of plans that failed, NaN where it has none. The weight of
    entropy is ``spread`` times that of the options.
    """

    name: str
    policy: Policy
    evaluator: Evaluator
    options: TrainingOptions
    generator: torch.Generator
    singles: Sequence[Plan] = ()
    teacher: Callable[[torch.Generator], list[Rollout]] | None = None
    penalty: Callable[[Plan], float] | None = None
    is_trained: bool = False
    spread: float = 1.0

    def __post_init__(self) -> None:
        self._optimiser = torch.optim.Adam(self.policy.network.parameters(), lr=self.options.learning_rate, fused=True)
        self.buffer = Buffer(self.options)
        self._recent: list[FloatArray] = []
        self._update, self._idle_updates, self._better_at = 0, 0, 0
        self._scored_in = self.evaluator.version
        self._num_rewards, self._mean_reward = 0, 0.0
        self._step_share = 0.0

    def _rate(self, first: float, last: float) -> float:
        """A rate that changes linearly over the updates where their number is given, else over the budget."""
        progress = self._update / self.options.updates if self.options.updates else self.evaluator.progress
        return first + (last - first) * min(progress, 1.0)

    def run(self, checkpoint: Checkpoint | None = None, *, resumes: bool = True) -> None:
        """Train until the updates are over, nothing new is drawn, or nothing better for too long.

        The evaluator keeps what is found. Goes on from ``checkpoint`` where it holds a state and this ``resumes``.
        Raises SearchStopped when the evaluator does.
        """
        patience = self.options.patience
        saved_s = -np.inf
        if not (resumes and self._resume(checkpoint)):
            self.begin()
            self._save(checkpoint)
        most = np.inf if self.options.updates is None else self.options.updates
        while self._update < most and not 0 < patience <= self._idle_updates and not self.is_stagnant:
            self.update()
            if not self.evaluator.is_cheap or time.monotonic() - saved_s > SAVE_EVERY_S:
                self._save(checkpoint)
                saved_s = time.monotonic()
        self._save(checkpoint)

    @property
    def is_stagnant(self) -> bool:
        """Whether no better plan was drawn for too long."""
        return 0 < self.options.stagnation <= self._update - self._better_at

    def begin(self) -> None:
        """Have the plans of single devices evaluated, if asked, and what a trained policy answers at once."""
        if self.options.single_devices_first and self.singles:
            self._evaluate(self.singles, single=True)
        if self.is_trained:
            draws = self.policy.draw(NUM_FIRST - 1, Exploring(), self.generator)
            self._evaluate([rollout.plan for rollout in (self.policy.best(self.generator), *draws)])

    def update(self) -> None:
        """One update: of the first ones, those that imitate the teacher; else from plans that are drawn."""
        if self.teacher is not None and self._update < self.options.teacher_updates:
            self.evaluator.check()
            self._step([(self.teacher(self.generator), None)])
        else:
            self._learn_from_draws()
        self._update += 1

    def _learn_from_draws(self) -> None:
        """Draw plans, have them evaluated, and learn from them and from elites."""
        before, best = len(self.buffer), self.buffer.best
        rollouts = self._drawn()
        values = self._evaluate([rollout.plan for rollout in rollouts])
        advantages = torch.tensor(self.advantages(values, rollouts), dtype=torch.float32)
        if self.options.greedy_every and self._update % self.options.greedy_every == 0:
            self._evaluate([self.policy.best(self.generator).plan])
        kept = self._extremes(advantages)
        groups: list[tuple[Sequence[Rollout], torch.Tensor | None]] = [([rollouts[b] for b in kept], advantages[kept])]
        if self.buffer.elites:
            groups.append((self.policy.replay([plan for plan, _ in self.buffer.elites], self.generator), None))
        self._idle_updates = 0 if len(self.buffer) > before else self._idle_updates + 1
        if self.buffer.best < best * (1 - LEAST_GAIN):
            self._better_at = self._update
        for _ in range(self.options.epochs):
            self.evaluator.check()
            begin = self.evaluator.progress
            if begin + self._step_share < 1.0:  # else no draw is left that would gain from it
                self._step(groups)
                self._step_share = self.evaluator.progress - begin

    def _extremes(self, advantages: torch.Tensor) -> list[int]:
        """The plans to learn from, by advantages [B] or [B, T]: the best and the worst, or all."""
        most = self.options.kept_per_update
        if most is None or most >= len(advantages):
            return list(range(len(advantages)))
        by_advantage = advantages.reshape(len(advantages), -1).mean(dim=1).argsort(stable=True).tolist()
        return [*by_advantage[: most // 2], *by_advantage[most // 2 - most :]]

    @torch.no_grad()
    def _drawn(self) -> list[Rollout]:
        """Plans to evaluate; those that repeat plans are drawn again, at rising temperatures."""
        options = self.options
        chosen = set[Plan]()
        found = list[Rollout]()
        count = max(options.plans_per_update, int(options.growth * len(self.buffer)))
        share = self._rate(options.exploration, 0.0)
        for attempt in range(options.resample_tries):
            draws = self.policy.draw(count - len(found), Exploring(share, HEAT**attempt), self.generator)
            is_last = attempt + 1 == options.resample_tries
            for draw in draws:
                if is_last or (draw.plan not in self.buffer and draw.plan not in chosen):
                    found.append(draw)
                    chosen.add(draw.plan)
            if len(found) == count:
                break
        return found

    def _evaluate(self, plans: Sequence[Plan], *, single: bool = False) -> FloatArray:
        """[B] values of plans, NaN for failures."""
        scores = self.evaluator.evaluate(plans)
        if self.evaluator.version != self._scored_in:
            self._scored_in = self.evaluator.version
            self.buffer.rescore(self.evaluator)
        return self.buffer.add(plans, scores, single=single)

    def advantages(self, values: FloatArray, rollouts: Sequence[Rollout]) -> FloatArray:
        """[B] weight of every plan: discounted reward, less the baseline and in unit scale if asked.

        [B, T] weights of steps where rollouts have trails of T plans: the reward of the plan less that of the step's.
        """
        options = self.options
        rewards = self._rewards([rollout.plan for rollout in rollouts], values)
        if trail := [plan for rollout in rollouts for plan in rollout.trail]:
            rewards = rewards[:, None] - self._rewards(trail, self._evaluate(trail)).reshape(len(rollouts), -1)
        if options.baseline is Baseline.RANKS:
            from scipy.stats import rankdata  # not at the top: it takes long to load

            rewards = rankdata(rewards, axis=0)
        discount = options.discount ** np.array([rollout.step for rollout in rollouts], dtype=np.float64)
        weights = rewards - self._baseline(rewards)
        if options.baseline in IN_UNIT_SCALE:
            weights /= max(float(rewards.std(axis=0).mean()), options.advantage_floor)
            weights = np.clip(weights, -ADVANTAGE_LIMIT, ADVANTAGE_LIMIT)
        return np.asarray((weights.T * discount).T, dtype=np.float64)

    def _rewards(self, plans: Sequence[Plan], values: FloatArray) -> FloatArray:
        """[B] rewards of plans; those that failed have the value that the penalty gives, if any."""
        if self.penalty is not None:
            pairs = zip(plans, values, strict=True)
            values = np.array([self.penalty(plan) if np.isnan(value) else value for plan, value in pairs])
        return self.buffer.rewards(values)

    def _baseline(self, rewards: FloatArray) -> FloatArray | float:
        """What is subtracted from rewards [B] or [B, T]: a number, or one for every step."""
        mean = np.asarray(rewards.mean(axis=0), dtype=np.float64)
        if self.options.baseline in IN_UNIT_SCALE:
            return mean
        if self.options.baseline is Baseline.RUNNING:
            baseline = self._mean_reward if self._num_rewards else float(rewards.mean())
            total = self._num_rewards * self._mean_reward + float(rewards.sum())
            self._num_rewards += rewards.size
            self._mean_reward = total / self._num_rewards
            return baseline
        if self.options.baseline is Baseline.RECENT:
            recent = np.mean(self._recent, axis=0) if self._recent else mean
            self._recent = [*self._recent, *rewards][-NUM_RECENT:]
            return np.asarray(recent, dtype=np.float64)
        return 0.0

    def _step(self, groups: Sequence[tuple[Sequence[Rollout], torch.Tensor | None]]) -> None:
        """One step of Adam on rollouts and their advantages; those without any are imitated."""
        for parameters in self._optimiser.param_groups:
            parameters["lr"] = self._rate(self.options.learning_rate, self.options.last_learning_rate)
        self._optimiser.zero_grad(set_to_none=True)
        options = self.options
        entropy = self.spread * self._rate(options.entropy, options.last_entropy)
        aim = Aim(options.clip, entropy, options.imitation_weight)
        loss = torch.stack([self.policy.loss(rollouts, advantages, aim) for rollouts, advantages in groups]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        if options.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.policy.network.parameters(), options.max_grad_norm)
        self._optimiser.step()

    def _save(self, checkpoint: Checkpoint | None) -> None:
        """Keep weights as ``policy.NAME``, Adam's moments as ``adam.NUMBER.MOMENT``, and all that changes."""
        if checkpoint is None:
            return
        tensors, of_buffer = self.buffer.state()
        tensors |= {f"policy.{name}": tensor for name, tensor in self.policy.network.state_dict().items()}
        for i, moments in self._optimiser.state_dict()["state"].items():
            tensors |= {f"adam.{i}.{moment}": tensor for moment, tensor in moments.items()}
        own = {
            "buffer": of_buffer,
            "update": self._update,
            "idle_updates": self._idle_updates,
            "better_at": self._better_at,
            "num_rewards": self._num_rewards,
            "mean_reward": self._mean_reward,
            "spread": self.spread,
            "recent": np.array(self._recent).tolist(),
        }
        checkpoint.save(
            {**tensors, "generator": self.generator.get_state()}, described(self.name, self.options.as_dict()) | own
        )

    def _resume(self, checkpoint: Checkpoint | None) -> bool:
        """Take over a stored state; False where there is none."""
        stored = checkpoint.load() if checkpoint is not None else None
        if stored is None:
            return False
        tensors, state = stored
        check_same(described(self.name, self.options.as_dict()), state)
        weights = {k.removeprefix("policy."): v for k, v in tensors.items() if k.startswith("policy.")}
        self.policy.network.load_state_dict(weights)
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("adam."):
                _, i, moment = name.split(".")
                moments.setdefault(int(i), {})[moment] = tensor.clone()
        self._optimiser.load_state_dict({**self._optimiser.state_dict(), "state": moments})
        self.generator.set_state(tensors["generator"])
        self.buffer.restore(tensors, state["buffer"])
        self._update, self._idle_updates = state["update"], state["idle_updates"]
        self._better_at, self.spread = state["better_at"], state["spread"]
        self._num_rewards, self._mean_reward = state["num_rewards"], state["mean_reward"]
        self._recent = list(np.array(state["recent"]))
        return True


STATES = 4
"""The version of stored states."""


def described(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a state is of, kept with it: a method under options, JSON values by name."""
    return {"states": STATES, "method": method, "config": json.loads(json.dumps(dict(options)))}


def check_same(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Raise SearchError unless a stored state is of what is ``wanted``, both as ``described``."""
    method = wanted["method"]
    if stored.get("method") != method:
        raise SearchError(f"the stored state is of method {stored.get('method')!r}, not {method!r}; start anew")
    if stored.get("states") != STATES:
        raise SearchError("the stored state is that of another version of hsdag; start anew")
    before, now = stored["config"], wanted["config"]
    if changed := sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k)):
        raise SearchError(
            f"the stored state was made with other options of {method} ({', '.join(changed)}); "
            "resume with the same ones or start anew"
        )
