"""Training: draws plans, has them evaluated, and improves a policy by what they are worth.

Legend: B plans of an update, M decisions, U placement units.
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
from scipy.stats import rankdata
from torch import nn

from hsdag.ir.errors import SearchError
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.learned.options import Baseline, Reward, TrainingOptions
from hsdag.methods.learned.policy import Exploring, Policy, Rollout, first_plans
from hsdag.runtime.problem.plan import Plan
from hsdag.scoring.base import Checkpoint, Evaluator, Score

DIGEST_BYTES = 16


class Buffer:
    """Digests of what was seen; the best, the worst and the elites of it, and the reference.

    That is the best single device, or the first success.
    """

    def __init__(self, options: TrainingOptions) -> None:
        self._options = options
        self._seen: dict[bytes, None] = {}
        self._marks: dict[str, tuple[Plan, float]] = {}
        self.elites: list[tuple[Plan, float]] = []

    def __contains__(self, plan: Plan) -> bool:
        return _digest(plan) in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def best(self) -> float:
        """The least value so far, infinite before the first success."""
        return self._marks["best"][1] if "best" in self._marks else np.inf

    def add(self, plans: Sequence[Plan], scores: Sequence[Score], *, single: bool = False) -> FloatArray:
        """[B] values of evaluated plans, NaN for failures; those of ``single`` devices are references."""
        for plan, score in zip(plans, scores, strict=True):
            self._seen[_digest(plan)] = None
            if score.failure is not None:
                continue
            if score.value < self.best:
                self._marks["best"] = plan, score.value
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
        elites, self.elites = [plan for plan, _ in self.elites], []
        for plan, score in zip(elites, evaluator.evaluate(elites), strict=True):
            if score.failure is None:
                self._keep(plan, score.value)

    def rewards(self, values: FloatArray) -> FloatArray:
        """[B] rewards of values; a failure, NaN, counts as ``failure_factor`` times the worst value seen."""
        if not self._marks or self._marks["worst"][1] == 0.0:
            return np.zeros(len(values))
        penalised = np.where(np.isnan(values), self._options.failure_factor * self._marks["worst"][1], values)
        if self._options.reward is Reward.INVERSE:
            return np.asarray(1.0 / penalised, dtype=np.float64)
        ratio = penalised / self._marks["reference"][1]
        scaled = {Reward.NEGATIVE: ratio, Reward.SQUARE_ROOT: np.sqrt(ratio), Reward.LOG_RATIO: np.log(ratio)}
        return np.asarray(-scaled[self._options.reward], dtype=np.float64)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The state as tensors by name."""
        seen = np.frombuffer(b"".join(self._seen), dtype=np.uint8).reshape(-1, DIGEST_BYTES).copy()
        tensors = {"memory.seen": torch.from_numpy(seen)}
        kept = {**self._marks, **{f"elite{i}": elite for i, elite in enumerate(self.elites)}}
        for name, (plan, value) in kept.items():
            tensors[f"memory.{name}.placement"] = torch.from_numpy(plan.placement.copy())
            if plan.order is not None:
                tensors[f"memory.{name}.order"] = torch.from_numpy(plan.order.copy())
            tensors[f"memory.{name}.value"] = torch.tensor(value, dtype=torch.float64)
        return tensors

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over the state that ``tensors`` gave."""
        self._seen = {row.tobytes(): None for row in tensors["memory.seen"].numpy()}
        self._marks, self.elites = {}, []
        for name in ("best", "worst", "reference", *(f"elite{i}" for i in range(self._options.elites))):
            if f"memory.{name}.value" not in tensors:
                continue
            order = tensors.get(f"memory.{name}.order")
            plan = Plan(tensors[f"memory.{name}.placement"].numpy(), None if order is None else order.numpy())
            kept = plan, float(tensors[f"memory.{name}.value"])
            if name.startswith("elite"):
                self.elites.append(kept)
            else:
                self._marks[name] = kept

    def _keep(self, plan: Plan, value: float) -> None:
        """Keep the best distinct plans as elites; earlier ones win ties."""
        if self._options.elites == 0 or any(plan == each for each, _ in self.elites):
            return
        self.elites = sorted([*self.elites, (plan, value)], key=lambda each: each[1])[: self._options.elites]


def _digest(plan: Plan) -> bytes:
    return hashlib.blake2b(plan.key, digest_size=DIGEST_BYTES).digest()


IN_UNIT_SCALE = (Baseline.BATCH, Baseline.RANKS)
ADVANTAGE_LIMIT = 3.0  # standard deviations
HEAT = 1.4  # the temperature rises by this factor for every draw that repeats a plan
RATIO_LIMIT = 3.0  # an importance weight beyond it pulls no more, whatever the sign of the advantage
SAVE_EVERY_S = 2.0
"""Between states that are stored where plans are simulated; where they are measured, every update is stored."""

NUM_FIRST = 16
"""Plans that a trained policy answers with at once: its most probable one, and draws."""
NUM_RECENT = 10
"""Plans that the recent baseline is the mean of (Placeto A.7)."""

Improve = Callable[[Plan], Plan]
"""A plan as an expert would have it."""


@dataclass(frozen=True)
class Progress:
    """One update, for learning curves; values are in the objective's unit."""

    update: int
    num_plans: int
    mean_value: float
    best_value: float
    best_so_far: float
    entropy: float
    grad_norm: float


