"""Choices among a changing set of candidates, against a softmax over the candidates of every step."""

from __future__ import annotations

import pytest
import torch

from hsdag.methods.learned.doppler.placer import log_p_in_turn
from hsdag.methods.learned.policy import log_p_of

SPREADS = (1.0, 40.0, 2000.0)


def one_by_one(score: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, step by step."""
    step = torch.arange(score.shape[1])
    is_candidate = (first[:, None, :] <= step[:, None]) & (step[:, None] <= step)  # [B, N, N]
    return log_p_of(score[:, None, :].masked_fill(~is_candidate, -torch.inf), step.expand_as(score))


@pytest.mark.parametrize("num_steps", [1, 2, 7, 64])
@pytest.mark.parametrize("spread", SPREADS)
def test_choices_in_turn_have_the_probabilities_and_entropies_of_a_softmax(num_steps: int, spread: float) -> None:
    generator, shape = torch.Generator().manual_seed(0), (5, num_steps)
    score = spread * torch.rand(shape, generator=generator, dtype=torch.float64)
    first = (torch.rand(shape, generator=generator) * (torch.arange(num_steps) + 1)).long()
    share, found = torch.rand((2, *shape), generator=generator, dtype=torch.float64), []
    for compute in (log_p_in_turn, one_by_one):
        by = score.clone().requires_grad_()
        log_p, entropy = compute(by, first)
        (share * torch.stack([log_p, entropy])).sum().backward()  # type: ignore[no-untyped-call]
        assert by.grad is not None
        found.append((log_p.detach(), entropy.detach(), by.grad))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    assert (found[0][1] >= 0.0).all()
