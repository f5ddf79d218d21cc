"""GroupPolicy: groups and their devices, learned together, as a policy over plans (paper §2.5).

Legend: U placement units, G groups, K nominated edges.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hsdag.methods.learned.hsdag.groups import Groups, Parse
from hsdag.methods.learned.hsdag.network import GroupNetwork, HsdagConfig, Situation, View
from hsdag.methods.learned.policy import (
    Exploring,
    Likelihood,
    Policy,
    Rollout,
    drawn,
    likeliest,
    log_probabilities,
    seeds_from,
)
from hsdag.runtime.problem.plan import Plan


@dataclass(frozen=True, eq=False)
class Draw:
    """How a placement was decided: the situation, the groups, a device for each, and with which probabilities."""

    situation: Situation
    parse: Parse
    group_devices: torch.Tensor  # [G]
    drawn: tuple[torch.Tensor, ...]  # log-probabilities [G] of the devices, then [K] of the nominated edges


@dataclass(frozen=True, eq=False)
class Gathered:
    """Draws from one situation, side by side: devices of all groups, then edges of all parses."""

    situation: Situation
    groups: Groups
    devices: torch.Tensor  # [S], S groups of all draws
    drawn: torch.Tensor  # [M] log-probabilities of all M decisions, as they were drawn; [0] where they are not known
    owner: torch.Tensor  # [M] the draw of each decision


class GroupPolicy(Policy):
    """Draws placements group by group."""

    network: GroupNetwork

    def __init__(self, network: GroupNetwork, config: HsdagConfig) -> None:
        self.network, self._config = network, config
        self._groups = functools.lru_cache(maxsize=4)(Groups.of)  # what is drawn is evaluated
        self._gathered = functools.lru_cache(maxsize=4)(self._gather)  # every epoch needs the same

    @torch.no_grad()
    def draw(self, count: int, exploring: Exploring, generator: torch.Generator) -> list[Rollout]:
        """``count`` plans, ``config.steps`` of them one after another, each from the state that the last one left."""
        found: list[Rollout] = []
        state: torch.Tensor | None = None
        for step in range(1, self._config.steps + 1):
            is_dropping = self._config.dropout > 0  # masks follow from a seed
            situation = Situation(state, int(seeds_from(generator, 1)) if is_dropping else None)
            view = self.network.view(situation)
            draws = self._draws(situation, view, -(-count // self._config.steps), exploring, generator)
            found += [Rollout(plan, draw, step) for plan, draw in draws]
            if step < self._config.steps:
                state = self.network.next_state(view, draws[-1][1].parse)
        return found[:count]

    @torch.no_grad()
    def best(self, generator: torch.Generator) -> Rollout:
        """The most probable groups, each on its best device; ties are broken at random."""
        situation = Situation(None, None)
        view = self.network.view(situation)
        parse = self.network.parsing.parse(view.z, self.network.groupable)[0]
        groups = Groups.of([parse])
        pooled, _, _ = self.network.parsing.embed(view.z, groups, view.score_logits)
        devices = likeliest(self.network.logits(pooled, groups)[groups.distinct], generator)
        return Rollout(Plan(devices[parse.labels].numpy()), Draw(situation, parse, devices, ()))

    @torch.no_grad()
    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:
        """Groupings that allow the plans: edges between devices are dropped, the others drawn as ever."""
        situation = Situation(None, None)
        view = self.network.view(situation)
        devices = [plan.placement.copy() for plan in plans]
        parses = self.network.parsing.parse(view.z, self.network.groupable, len(plans), generator, devices)
        homes = [torch.from_numpy(device)[parse.representative] for device, parse in zip(devices, parses, strict=True)]
        return [
            Rollout(plan, Draw(situation, parse, home, ()))
            for plan, parse, home in zip(plans, parses, homes, strict=True)
        ]

    def likelihood(self, rollouts: Sequence[Rollout]) -> Likelihood:
        """Log-probabilities of groups' devices and of nominated edges' fates; one forward pass for each situation."""
        by_situation: dict[object, list[int]] = {}
        for i, rollout in enumerate(rollouts):
            by_situation.setdefault(rollout.record.situation.key, []).append(i)
        parts = []
        for members in by_situation.values():
            part = self._likelihood(self._gathered(tuple(rollouts[i].record for i in members)))
            parts.append(part._replace(owner=torch.tensor(members)[part.owner]))
        return Likelihood(*(torch.cat(column) for column in zip(*(part[:4] for part in parts), strict=True)))

    def _gather(self, draws: tuple[Draw, ...]) -> Gathered:
        sizes = [len(draw.group_devices) for draw in draws], [len(draw.parse.nominated) for draw in draws]
        columns = zip(*(draw.drawn for draw in draws), strict=True)
        numbers = torch.arange(len(draws))
        return Gathered(
            draws[0].situation,
            self._groups(tuple(draw.parse for draw in draws)),
            torch.cat([draw.group_devices for draw in draws]),
            torch.cat([torch.zeros(0), *(part for column in columns for part in column)]),
            torch.cat([numbers.repeat_interleave(torch.tensor(each)) for each in sizes]),
        )

    def _likelihood(self, draws: Gathered) -> Likelihood:
        """The decisions of draws from one situation: devices of all, then edges of all."""
        view = self.network.view(draws.situation)
        pooled, edges, of_edges = self.network.parsing.embed(view.z, draws.groups, view.score_logits)
        logits, distinct = self.network.logits(pooled, draws.groups), draws.groups.distinct
        of_each, entropy = log_probabilities(logits)
        log_p = of_each.flatten().gather(0, distinct * logits.shape[1] + draws.devices)
        log_p = torch.cat([log_p, edges])
        owner = draws.owner[: len(log_p)]  # without sampled parsing, edges are no decisions
        return Likelihood(log_p, draws.drawn, owner, torch.cat([entropy.gather(0, distinct), of_edges]))

    def _draws(
        self, situation: Situation, view: View, count: int, exploring: Exploring, generator: torch.Generator
    ) -> list[tuple[Plan, Draw]]:
        """``count`` plans from one situation."""
        net = self.network
        parses = tuple(net.parsing.parse(view.z, net.groupable, count, generator))
        groups = self._groups(parses)
        pooled, edges, _ = net.parsing.embed(view.z, groups, view.score_logits)
        devices, log_p = drawn(net.logits(pooled, groups)[groups.distinct], exploring, generator)
        placements = devices.numpy()[groups.labels]
        columns = [torch.split(each, groups.sizes) for each in (devices, log_p)]
        if len(edges):
            columns.append(edges.reshape(count, -1).unbind())
        return [
            (Plan(placement), Draw(situation, parse, home, tuple(of_home)))
            for placement, parse, home, *of_home in zip(placements, parses, *columns, strict=True)
        ]
