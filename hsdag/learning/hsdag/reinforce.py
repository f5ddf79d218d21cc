"""REINFORCE for HSDAG: draws placements, evaluates them, improves the policy (paper §2.5, Alg. 1).

Legend: U placement units, F features, B placements of one update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from hsdag.evaluators.base import Checkpoint, Evaluator
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.learning.hsdag.config import Baseline, HsdagConfig
from hsdag.learning.hsdag.memory import Memory
from hsdag.learning.hsdag.policy import Bundle, Draw, Experience, HsdagPolicy, Situation, View
from hsdag.learning.hsdag.snapshot import (
    check_stored,
    elites_from_tensors,
    elites_to_tensors,
    load_optimiser,
    optimiser_tensors,
)
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem

ADVANTAGE_LIMIT = 3.0  # standard deviations
HEAT = 1.4  # the temperature rises by this factor for every draw that repeats a placement
RATIO_LIMIT = 3.0  # an importance weight beyond it pulls no more, whatever the sign of the advantage


class Trainer:
    """One search: ``run`` draws, evaluates and learns until it converges or the evaluator stops it.

    ``x`` [U, F] are standardised features. All randomness comes from one generator, seeded with ``seed``.
    """

    def __init__(self, problem: Problem, evaluator: Evaluator, x: torch.Tensor, config: HsdagConfig, seed: int) -> None:
        self._problem, self._evaluator, self._config = problem, evaluator, config
        self._generator = torch.Generator().manual_seed(seed)
        self.policy = HsdagPolicy(problem, x, config, self._generator)
        self._optimiser = torch.optim.Adam(self.policy.parameters(), lr=config.learning_rate)
        self.memory = Memory(config)
        self._elites: list[Experience] = []
        self._episode, self._idle_updates, self._scored_in = 0, 0, evaluator.version

    def run(self, checkpoint: Checkpoint | None = None) -> None:
        """Search until the policy converges; the evaluator keeps what is found.

        Goes on from ``checkpoint`` where it holds a state, and saves after every update. Raises SearchStopped
        when the evaluator does.
        """
        if not self._resume(checkpoint):
            if self._config.single_devices_first:
                self._keep_elites(self._try_single_devices())
            self._save(checkpoint)
        patience = self._config.patience
        while self._episode < self._config.episodes and not 0 < patience <= self._idle_updates:
            experiences = self._play_episode()
            self.learn(experiences)
            self._keep_elites(experiences)
            self._episode += 1
            self._save(checkpoint)

    @torch.no_grad()
    def most_probable(self) -> IntArray:
        """[U] the placement that the policy finds most probable at the start of an episode."""
        start = Situation(None, None)
        return self.policy.greedy(start, self.policy.view(start)).placement

    @torch.no_grad()
    def _try_single_devices(self) -> list[Experience]:
        situation = Situation(None, None)
        view = self.policy.view(situation)
        draws = [self.policy.uniform(situation, view, d) for d in range(self._problem.num_devices)]
        return self._evaluate(draws, step=1, single=True)

    @torch.no_grad()
    def _play_episode(self) -> list[Experience]:
        experiences: list[Experience] = []
        state: torch.Tensor | None = None
        before = len(self.memory)
        for step in range(1, self._config.steps_per_episode + 1):
            is_dropping = self._config.dropout > 0  # masks follow from a seed
            seed = int(torch.randint(2**62, (1,), generator=self._generator)) if is_dropping else None
            situation = Situation(state, seed)
            view = self.policy.view(situation)
            draws = self._candidates(situation, view)
            experiences += self._evaluate(draws, step)
            state = self.policy.next_state(view, draws[-1].parse)
        self._idle_updates = 0 if len(self.memory) > before else self._idle_updates + 1
        return experiences

    def _candidates(self, situation: Situation, view: View) -> list[Draw]:
        """The placements to evaluate from one situation, new ones as far as they are found."""
        config = self._config
        draws: list[Draw] = []
        if config.greedy_every and self._episode % config.greedy_every == 0:
            plain = Situation(situation.state, None)
            greedy = self.policy.greedy(plain, self.policy.view(plain))
            if greedy.placement not in self.memory:
                draws.append(greedy)
        reach = config.exploration * 0.5 ** (self._episode / config.exploration_half_life)
        chosen = {d.placement.tobytes() for d in draws}
        attempt = 0
        while len(draws) < config.placements_per_step:
            for attempt in range(max(attempt - 2, 0), config.resample_tries):  # noqa: B020 - goes on from the last
                draw = self.policy.draw(situation, view, self._generator, HEAT**attempt, reach)
                placement = draw.placement
                new = placement not in self.memory and placement.tobytes() not in chosen
                if new:
                    break
            chosen.add(placement.tobytes())
            draws.append(draw)
            if not new and config.resample_tries > 1:
                break
        return draws

    def _evaluate(self, draws: Sequence[Draw], step: int, *, single: bool = False) -> list[Experience]:
        placements = [draw.placement for draw in draws]
        scores = self._evaluator.evaluate([Plan(placement) for placement in placements])
        if self._evaluator.version != self._scored_in:
            self._rescore()
        values = self.memory.add(placements, scores, single=single)
        return [Experience(d, float(v), step) for d, v in zip(draws, values, strict=True)]

    def _rescore(self) -> None:
        """Request all scores that are held again: costs were recalibrated."""
        self._scored_in = self._evaluator.version
        self.memory.rescore(self._evaluator)
        scores = self._evaluator.evaluate([Plan(elite.draw.placement) for elite in self._elites])
        kept = [(elite, score) for elite, score in zip(self._elites, scores, strict=True) if score.failure is None]
        self._elites = [replace(elite, value=score.value) for elite, score in kept]

    def learn(self, experiences: list[Experience]) -> None:
        """K_epochs of Adam on the experiences and the elites."""
        batch = experiences + self._elites
        weights = torch.tensor(self.advantages(experiences, batch), dtype=torch.float32)
        bundles = self.policy.bundle([e.draw for e in batch])
        weights = weights[torch.cat([b.owner for b in bundles])]
        with torch.no_grad():
            before = self.policy.log_probs(bundles)[0] if self._config.clip else None
        for _ in range(self._config.epochs):
            self._evaluator.check()
            loss = self.loss(bundles, weights, before)
            self._optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            if self._config.max_grad_norm:
                torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self._config.max_grad_norm)
            self._optimiser.step()

    def loss(self, bundles: Sequence[Bundle], weights: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
        """- sum_i weight_i log p(P_i | G'_i) (Eq. 14), less the entropy bonus.

        ``weights`` has an entry for every decision. With the log-probabilities ``before`` learning, every
        decision gets an importance weight, clipped.
        """
        config = self._config
        log_p, entropy = self.policy.log_probs(bundles)
        if config.clip and before is not None:
            ratio = torch.exp((log_p - before).clamp(-5.0, 5.0))
            clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
            gain = torch.minimum(ratio * weights, clipped * weights)
            gain = torch.maximum(gain, RATIO_LIMIT * weights.clamp(max=0.0))
        else:
            gain = log_p * weights
        bonus = config.entropy * 0.5 ** (self._episode / config.entropy_half_life)
        return torch.as_tensor(-gain.sum() - bonus * entropy.sum())

    def advantages(self, experiences: list[Experience], batch: list[Experience]) -> FloatArray:
        """[B] weight of every experience: discounted reward, less the baseline and in unit scale if asked."""
        rewards = self.memory.rewards(np.asarray([e.value for e in batch]))
        discount = self._config.discount ** np.asarray([e.step for e in batch], dtype=np.float64)
        if self._config.baseline is Baseline.NONE:
            return rewards * discount
        fresh = rewards[: len(experiences)]
        spread = max(float(fresh.std()), self._config.advantage_floor)
        scaled = np.clip((rewards - fresh.mean()) / spread, -ADVANTAGE_LIMIT, ADVANTAGE_LIMIT)
        return np.asarray(scaled * discount, dtype=np.float64)

    def _keep_elites(self, experiences: list[Experience]) -> None:
        """Keep the fastest distinct experiences; earlier ones win ties."""
        pool = [e for e in self._elites + experiences if not np.isnan(e.value)]
        distinct: dict[bytes, Experience] = {}
        for experience in pool:
            distinct.setdefault(experience.draw.placement.tobytes(), experience)
        self._elites = sorted(distinct.values(), key=lambda e: e.value)[: self._config.elites]

    def _save(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        tensors = {f"policy.{name}": t.detach().clone() for name, t in self.policy.state_dict().items()}
        tensors |= optimiser_tensors(self._optimiser, self.policy)
        tensors |= self.memory.tensors()
        tensors |= elites_to_tensors(self._elites)
        tensors["generator"] = self._generator.get_state()
        state = {
            "method": "hsdag",
            "config": self._config.as_dict(),
            "episode": self._episode,
            "idle_updates": self._idle_updates,
            "num_elites": len(self._elites),
        }
        checkpoint.save(tensors, state)

    def _resume(self, checkpoint: Checkpoint | None) -> bool:
        """Take over a stored state; False where there is none."""
        stored = checkpoint.load() if checkpoint is not None else None
        if stored is None:
            return False
        tensors, state = stored
        check_stored(self._config, state)
        weights = {k.removeprefix("policy."): v for k, v in tensors.items() if k.startswith("policy.")}
        self.policy.load_state_dict(weights)
        load_optimiser(self._optimiser, self.policy, tensors)
        self.memory.restore(tensors)
        self._elites = elites_from_tensors(tensors, int(state["num_elites"]), self.policy.groupable)
        self._generator.set_state(tensors["generator"])
        self._episode, self._idle_updates = int(state["episode"]), int(state["idle_updates"])
        return True
