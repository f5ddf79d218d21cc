"""HsdagPlacer: the HSDAG method (learned groups, learned placement, REINFORCE) as a placer (paper §2.5).

Legend: U placement units, G groups, K nominated edges.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.distributions import Categorical

from hsdag.features import GROUPS, STRUCTURE_GROUPS, feature_matrix
from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.hsdag.groups import Groups, Parse, Topology
from hsdag.methods.learned.hsdag.network import GroupNetwork, HsdagConfig, Situation, View
from hsdag.methods.learned.networks import cost_features, edges_of, finite_times, standardise
from hsdag.methods.learned.policy import GREEDY, Exploring, Likelihood, Policy, Rollout, drawn
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
        self.network = network
        self._config = config
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
            parses = self.network.parse(view, -(-count // self._config.steps), generator)
            found += self._draws(situation, view, parses, exploring, generator, step)
            if step < self._config.steps:
                state = self.network.next_state(view, parses[-1])
        return found[:count]

    @torch.no_grad()
    def best(self, generator: torch.Generator) -> Rollout:
        """The most probable groups, each on its best device; ties are broken at random."""
        view = self.network.view(Situation())
        return self._draws(Situation(), view, self.network.parse(view), Exploring(heat=GREEDY), generator)[0]

    @torch.no_grad()
    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:
        """Groupings that allow the plans: edges between devices are dropped, the others drawn as ever."""
        situation = Situation()
        devices = [plan.placement.copy() for plan in plans]
        parses = self.network.parse(self.network.view(situation), len(plans), generator, devices)
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
        return Likelihood(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def _likelihood(self, draws: Sequence[Draw]) -> Likelihood:
        """The decisions of draws from one situation: devices of all, then edges of all."""
        groups = self._groups(tuple(draw.parse for draw in draws))
        pooled, edges, of_edges = self.network.embed(self.network.view(draws[0].situation), groups)
        of_group = Categorical(logits=self.network.logits(pooled, groups), validate_args=False)
        devices = torch.cat([draw.devices for draw in draws])
        log_p = of_group.logits.flatten().gather(0, groups.distinct * of_group.logits.shape[1] + devices)
        entropy = of_group.entropy().gather(0, groups.distinct)  # type: ignore[no-untyped-call]
        log_p, entropy = torch.cat([log_p, edges]), torch.cat([entropy, of_edges])
        sizes = [len(draw.devices) for draw in draws], [len(draw.parse.nominated) for draw in draws]
        owner = torch.cat([torch.arange(len(draws)).repeat_interleave(torch.tensor(each)) for each in sizes])
        columns = zip(*(draw.drawn for draw in draws), strict=True)
        drawn_with = torch.cat([torch.zeros(0), *(part for column in columns for part in column)])
        owner = owner[: len(log_p)]  # without sampled parsing, edges decide nothing
        return Likelihood(log_p, drawn_with, owner, entropy)

    def _draws(
        self,
        situation: Situation,
        view: View,
        parses: Sequence[Parse],
        exploring: Exploring,
        generator: torch.Generator,
        step: int = 1,
    ) -> list[Rollout]:
        """A plan for each of several groupings from one situation."""
        groups = self._groups(tuple(parses))
        pooled, edges, _ = self.network.embed(view, groups)
        devices, log_p = drawn(self.network.logits(pooled, groups)[groups.distinct], exploring, generator)
        placements = devices.numpy()[groups.labels]
        columns = [torch.split(each, groups.sizes) for each in (devices, log_p)]
        if len(edges):
            columns.append(edges.reshape(len(parses), -1).unbind())
        return [
            Rollout(Plan(placement), Draw(situation, parse, home, tuple(of_home)), step)
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
        options = self.options
        graph = problem.units.graph
        values = feature_matrix(problem.units, feature_groups(options)).values
        time_s = None
        if options.costs and problem.costs is not None:
            values = np.concatenate([values, cost_features(problem.costs)], axis=1)
            time_s = torch.tensor(finite_times(problem.costs), dtype=torch.float32)
        topology = Topology.from_edges(graph.num_ops, graph.edge_src, graph.edge_dst)
        edges = None if options.encoder == "hsdag" else edges_of(problem, with_costs=options.costs)
        x = standardise(values)
        return GroupPolicy(GroupNetwork(x, topology, problem.supported, options, generator, time_s, edges), options)


def feature_groups(config: HsdagConfig) -> tuple[str, ...]:
    """The feature groups that the options of Table 3 leave on, in the order of the feature matrix."""
    is_on = {"output_shape": config.output_shape, "positional": config.node_id}
    is_on |= dict.fromkeys(STRUCTURE_GROUPS, config.structure)
    return tuple(group for group in GROUPS if is_on.get(group, True))
