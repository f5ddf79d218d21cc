"""HsdagPlacer: the HSDAG method (learned groups, learned placement, REINFORCE) as a placer (paper §2.5).

Legend: U placement units, G groups, K nominated edges.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hsdag.features import GROUPS, STRUCTURE_GROUPS, feature_matrix
from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.hsdag.groups import Groups, Parse, Topology
from hsdag.methods.learned.hsdag.network import GroupNetwork, HsdagConfig, Situation, View
from hsdag.methods.learned.inputs import cost_features, edges_of, finite_times
from hsdag.methods.learned.networks import standardise
from hsdag.methods.learned.policy import GREEDY, Exploring, Likelihood, Policy, Rollout, drawn, log_probabilities
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem


@dataclass(frozen=True, eq=False)
class Draw:
    """How a placement was decided: the situation, the groups, a device for each, and with which probabilities."""

    situation: Situation
    parse: Parse
    devices: torch.Tensor  # [G]
    drawn: tuple[torch.Tensor, ...]  # log-probabilities [G] of the devices, then [K] of the nominated edges


class GroupPolicy(Policy):
    """Draws placements group by group."""

    network: GroupNetwork

    def __init__(self, network: GroupNetwork, config: HsdagConfig) -> None:
        self.network, self._config = network, config
        self._groups = functools.lru_cache(maxsize=4)(Groups.of)  # what is drawn is evaluated, in every epoch

    @torch.no_grad()
    def draw(self, count: int, exploring: Exploring, generator: torch.Generator) -> list[Rollout]:
        """``count`` plans, ``config.steps`` of them one after another, each from the state that the last one left."""
        found: list[Rollout] = []
        state: torch.Tensor | None = None
        for step in range(1, self._config.steps + 1):
            is_dropping = self._config.dropout > 0  # masks follow from a seed
            situation = Situation(state, int(torch.randint(2**62, (1,), generator=generator)) if is_dropping else None)
            view = self.network.view(situation)
            draws = self._draws(situation, view, -(-count // self._config.steps), exploring, generator)
            found += [Rollout(plan, draw, step) for plan, draw in draws]
            if step < self._config.steps:
                state = self.network.next_state(view, draws[-1][1].parse)
        return found[:count]

    @torch.no_grad()
    def best(self, generator: torch.Generator) -> Rollout:
        """The most probable groups, each on its best device; ties are broken at random."""
        situation = Situation()
        view = self.network.view(situation)
        parse = self.network.parsing.parse(view.z, self.network.groupable)[0]
        groups = Groups.of([parse])
        pooled, _, _ = self.network.parsing.embed(view.z, groups, view.score_logits)
        devices, _ = drawn(self.network.logits(pooled, groups)[groups.distinct], Exploring(heat=GREEDY), generator)
        return Rollout(Plan(devices[parse.labels].numpy()), Draw(situation, parse, devices, ()))

    @torch.no_grad()
    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:
        """Groupings that allow the plans: edges between devices are dropped, the others drawn as ever."""
        situation = Situation()
        view = self.network.view(situation)
        devices = [plan.placement.copy() for plan in plans]
        parses = self.network.parsing.parse(view.z, self.network.groupable, len(plans), generator, devices)
        found = []
        for plan, device, parse in zip(plans, devices, parses, strict=True):
            _, first = np.unique(parse.partition.labels, return_index=True)
            found.append(Rollout(plan, Draw(situation, parse, torch.from_numpy(device[first]), ())))
        return found

    def likelihood(self, rollouts: Sequence[Rollout]) -> Likelihood:
        """Log-probabilities of groups' devices and of nominated edges' fates; one forward pass for each situation."""
        by_situation: dict[object, list[int]] = {}
        for i, rollout in enumerate(rollouts):
            state, seed = rollout.record.situation
            by_situation.setdefault((id(state), seed), []).append(i)
        parts = []
        for members in by_situation.values():
            part = self._likelihood([rollouts[i].record for i in members])
            parts.append(part._replace(owner=torch.tensor(members)[part.owner]))
        return Likelihood(*(torch.cat(column) for column in zip(*(part[:4] for part in parts), strict=True)))

    def _likelihood(self, draws: Sequence[Draw]) -> Likelihood:
        """The decisions of draws from one situation: devices of all, then edges of all."""
        view, groups = self.network.view(draws[0].situation), self._groups(tuple(draw.parse for draw in draws))
        pooled, edges, of_edges = self.network.parsing.embed(view.z, groups, view.score_logits)
        logits, devices = self.network.logits(pooled, groups), torch.cat([draw.devices for draw in draws])
        log_p, entropy = log_probabilities(logits)
        log_p = log_p.flatten().gather(0, groups.distinct * logits.shape[1] + devices)
        log_p, entropy = torch.cat([log_p, edges]), torch.cat([entropy.gather(0, groups.distinct), of_edges])
        sizes = [len(draw.devices) for draw in draws], [len(draw.parse.nominated) for draw in draws]
        owner = torch.cat([torch.arange(len(draws)).repeat_interleave(torch.tensor(each)) for each in sizes])
        columns = zip(*(draw.drawn for draw in draws), strict=True)
        drawn_with = torch.cat([torch.zeros(0), *(part for column in columns for part in column)])
        return Likelihood(
            log_p, drawn_with, owner[: len(log_p)], entropy
        )  # without sampled parsing, edges decide nothing

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


class HsdagPlacer(LearnedPlacer[HsdagConfig]):
    """Learns groups of units and their devices together; see docs/hsdag-method.md."""

    name = "hsdag"
    needs_costs = False
    options_type = HsdagConfig
    paper_reward = "measured"

    def policy(self, problem: Problem, generator: torch.Generator) -> GroupPolicy:
        """Features of units, and of their costs where these are known and asked for."""
        options, graph = self.options, problem.units.graph
        values, time_s = feature_matrix(problem.units, feature_groups(options)).values, None
        if options.costs and problem.costs is not None:
            values = np.concatenate([values, cost_features(problem.costs)], axis=1)
            time_s = torch.tensor(finite_times(problem.costs), dtype=torch.float32)
        topology = Topology.from_edges(graph.num_ops, graph.edge_src, graph.edge_dst)
        edges = None if options.encoder == "hsdag" else edges_of(problem, with_costs=options.costs)
        network = GroupNetwork(standardise(values), topology, problem.supported, options, generator, time_s, edges)
        return GroupPolicy(network, options)


def feature_groups(config: HsdagConfig) -> tuple[str, ...]:
    """The feature groups that the options of Table 3 leave on, in the order of the feature matrix."""
    is_on = {"output_shape": config.output_shape, "positional": config.node_id}
    is_on |= dict.fromkeys(STRUCTURE_GROUPS, config.structure)
    return tuple(group for group in GROUPS if is_on.get(group, True))
