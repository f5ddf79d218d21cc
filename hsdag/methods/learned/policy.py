"""Policy: a distribution over plans of one problem that can be drawn from, replayed and differentiated.

Legend: B plans, M decisions, T steps, D devices; any number of dimensions before these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributions import Categorical

from hsdag.runtime.problem.plan import Plan


@dataclass(frozen=True, eq=False)
class Rollout:
    """A plan and the decisions that led to it, in ``record``, with the probabilities that they were drawn with.

    ``step`` counts the plans of an episode from 1 where they follow one another. ``trail`` are the plans before
    each step of decisions, where every step is rewarded for what it gains.
    """

    plan: Plan
    record: Any
    step: int = 1
    trail: tuple[Plan, ...] = ()


class Likelihood(NamedTuple):
    """What a policy says now of decisions; ``drawn`` are the log-probabilities they were drawn with."""

    log_p: torch.Tensor  # [M]
    drawn: torch.Tensor  # [M]
    owner: torch.Tensor  # [M] the rollout of each decision, or of all their steps where each is rewarded the step
    entropy: torch.Tensor  # of the distributions that decisions are drawn from, in any order


@dataclass(frozen=True)
class Exploring:
    """How far draws depart from the policy: a share of uniform decisions, and the temperature of the others."""

    share: float = 0.0
    heat: float = 1.0


@dataclass(frozen=True)
class Aim:
    """How a step learns: the range of importance weights, None for none; the weights of entropy and of imitation."""

    clip: float | None
    entropy: float
    imitation: float


RATIO_LIMIT, MOST_CHANGE = 3.0, 5.0
"""An importance weight beyond it pulls no more, whatever the sign of the advantage; nor does a decision whose
log-probability has changed by more."""

GREEDY = 1e-30
"""A temperature at which the likeliest decision is taken; ties are broken at random."""


class Policy(ABC):
    """A network bound to a problem. The same generator state gives the same draws."""

    network: nn.Module

    @abstractmethod
    def draw(self, count: int, exploring: Exploring, generator: torch.Generator) -> list[Rollout]:
        """``count`` plans drawn at random."""

    def best(self, generator: torch.Generator) -> Rollout:
        """The plan of the likeliest decisions; ties are broken at random."""
        return self.draw(1, Exploring(heat=GREEDY), generator)[0]

    @abstractmethod
    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:
        """Decisions that lead to ``plans``, to be imitated."""

    @abstractmethod
    def loss(self, rollouts: Sequence[Rollout], advantages: torch.Tensor | None, aim: Aim) -> torch.Tensor:
        """- mean over decisions of advantage times log-probability, less the entropy bonus; Adam ignores the scale.

        ``advantages`` are of rollouts [B], or of their steps [B, T]. With ``aim.clip``, importance weights relative to
        the distribution that was drawn from replace log-probabilities (Schulman et al. 2017, eq. 7). Without
        advantages, decisions are imitated (DOPPLER, eq. 9).
        """


class LikelihoodPolicy(Policy):
    """A policy that says how likely decisions are under the present weights."""

    @abstractmethod
    def likelihood(self, rollouts: Sequence[Rollout]) -> Likelihood:
        """Log-probabilities of decisions under the present weights, without exploration."""

    def loss(self, rollouts: Sequence[Rollout], advantages: torch.Tensor | None, aim: Aim) -> torch.Tensor:
        now = self.likelihood(rollouts)
        if advantages is None:
            return -aim.imitation * now.log_p.mean()
        gain = clipped(now.log_p, now.drawn, advantages.flatten()[now.owner], aim.clip)
        return -gain.mean() - aim.entropy * now.entropy.mean()


def clipped(log_p: torch.Tensor, drawn: torch.Tensor, weight: torch.Tensor, clip: float | None) -> torch.Tensor:
    """[...] what a step is to raise: weights times log-probabilities, or times importance weights within a range."""
    if clip is None:
        return log_p * weight
    ratio = torch.exp((log_p - drawn).clamp(-MOST_CHANGE, MOST_CHANGE))
    gain = torch.minimum(ratio * weight, ratio.clamp(1.0 - clip, 1.0 + clip) * weight)
    return torch.maximum(gain, RATIO_LIMIT * weight.clamp(max=0.0))


def drawn(logits: torch.Tensor, exploring: Exploring, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """[...] devices drawn at random by logits [..., D], minus infinity where none may be; their log-probabilities."""
    p = torch.softmax((logits - logits.amax(dim=-1, keepdim=True)) / exploring.heat, dim=-1)
    able = torch.isfinite(logits)
    p = (1.0 - exploring.share) * p + exploring.share * able / able.sum(dim=-1, keepdim=True)
    device = torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=generator).reshape(p.shape[:-1])
    return device, p.gather(-1, device[..., None]).squeeze(-1).log()


def log_p_of(logits: torch.Tensor, device: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[...] log-probabilities of devices [...] by logits [..., D], and the entropies of their distributions."""
    distribution = Categorical(logits=logits, validate_args=False)
    return distribution.log_prob(device), distribution.entropy()  # type: ignore[no-untyped-call]
