"""GroupPolicy: groups and their devices, learned together, as a policy over plans (paper §2.5).

Legend: U placement units, G groups, K nominated edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hsdag.learning.choices import drawn, judged, likeliest
from hsdag.learning.hsdag.config import HsdagConfig
from hsdag.learning.hsdag.network import GroupNetwork, Situation, View
from hsdag.learning.hsdag.parsing import Parse
from hsdag.learning.policy import Exploring, Judged, Policy, Rollout, seeds_from
from hsdag.runtime.problems.plan import Plan


@dataclass(frozen=True, eq=False)
class Draw:
    """How a placement was decided: the situation, the groups, a device for each, and with which probabilities."""

    situation: Situation
    parse: Parse
    group_devices: torch.Tensor  # [G]
    drawn: tuple[torch.Tensor, ...]  # log-probabilities [G] of the devices, then [K] of every level's nominated edges


class GroupPolicy(Policy):
    """Draws placements group by group."""

    network: GroupNetwork

    def __init__(self, network: GroupNetwork, config: HsdagConfig) -> None:
        self.network, self._config = network, config

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
        logits = self.network.logits(self.network.parsing.embed(view.z, parse, view.score_logits)[0], parse)
        devices = likeliest(logits, generator)
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

    def judge(self, rollouts: Sequence[Rollout]) -> Judged:
        """Log-probabilities of groups' devices and of nominated edges' fates; one forward pass for each situation."""
        by_situation: dict[object, list[int]] = {}
        for i, rollout in enumerate(rollouts):
            by_situation.setdefault(rollout.record.situation.key, []).append(i)
        parts = [self._judged([rollouts[i].record for i in members], members) for members in by_situation.values()]
        return Judged(*(torch.cat(column) for column in zip(*(part[:4] for part in parts), strict=True)))

    def _judged(self, draws: Sequence[Draw], members: Sequence[int]) -> Judged:
        """The decisions of draws from one situation: devices of all, then edges of all, level by level."""
        union = Parse.side_by_side([draw.parse for draw in draws])
        view = self.network.view(draws[0].situation).copies(len(draws))
        groups, edges, of_edges = self.network.parsing.embed(view.z, union, view.score_logits)
        devices = torch.cat([draw.group_devices for draw in draws])
        log_p, of_devices = judged(self.network.logits(groups, union), devices)
        sizes = [[len(draw.group_devices) for draw in draws]]
        if edges:
            sizes += [
                [len(level.nominated) for level in levels]
                for levels in zip(*(d.parse.levels for d in draws), strict=True)
            ]
        return Judged(
            log_p=torch.cat([log_p, *edges]),
            drawn=torch.cat([part for column in zip(*(draw.drawn for draw in draws), strict=True) for part in column])
            if draws[0].drawn
            else log_p.new_zeros(0),
            owner=torch.tensor(np.concatenate([np.repeat(members, each) for each in sizes])),
            entropy=torch.cat([of_devices, of_edges]),
        )

    def _draws(
        self, situation: Situation, view: View, count: int, exploring: Exploring, generator: torch.Generator
    ) -> list[tuple[Plan, Draw]]:
        """``count`` plans from one situation."""
        net, num_units = self.network, len(view.z)
        parses = net.parsing.parse(view.z, net.groupable, count, generator)
        union, copies = Parse.side_by_side(parses), view.copies(count)
        groups, edges, _ = net.parsing.embed(copies.z, union, copies.score_logits)
        devices, log_p = drawn(net.logits(groups, union), exploring, generator)
        placements = devices[union.labels].reshape(count, num_units).numpy()
        sizes = torch.bincount(union.representative // num_units, minlength=count).tolist()
        columns = [torch.split(each, sizes) for each in (devices, log_p)]
        for level, of_level in enumerate(edges):
            columns.append(torch.split(of_level, [len(parse.levels[level].nominated) for parse in parses]))
        return [
            (Plan(placement), Draw(situation, parse, home, tuple(of_home)))
            for placement, parse, home, *of_home in zip(placements, parses, *columns, strict=True)
        ]
