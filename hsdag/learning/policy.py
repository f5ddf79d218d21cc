"""Policy: a distribution over plans of one problem that can be drawn from, replayed and differentiated.

Legend: B plans, M decisions, D devices; any number of dimensions before these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from hsdag.runtime.problems.plan import Plan


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


class Judged(NamedTuple):
    """What a policy says now of decisions; ``drawn`` are the log-probabilities they were drawn with."""

    log_p: torch.Tensor  # [M]
    drawn: torch.Tensor  # [M]
    owner: torch.Tensor  # [M] the rollout of each decision
    entropy: torch.Tensor  # of the distributions that decisions are drawn from, in any order
    step: torch.Tensor | None = None  # [M] the place of each decision in the trail of its rollout


@dataclass(frozen=True)
class Exploring:
    """How far draws depart from the policy: a share of uniform decisions, and the temperature of the others."""

    share: float = 0.0
    heat: float = 1.0


class Policy(ABC):
    """A network bound to a problem. The same generator state gives the same draws."""

    network: nn.Module

    @abstractmethod
    def draw(self, count: int, exploring: Exploring, generator: torch.Generator) -> list[Rollout]:
        """``count`` plans drawn at random."""

    @abstractmethod
    def best(self, generator: torch.Generator) -> Rollout:
        """The plan that the policy believes in; ties are broken at random."""

    @abstractmethod
    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:
        """Decisions that lead to ``plans``, to be imitated."""

    @abstractmethod
    def judge(self, rollouts: Sequence[Rollout]) -> Judged:
        """Log-probabilities of decisions under the present weights, without exploration."""


@torch.no_grad()
def first_plans(policy: Policy, count: int, generator: torch.Generator) -> list[Plan]:
    """What a policy answers without training: the plan that it believes in, and draws, ``count`` in all."""
    best = policy.best(generator)
    draws = policy.draw(count - 1, Exploring(), generator) if count > 1 else []
    return [rollout.plan for rollout in (best, *draws)]


def seeds_from(generator: torch.Generator, count: int) -> torch.Tensor:
    """[count] seeds of independent streams."""
    return torch.randint(2**62, (count,), generator=generator)


def drawn(logits: torch.Tensor, exploring: Exploring, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """[...] devices drawn at random by logits [..., D], minus infinity where none may be; their log-probabilities."""
    p = torch.softmax(logits / exploring.heat, dim=-1)
    able = torch.isfinite(logits)
    p = (1.0 - exploring.share) * p + exploring.share * able / able.sum(dim=-1, keepdim=True)
    device = torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=generator).reshape(p.shape[:-1])
    return device, p.gather(-1, device[..., None]).squeeze(-1).log()


def likeliest(logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """[...] the devices of the largest logits [..., D]; ties are broken at random."""
    is_best = logits == logits.max(dim=-1, keepdim=True).values
    return torch.where(is_best, torch.rand(logits.shape, generator=generator), -1.0).argmax(dim=-1)


def judged(logits: torch.Tensor, device: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[...] log-probabilities of devices [...] by logits [..., D], and the entropies of their distributions."""
    log_p, entropy = log_probabilities(logits)
    return log_p.gather(-1, device[..., None]).squeeze(-1), entropy


def log_probabilities(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., D] log-probabilities of all devices by logits [..., D], and the entropies [...] of their distributions."""
    log_p = torch.log_softmax(logits, dim=-1)
    return log_p, -(log_p.exp() * log_p.masked_fill(torch.isinf(log_p), 0.0)).sum(dim=-1)
