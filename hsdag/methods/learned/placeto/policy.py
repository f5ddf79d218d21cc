"""PlacetoPolicy: episodes that improve a placement step by step, as a policy over plans (Placeto, §3.1).

Legend: B episodes, G groups, N sweeps, T steps of a sweep, S groups that a step places, D devices, M decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hsdag.methods.learned.networks import in_passes
from hsdag.methods.learned.placeto.groups import Groups, device_of_groups
from hsdag.methods.learned.placeto.network import PlacetoConfig, PlacetoNetwork, Start
from hsdag.methods.learned.policy import Exploring, Likelihood, Policy, Rollout, drawn, likeliest, log_p_of
from hsdag.runtime.problem.plan import Plan

ROWS = 2**16
"""Embeddings that one pass makes; the gradient of more decisions is taken pass by pass, to save memory."""

Choose = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""From logits [B, S, D] to devices [B, S] and their log-probabilities [B, S]."""


@dataclass(frozen=True, eq=False)
class Episode:
    """Where an episode began, what it chose in every sweep, and the log-probabilities, by order of visits."""

    start: torch.Tensor  # [G]
    device: torch.Tensor  # [N, G]
    log_p: torch.Tensor | None = None  # [N, G]


class PlacetoPolicy(Policy):
    """Begins with a trivial placement and visits every group once a sweep, to place it anew."""

    network: PlacetoNetwork

    def __init__(self, network: PlacetoNetwork, groups: Groups, config: PlacetoConfig) -> None:
        self.network, self._groups, self._config = network, groups, config
        num = len(groups.order)
        num_steps = -(-num // config.step)
        place = torch.arange(num_steps * config.step).reshape(num_steps, config.step)
        self._is_real = place < num  # [T, S]; the last step is filled up with the last group
        self._at_hand = groups.order[place.clamp(max=num - 1)]  # [T, S]
        self._step_of = torch.empty(num, dtype=torch.int64)  # [G]
        self._step_of[groups.order] = torch.arange(num) // config.step

    @torch.no_grad()
    def draw(self, count: int, exploring: Exploring, generator: torch.Generator) -> list[Rollout]:
        """``count`` episodes that step together."""
        return self._episodes(count, lambda logits: drawn(logits, exploring, generator), generator)

    @torch.no_grad()
    def best(self, generator: torch.Generator) -> Rollout:
        """An episode that always takes the likeliest device."""

        def choose(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            device = likeliest(logits, generator)
            return device, log_p_of(logits, device)[0]

        return self._episodes(1, choose, generator)[0]

    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:
        """Episodes that place every group where the plan has its first unit, from starts drawn as ever."""
        of_unit = self._groups.of_unit.numpy()
        starts, found = self._starts(len(plans), generator), []
        for start, plan in zip(starts, plans, strict=True):
            device = torch.from_numpy(device_of_groups(of_unit, plan.placement))
            episode = Episode(start, device.expand(self._config.sweeps, -1))
            found.append(Rollout(self._plan(device), episode))
        return found

    def likelihood(self, rollouts: Sequence[Rollout]) -> Likelihood:
        """All steps of all episodes in a few batched passes; states follow from what was chosen."""
        start = torch.stack([rollout.record.start for rollout in rollouts])[:, None]
        device = torch.stack([rollout.record.device for rollout in rollouts])  # [B, N, G]
        before = torch.cat([start, device[:, :-1]], dim=1)
        b, n, num = device.shape
        t = len(self._at_hand)
        columns = torch.meshgrid(torch.arange(b), torch.arange(n), torch.arange(t), indexing="ij")
        states = torch.stack([column.reshape(-1) for column in columns])  # [3, B N T]

        def of_some(some: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            episode, sweep, step = some
            visited = self._step_of < step[:, None]
            now = torch.where(visited, device[episode, sweep], before[episode, sweep])
            at_hand = self._at_hand[step]
            chosen = device[episode, sweep].gather(1, at_hand)
            return log_p_of(self.network(now, visited, at_hand), chosen)

        is_real = self._is_real.repeat(b * n, 1)
        log_p, entropy = (column[is_real] for column in in_passes(of_some, states, ROWS // num))
        drawn_ones = [rollout.record.log_p.reshape(-1) for rollout in rollouts if rollout.record.log_p is not None]
        place = torch.arange(n)[:, None] * t + torch.arange(num) // self._config.step  # [N, G]
        owner = torch.arange(b).repeat_interleave(n * num)
        return Likelihood(log_p, torch.cat([*drawn_ones, torch.zeros(0)]), owner, entropy, place.reshape(-1).repeat(b))

    def _episodes(self, count: int, choose: Choose, generator: torch.Generator) -> list[Rollout]:
        start = self._starts(count, generator)
        device, sweeps, log_ps = start, [], []
        trails: list[list[Plan]] = [[] for _ in range(count)]
        for _ in range(self._config.sweeps):
            visited = torch.zeros(device.shape, dtype=torch.bool)
            for at_hand, is_real in zip(self._at_hand, self._is_real, strict=True):
                if self._config.intermediate:
                    for trail, now in zip(trails, device, strict=True):
                        trail.append(self._plan(now))
                at = at_hand.expand(count, -1)
                chosen, log_p = choose(self.network(device, visited, at))
                device, visited = device.clone(), visited.clone()
                device[:, at_hand[is_real]], visited[:, at_hand] = chosen[:, is_real], True
                log_ps.append(log_p[:, is_real])
            sweeps.append(device)
        of_visits = torch.cat(log_ps, dim=1).reshape(count, self._config.sweeps, -1)
        records = zip(device, start, torch.stack(sweeps, dim=1), of_visits, trails, strict=True)
        return [
            Rollout(self._plan(last), Episode(first, chosen, log_p), trail=tuple(trail))
            for last, first, chosen, log_p, trail in records
        ]

    def _starts(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """[B, G] trivial placements; a group that lacks the one device is on any that it has."""
        able = self._groups.able
        anywhere = likeliest(torch.where(able, 0.0, -torch.inf).expand(count, -1, -1), generator)
        if self._config.start is Start.RANDOM:
            return anywhere
        single = torch.randint(able.shape[1], (count, 1), generator=generator).expand(-1, len(able))
        return torch.where(able.t()[single[:, 0]], single, anywhere)

    def _plan(self, device: torch.Tensor) -> Plan:
        """The plan of devices [G]."""
        return Plan(device[self._groups.of_unit].numpy())
