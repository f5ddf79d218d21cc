"""Stepwise policies: units are placed in steps, each knowing the devices of those before it, or all in one step.

Legend: B plans, U placement units, S units of a step, D devices.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hsdag.ir.graph import BoolArray
from hsdag.learning.policy import Exploring, Judged, Policy, Rollout, drawn, judged, likeliest
from hsdag.runtime.problems.plan import Plan

Choose = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From logits [B, S, D] of the units [S] of a step to their devices [B, S]."""


class StepwiseNetwork(nn.Module):
    """A network that asks for the devices of some units at a time, every unit once."""

    @abstractmethod
    def decode(self, count: int, choose: Choose) -> None:
        """Have ``count`` plans decided; the steps and their units are the same for all, whatever is chosen."""

    def told(self, devices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, U, D] logits of the decisions that lead to ``devices`` [B, U], and the units [U] in their order."""
        logits: list[torch.Tensor] = []
        order: list[torch.Tensor] = []

        def follow(of_step: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
            logits.append(of_step)
            order.append(units)
            return devices[:, units]

        self.decode(len(devices), follow)
        return torch.cat(logits, dim=1), torch.cat(order)


@dataclass(frozen=True, eq=False)
class Decisions:
    """The device of every unit; the log-probabilities that they were drawn with, in the order of decisions."""

    device: torch.Tensor  # [U]
    log_p: torch.Tensor | None = None  # [U]


class StepwisePolicy(Policy):
    """A policy over placements, whose decisions are the devices of units."""

    network: StepwiseNetwork

    def __init__(self, network: StepwiseNetwork, supported: BoolArray) -> None:
        self.network, self._supported = network, torch.from_numpy(supported.copy())

    @torch.no_grad()
    def draw(self, count: int, exploring: Exploring, generator: torch.Generator) -> list[Rollout]:
        """``count`` plans, drawn side by side."""
        log_ps: list[torch.Tensor] = []

        def choose(logits: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            device, log_p = drawn(logits, exploring, generator)
            log_ps.append(log_p)
            return device

        devices = self._decode(count, choose)
        columns = zip(devices, torch.cat(log_ps, dim=1), strict=True)
        return [Rollout(Plan(device.numpy()), Decisions(device, log_p)) for device, log_p in columns]

    @torch.no_grad()
    def best(self, generator: torch.Generator) -> Rollout:
        """The likeliest device at every step."""
        device = self._decode(1, lambda logits, _: likeliest(logits, generator))[0]
        return Rollout(Plan(device.numpy()), Decisions(device))

    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:  # noqa: ARG002
        """The devices of plans are the decisions that lead to them."""
        return [Rollout(plan.unordered, Decisions(torch.tensor(plan.placement))) for plan in plans]

    def judge(self, rollouts: Sequence[Rollout]) -> Judged:
        """All plans side by side, as they were drawn."""
        devices = torch.stack([rollout.record.device for rollout in rollouts])
        logits, units = self.network.told(devices)
        log_p, entropy = judged(logits.masked_fill(~self._supported[units], -torch.inf), devices[:, units])
        drawn_ones = [rollout.record.log_p for rollout in rollouts if rollout.record.log_p is not None]
        owner = torch.arange(len(rollouts)).repeat_interleave(devices.shape[1])
        return Judged(log_p.reshape(-1), torch.cat([*drawn_ones, torch.zeros(0)]), owner, entropy.reshape(-1))

    def _decode(self, count: int, choose: Choose) -> torch.Tensor:
        """[B, U] devices; those that do not support a unit are no choice for it."""
        found = torch.zeros((count, len(self._supported)), dtype=torch.int64)

        def masked(logits: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
            found[:, units] = choose(logits.masked_fill(~self._supported[units], -torch.inf), units)
            return found[:, units]

        self.network.decode(count, masked)
        return found
