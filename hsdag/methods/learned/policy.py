"""Base classes of policies: distributions over plans of one problem, which can be sampled, replayed and differentiated.

Legend: B plans, M decisions, T steps, D devices; any number of dimensions before these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.distributions import Categorical

from hsdag.runtime.problem.plan import Plan


@dataclass(frozen=True, eq=False)
class Rollout:
    """Plan and the decisions that led to it.

    Attributes:
        plan: Plan.
        record: Decisions, with the probabilities that they were drawn with; the type depends on the policy.
        step: Position of the plan in its episode, from 1, if the plans of an episode follow one another.
        trail: Plans before each step of decisions [T], if every step is rewarded for its gain; else empty.
    """

    plan: Plan
    record: Any
    step: int = 1
    trail: tuple[Plan, ...] = ()


class Likelihood(NamedTuple):
    """Log-probabilities of recorded decisions under the present weights of a policy."""

    log_p: torch.Tensor  # [M] under the present weights
    drawn: torch.Tensor  # [M] in the distributions that decisions were drawn from
    owner: torch.Tensor  # [M] index of the rollout of a decision, or of its step among those of all rollouts
    entropy: torch.Tensor  # entropies of the distributions under the present weights, in any order


@dataclass(frozen=True)
class Exploring:
    """Exploration in draws: the share of decisions that are uniform, and the temperature of the others."""

    share: float = 0.0
    heat: float = 1.0


@dataclass(frozen=True)
class Aim:
    """Parameters of the loss.

    Attributes:
        clip: Clipping range of importance weights; None: log-probabilities are used instead.
        entropy: Weight of the entropy.
        imitation: Weight of imitated decisions.
    """

    clip: float | None
    entropy: float
    imitation: float


RATIO_LIMIT, MOST_CHANGE = 3.0, 5.0
"""Largest importance weight, and largest change of a log-probability, at which a decision still contributes to the
gradient, whatever the sign of its advantage."""

GREEDY = 1e-30
"""Temperature at which the most probable decision is drawn; ties are broken at random."""


class Policy(ABC):
    """A distribution over plans of one problem, given by a network; the same generator state gives the same draws.

    Attributes:
        of_problem: Beginnings of the names of weights that belong to one problem, such as those of single units.
    """

    network: nn.Module
    of_problem: ClassVar[tuple[str, ...]] = ()

    @property
    def reusable(self) -> dict[str, nn.Parameter]:
        """Return the weights that suit other problems, too, by name."""
        return {k: v for k, v in self.network.named_parameters() if not k.startswith(self.of_problem)}

    @abstractmethod
    def draw(self, count: int, exploring: Exploring, generator: torch.Generator) -> list[Rollout]:
        """Draw ``count`` plans at random."""

    def best(self, generator: torch.Generator) -> Rollout:
        """Return the rollout of the most probable decisions; ties are broken at random."""
        return self.draw(1, Exploring(heat=GREEDY), generator)[0]

    @abstractmethod
    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:
        """Return rollouts of decisions that lead to ``plans``, to be imitated."""

    @abstractmethod
    def loss(self, rollouts: Sequence[Rollout], advantages: torch.Tensor | None, aim: Aim) -> torch.Tensor:
        """Return minus the mean over decisions of advantage times log-probability, less the entropy bonus.

        Its scale does not matter to Adam. With ``aim.clip``, importance weights relative to the distribution that was
        drawn from replace log-probabilities (Schulman et al. 2017, eq. 7).

        Args:
            rollouts: Rollouts B.
            advantages: Advantages of rollouts [B] or of their steps [B, T]; None: imitate them (DOPPLER, eq. 9).
            aim: Clipping range and weights.
        """


class LikelihoodPolicy(Policy):
    """A policy that computes the log-probabilities of recorded decisions under the present weights."""

    @abstractmethod
    def likelihood(self, rollouts: Sequence[Rollout]) -> Likelihood:
        """Return log-probabilities of decisions under the present weights, without exploration."""

    def loss(self, rollouts: Sequence[Rollout], advantages: torch.Tensor | None, aim: Aim) -> torch.Tensor:
        now = self.likelihood(rollouts)
        if advantages is None:
            return -aim.imitation * now.log_p.mean()
        gain = clipped(now.log_p, now.drawn, advantages.flatten()[now.owner], aim.clip)
        return -gain.mean() - aim.entropy * now.entropy.mean()


def clipped(log_p: torch.Tensor, drawn: torch.Tensor, weight: torch.Tensor, clip: float | None) -> torch.Tensor:
    """Return the objective [...] of decisions, to be maximised.

    Args:
        log_p: Log-probabilities under the present weights of the policy [...].
        drawn: Log-probabilities in the distributions that decisions were drawn from [...].
        weight: Advantages [...].
        clip: Clipping range of importance weights; None: log-probabilities take their place.
    """
    if clip is None:
        return log_p * weight
    ratio = torch.exp((log_p - drawn).clamp(-MOST_CHANGE, MOST_CHANGE))
    gain = torch.minimum(ratio * weight, ratio.clamp(1.0 - clip, 1.0 + clip) * weight)
    return torch.maximum(gain, RATIO_LIMIT * weight.clamp(max=0.0))


def drawn(logits: torch.Tensor, exploring: Exploring, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return devices [...] drawn by logits [..., D], and their log-probabilities [...].

    Logits of devices that must not be drawn are minus infinity.
    """
    p = torch.softmax((logits - logits.amax(dim=-1, keepdim=True)) / exploring.heat, dim=-1)
    able = torch.isfinite(logits)
    p = (1.0 - exploring.share) * p + exploring.share * able / able.sum(dim=-1, keepdim=True)
    device = torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=generator).reshape(p.shape[:-1])
    return device, p.gather(-1, device[..., None]).squeeze(-1).log()


def log_p_of(logits: torch.Tensor, device: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities [...] of devices [...] by logits [..., D], and the entropies [...]."""
    distribution = Categorical(logits=logits, validate_args=False)
    return distribution.log_prob(device), distribution.entropy()  # type: ignore[no-untyped-call]
