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
    """Optimiser of one policy, whose learning rate and weight of entropy change with the progress of the training."""

    def __init__(self, policy: Policy, options: TrainingOptions) -> None:
        self._policy = policy
        self._options = options
        self._optimiser = torch.optim.Adam(policy.network.parameters(), lr=options.learning_rate, fused=True)

    def step(
        self, groups: Sequence[tuple[Sequence[Rollout], torch.Tensor | None]], progress: float, spread: float
    ) -> None:
        """Make one step of Adam.

        Args:
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
        loss = torch.stack([self._policy.loss(rollouts, advantages, aim) for rollouts, advantages in groups]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        if options.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self._policy.network.parameters(), options.max_grad_norm)
        self._optimiser.step()

    def state(self) -> dict[str, torch.Tensor]:
        """Return weights as ``policy.NAME`` and Adam's moments as ``adam.NUMBER.MOMENT``."""
        tensors = {f"policy.{name}": tensor for name, tensor in self._policy.network.state_dict().items()}
        for i, moments in self._optimiser.state_dict()["state"].items():
            tensors |= {f"adam.{i}.{moment}": tensor for moment, tensor in moments.items()}
        return tensors

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore a state returned by ``state``."""
        weights = {k.removeprefix("policy."): v for k, v in tensors.items() if k.startswith("policy.")}
        self._policy.network.load_state_dict(weights)
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("adam."):
                _, i, moment = name.split(".")
                moments.setdefault(int(i), {})[moment] = tensor.clone()
        self._optimiser.load_state_dict({**self._optimiser.state_dict(), "state": moments})
