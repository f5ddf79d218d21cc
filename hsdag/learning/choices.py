"""Choices: devices that are drawn from logits. Legend: D devices; any number of dimensions before it."""

from __future__ import annotations

import torch

from hsdag.learning.policy import Exploring


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