class Trainer:
    """Improves one policy by the plans that it draws; all randomness comes from one generator.

    ``singles`` are placements [U] of single devices, ``teacher`` gives decisions to imitate first, ``improve`` is the
    expert of expert iteration. ``progress`` is the share of the training that is over, by default that of the updates
    where their number is given, else of the budget. What a policy that ``is_trained`` answers at once is evaluated
    first, ``NUM_FIRST`` plans. ``name`` and the options have to be the same where a stored state is resumed.
    ``penalty`` gives values of plans that failed, NaN where it has none. Trainers of several problems may share a
    network and its ``optimiser``.
    """

    def __init__(
        self,
        name: str,
        policy: Policy,
        evaluator: Evaluator,
        options: TrainingOptions,
        generator: torch.Generator,
        *,
        singles: Sequence[IntArray] = (),
        teacher: Callable[[int, torch.Generator], list[Rollout]] | None = None,
        improve: Improve | None = None,
        penalty: Callable[[Plan], float] | None = None,
        progress: Callable[[], float] | None = None,
        optimiser: torch.optim.Adam | None = None,
        is_trained: bool = False,
        on_update: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._name, self.policy, self._evaluator, self._options = name, policy, evaluator, options
        self._generator, self._singles, self._is_trained = generator, singles, is_trained
        self._teacher, self._improve, self._penalty, self._on_update = teacher, improve, penalty, on_update
        self._progress = progress or self._own_progress
        self._optimiser = optimiser or torch.optim.Adam(
            policy.network.parameters(), lr=options.learning_rate, fused=True
        )
        self.buffer = Buffer(options)
        self._experts: list[Plan] = []
        self._recent: list[FloatArray] = []
        self._update, self._idle_updates, self._scored_in = 0, 0, evaluator.version
        self._num_rewards, self._mean_reward, self._saved_s = 0, 0.0, 0.0
        self._grad_norm = self._entropy = 0.0

    @property
    def progress(self) -> float:
        """The share of the training that is over."""
        return min(self._progress(), 1.0)

    def _own_progress(self) -> float:
        return self._update / self._options.updates if self._options.updates else self._evaluator.progress

    def run(self, checkpoint: Checkpoint | None = None) -> None:
        """Train until the updates are over or nothing new is drawn; the evaluator keeps what is found.

        Goes on from ``checkpoint`` where it holds a state. Raises SearchStopped when the evaluator does.
        """
        options = self._options
        if not self._resume(checkpoint):
            self.begin()
            self._save(checkpoint)
        most = np.inf if options.updates is None else options.updates
        while self._update < most and not 0 < options.patience <= self._idle_updates:
            self.update()
            if not self._evaluator.is_cheap or time.monotonic() - self._saved_s > SAVE_EVERY_S:
                self._save(checkpoint)
        self._save(checkpoint)

    def begin(self) -> None:
        """Have the plans of single devices evaluated, if asked, and what a trained policy answers at once."""
        if self._options.single_devices_first and self._singles:
            self._evaluate([Plan(each) for each in self._singles], single=True)
        if self._is_trained:
            self._evaluate(first_plans(self.policy, NUM_FIRST, self._generator))

    def update(self) -> None:
        """One update: of the first ones, those that imitate the teacher; else from plans that are drawn."""
        if self._teacher is not None and self._update < self._options.teacher_updates:
            self._evaluator.check()
            self._step([(self._teacher(self._options.plans_per_update, self._generator), None)])
        else:
            self._learn_from_draws()
        self._update += 1

    def _learn_from_draws(self) -> None:
        """Draw plans, have them evaluated, and learn from them, from elites and from the expert."""
        before, options = len(self.buffer), self._options
        rollouts = self._drawn()
        values = self._evaluate([rollout.plan for rollout in rollouts])
        advantages = torch.tensor(self.advantages(values, rollouts), dtype=torch.float32)
        if options.greedy_every and self._update % options.greedy_every == 0:
            self._evaluate([self.policy.best(self._generator).plan])
        kept = self._extremes(advantages)
        groups: list[tuple[Sequence[Rollout], torch.Tensor | None]] = [([rollouts[b] for b in kept], advantages[kept])]
        imitated = [plan for plan, _ in self.buffer.elites] + self._ask_expert(rollouts, values)
        if imitated:
            groups.append((self.policy.replay(imitated, self._generator), None))
        self._idle_updates = 0 if len(self.buffer) > before else self._idle_updates + 1
        for _ in range(options.epochs):
            self._evaluator.check()
            self._step(groups)
        known = values[np.isfinite(values)]
        mean, best = (float(known.mean()), float(known.min())) if len(known) else (np.inf, np.inf)
        so_far, gradient = self.buffer.best, self._grad_norm
        self._on_update(Progress(self._update, len(self.buffer), mean, best, so_far, self._entropy, gradient))

    def _extremes(self, advantages: torch.Tensor) -> list[int]:
        """The plans to learn from, by advantages [B] or [B, T]: the best and the worst, or all."""
        most = self._options.kept_per_update
        if most is None or most >= len(advantages):
            return list(range(len(advantages)))
        by_advantage = advantages.reshape(len(advantages), -1).mean(dim=1).argsort(stable=True).tolist()
        return [*by_advantage[: most // 2], *by_advantage[most // 2 - most :]]

    def _ask_expert(self, rollouts: Sequence[Rollout], values: FloatArray) -> list[Plan]:
        every = self._options.expert_every
        if self._improve is not None and every and self._update % every == 0 and np.isfinite(values).any():
            better = self._improve(rollouts[int(np.nanargmin(values))].plan)
            self._evaluate([better])
            self._experts = [*self._experts, better][-max(self._options.elites, 1) :]
        return self._experts

    @torch.no_grad()
    def _drawn(self) -> list[Rollout]:
        """Plans to evaluate; those that repeat plans are drawn again, at rising temperatures."""
        options, chosen, found = self._options, set[Plan](), list[Rollout]()
        count = max(options.plans_per_update, int(options.growth * len(self.buffer)))
        share = _between(options.exploration, options.last_exploration, self.progress)
        for attempt in range(options.resample_tries):
            draws = self.policy.draw(count - len(found), Exploring(share, HEAT**attempt), self._generator)
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
        scores = self._evaluator.evaluate(plans)
        if self._evaluator.version != self._scored_in:
            self._scored_in = self._evaluator.version
            self.buffer.rescore(self._evaluator)
        return self.buffer.add(plans, scores, single=single)

    def advantages(self, values: FloatArray, rollouts: Sequence[Rollout]) -> FloatArray:
        """[B] weight of every plan: discounted reward, less the baseline and in unit scale if asked.

        [B, T] weights of steps where rollouts have trails of T plans: the reward of the plan less that of the step's.
        """
        options, rewards = self._options, self._rewards([rollout.plan for rollout in rollouts], values)
        trail = [plan for rollout in rollouts for plan in rollout.trail]
        if trail:
            rewards = rewards[:, None] - self._rewards(trail, self._evaluate(trail)).reshape(len(rollouts), -1)
        if options.baseline is Baseline.RANKS:
            rewards = rankdata(rewards, axis=0)
        discount = options.discount ** np.array([rollout.step for rollout in rollouts], dtype=np.float64)
        weights = rewards - self._baseline(rewards)
        if options.baseline in IN_UNIT_SCALE:
            weights /= max(float(rewards.std(axis=0).mean()), options.advantage_floor)
            weights = np.clip(weights, -ADVANTAGE_LIMIT, ADVANTAGE_LIMIT)
        return np.asarray((weights.T * discount).T, dtype=np.float64)

    def _rewards(self, plans: Sequence[Plan], values: FloatArray) -> FloatArray:
        """[B] rewards of plans; those that failed have the value that the penalty gives, if any."""
        if self._penalty is not None:
            pairs = zip(plans, values, strict=True)
            values = np.array([self._penalty(plan) if np.isnan(value) else value for plan, value in pairs])
        return self.buffer.rewards(values)

    def _baseline(self, rewards: FloatArray) -> FloatArray | float:
        """What is subtracted from rewards [B] or [B, T]: a number, or one for every step."""
        kind, mean = self._options.baseline, np.asarray(rewards.mean(axis=0), dtype=np.float64)
        if kind in IN_UNIT_SCALE:
            return mean
        if kind is Baseline.RUNNING:
            known, total = self._num_rewards, self._num_rewards * self._mean_reward + float(rewards.sum())
            baseline = self._mean_reward if known else float(rewards.mean())
            self._num_rewards, self._mean_reward = known + rewards.size, total / (known + rewards.size)
            return baseline
        if kind is Baseline.RECENT:
            recent = np.mean(self._recent, axis=0) if self._recent else mean
            self._recent = [*self._recent, *rewards][-NUM_RECENT:]
            return np.asarray(recent, dtype=np.float64)
        return 0.0

    def _step(self, groups: Sequence[tuple[Sequence[Rollout], torch.Tensor | None]]) -> None:
        """One step of Adam on rollouts and their advantages; those without any are imitated."""
        rate = _between(self._options.learning_rate, self._options.last_learning_rate, self.progress)
        for parameters in self._optimiser.param_groups:
            parameters["lr"] = rate
        self._optimiser.zero_grad(set_to_none=True)
        loss = torch.stack([self.loss(rollouts, advantages) for rollouts, advantages in groups]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        limit = self._options.max_grad_norm or float("inf")
        self._grad_norm = float(torch.nn.utils.clip_grad_norm_(self.policy.network.parameters(), limit))
        self._optimiser.step()

    def loss(self, rollouts: Sequence[Rollout], advantages: torch.Tensor | None) -> torch.Tensor:
        """- mean over decisions of advantage times log-probability, less the entropy bonus; Adam ignores the scale.

        With ``clip``, importance weights relative to the distribution that was drawn from replace log-probabilities
        (Schulman et al. 2017, eq. 7). Without advantages, decisions are imitated (DOPPLER, eq. 9).
        """
        options = self._options
        now = self.policy.likelihood(rollouts)
        if advantages is None:
            return -options.imitation_weight * now.log_p.mean()
        weights = advantages[now.owner] if advantages.ndim == 1 else advantages[now.owner, now.step]
        if options.clip:
            ratio = torch.exp((now.log_p - now.drawn).clamp(-5.0, 5.0))
            clipped = ratio.clamp(1.0 - options.clip, 1.0 + options.clip)
            gain = torch.minimum(ratio * weights, clipped * weights)
            gain = torch.maximum(gain, RATIO_LIMIT * weights.clamp(max=0.0))
        else:
            gain = now.log_p * weights
        bonus = _between(options.entropy, options.last_entropy, self.progress)
        self._entropy = float(now.entropy.detach().mean())
        return -gain.mean() - bonus * now.entropy.mean()

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """What has to be kept of this trainer beside network, optimiser and generator."""
        tensors = self.buffer.tensors()
        for i, plan in enumerate(self._experts):
            tensors[f"expert{i}"] = torch.from_numpy(np.stack([plan.placement, _ranks(plan)]))
        tensors |= {f"recent{i}": torch.from_numpy(np.array(reward)) for i, reward in enumerate(self._recent)}
        return tensors, {
            "update": self._update,
            "idle_updates": self._idle_updates,
            "num_rewards": self._num_rewards,
            "mean_reward": self._mean_reward,
            "num_experts": len(self._experts),
            "num_recent": len(self._recent),
        }

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Take over what ``state`` gave."""
        self.buffer.restore(tensors)
        self._update, self._idle_updates = int(state["update"]), int(state["idle_updates"])
        self._num_rewards, self._mean_reward = int(state["num_rewards"]), float(state["mean_reward"])
        self._experts = [_plan(tensors[f"expert{i}"].numpy()) for i in range(int(state["num_experts"]))]
        self._recent = [tensors[f"recent{i}"].numpy() for i in range(int(state["num_recent"]))]

    def _save(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        self._saved_s = time.monotonic()
        tensors, state = self.state()
        tensors |= learner_tensors(self.policy.network, self._optimiser, self._generator)
        checkpoint.save(tensors, {"method": self._name, "config": self._options.as_dict(), **state})

    def _resume(self, checkpoint: Checkpoint | None) -> bool:
        """Take over a stored state; False where there is none."""
        stored = checkpoint.load() if checkpoint is not None else None
        if stored is None:
            return False
        tensors, state = stored
        check_stored(self._name, self._options, state)
        load_learner(self.policy.network, self._optimiser, self._generator, tensors)
        self.restore(tensors, state)
        return True


def _ranks(plan: Plan) -> IntArray:
    """[U] the ranks of a plan, -1 where it has none."""
    return np.full(len(plan.placement), -1) if plan.order is None else plan.order


def _plan(stored: IntArray) -> Plan:
    return Plan(stored[0], stored[1] if (stored[1] >= 0).all() else None)


def _between(first: float, last: float, progress: float) -> float:
    return first + (last - first) * progress


MOMENTS = ("exp_avg", "exp_avg_sq", "step")
GONE = {"messages_each_step": False, "levels": 1}
"""Options of earlier versions that are no more, and the values that what is left stands for."""


def learner_tensors(
    network: nn.Module, optimiser: torch.optim.Adam, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Weights as ``policy.<parameter>``, Adam's moments as ``adam.<moment>.<parameter>``, and the generator's state."""
    tensors = {f"policy.{name}": t.detach().clone() for name, t in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        for moment, value in optimiser.state.get(parameter, {}).items():
            tensors[f"adam.{moment}.{name}"] = value.detach().clone()
    return {**tensors, "generator": generator.get_state()}


def load_learner(
    network: nn.Module,
    optimiser: torch.optim.Adam,
    generator: torch.Generator,
    tensors: Mapping[str, torch.Tensor],
) -> None:
    """Take over what ``learner_tensors`` gave."""
    network.load_state_dict({k.removeprefix("policy."): v for k, v in tensors.items() if k.startswith("policy.")})
    for name, parameter in network.named_parameters():
        if f"adam.step.{name}" in tensors:
            optimiser.state[parameter] = {m: tensors[f"adam.{m}.{name}"].clone() for m in MOMENTS}
    generator.set_state(tensors["generator"])


def check_stored(method: str, options: TrainingOptions, state: Mapping[str, Any]) -> None:
    """Raise SearchError unless the stored state was written by the method under the same options."""
    older = type(options)().as_dict()  # older states lack options that had no effect yet
    check_same(method, options.as_dict(), {**state, "config": older | without_gone(state.get("config", {}))})


def check_same(method: str, options: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raise SearchError unless the stored state is of the method under the same options, JSON values by name."""
    if state.get("method") != method:
        raise SearchError(f"the stored state is of method {state.get('method')!r}, not {method!r}; start anew")
    stored, wanted = dict(state.get("config", {})), json.loads(json.dumps(dict(options)))
    changed = sorted(k for k in stored.keys() | wanted.keys() if stored.get(k) != wanted.get(k))
    if changed:
        raise SearchError(
            f"the stored state was made with other options of {method} ({', '.join(changed)}); "
            "resume with the same ones or start anew"
        )


def without_gone(options: Mapping[str, Any]) -> dict[str, Any]:
    """Stored options without those of earlier versions that make no difference."""
    return {name: value for name, value in options.items() if name not in GONE or value != GONE[name]}
