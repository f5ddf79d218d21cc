"""Optimisation steps on a policy's loss, by Adam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from hsdag.methods.learned.options import TrainingOptions
from hsdag.methods.learned.policy import Aim, Policy, Rollout


def rate(first: float, last: float, progress: float) -> float:
    """Return a rate that changes linearly from ``first`` to ``last`` while progress goes from 0 to 1."""
    return first + (last - first) * min(progress, 1.0)


class Learner:
    """Optimiser of weights, by name, whose learning rate and weight of entropy change with the training's progress."""

    def __init__(self, weights: Mapping[str, torch.nn.Parameter], options: TrainingOptions) -> None:
        self._weights = dict(weights)
        self._options = options
        self._optimiser = torch.optim.Adam(self._weights.values(), lr=options.learning_rate, fused=True)

    def step(
        self,
        policy: Policy,
        groups: Sequence[tuple[Sequence[Rollout], torch.Tensor | None]],
        progress: float,
        spread: float,
    ) -> None:
        """Make one step of Adam.

        Args:
            policy: Policy of these weights.
            groups: Rollouts with their advantages [B] or [B, T]; rollouts without advantages are imitated.
            progress: Share of the training that is over, from 0 to 1.
            spread: Factor of the options' weight of entropy.
        """
        options = self._options
        for parameters in self._optimiser.param_groups:
            parameters["lr"] = rate(options.learning_rate, options.last_learning_rate, progress)
        self._optimiser.zero_grad(set_to_none=True)
        entropy = spread * rate(options.entropy, options.last_entropy, progress)
        aim = Aim(options.clip, entropy, options.imitation_weight)
        loss = torch.stack([policy.loss(rollouts, advantages, aim) for rollouts, advantages in groups]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        if options.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self._weights.values(), options.max_grad_norm)
        self._optimiser.step()

    def state(self) -> dict[str, torch.Tensor]:
        """Return weights as ``policy.NAME`` and Adam's moments as ``adam.NUMBER.MOMENT``."""
        tensors: dict[str, torch.Tensor] = {f"policy.{name}": tensor for name, tensor in self._weights.items()}
        for i, moments in self._optimiser.state_dict()["state"].items():
            tensors |= {f"adam.{i}.{moment}": tensor for moment, tensor in moments.items()}
        return tensors

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore a state returned by ``state``."""
        for name, weights in self._weights.items():
            weights.copy_(tensors[f"policy.{name}"])
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("adam."):
                _, i, moment = name.split(".")
                moments.setdefault(int(i), {})[moment] = tensor.clone()
        self._optimiser.load_state_dict({**self._optimiser.state_dict(), "state": moments})
