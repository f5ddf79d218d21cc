"""Policy and placer of ``hsdag``: learned groups and learned placement, trained by REINFORCE (HSDAG, §2.5).

Legend: U placement units, G groups, K nominated edges.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from hsdag.base.errors import OptionError, option
from hsdag.features import GROUPS, STRUCTURE_GROUPS, feature_matrix
from hsdag.ir.graph.computation_graph import IntArray, inverse_of
from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.decoding import (
    Ascent,
    Episodes,
    Float32Array,
    Rules,
    Scores,
    Sharing,
    climb,
    decode,
    order_of,
)
from hsdag.methods.learned.hsdag.groups import Groups, Parse, Topology
from hsdag.methods.learned.hsdag.network import GroupNetwork, HsdagConfig, Situation, View
from hsdag.methods.learned.networks import cost_features, edges_of, finite_times, standardise, uniform_costs
from hsdag.methods.learned.policy import GREEDY, Aim, Exploring, Policy, Rollout, clipped
from hsdag.methods.lists.schedule import tails_of
from hsdag.runtime.objectives import Objective
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.tables import levels_of, tables_of

LEAST_LOGIT = -1e9
"""Logit of a device that does not support a unit, in place of minus infinity, whose gradient would be NaN."""

HEATS = (1.0, 0.5, 0.25)
"""Temperatures at which about equal shares of the plans are drawn if costs are unknown: at lower temperatures, plans
are cut into fewer parts, which takes less time to measure. Chosen on 15 training graphs of five families."""

PORTABLE = ("fractal", "positional")
"""Feature groups that have the same columns for all problems."""

URGENCY = 10.0
"""Initial weight of the path from a unit to the end, as a share of the longest path, in the logit of its selection."""


@dataclass(frozen=True, eq=False)
class Draw:
    """Record of the decisions that led to a plan."""

    situation: Situation  # in which it was drawn
    parse: Parse  # into groups
    episode: Episodes  # decisions on order and devices, [U] and so on, without the dimension of episodes
    edges: torch.Tensor  # [K] log-probabilities of keeping or dropping edges, or [0] if parsing is not sampled


class ParseTables(NamedTuple):
    """Tables for several parses, from one pass of the network, and log-probabilities and entropies of the parses."""

    scores: Scores[torch.Tensor]
    row: IntArray  # [B, U] row of ``direct`` and ``bias`` in the scores that a unit has
    edges: torch.Tensor  # [B, K] log-probabilities of keeping or dropping edges, or [B, 0] if parsing is not sampled
    of_edges: torch.Tensor  # [B, K] entropies of these choices, or [B, 0]


class GroupPolicy(Policy):
    """A policy that draws plans unit by unit, in an order that is drawn as well.

    The first unit of a group decides on the device of the whole group, given features of the devices in the schedule
    of the units before it.
    """

    network: GroupNetwork
    of_problem = ("own.", "placer.")

    def __init__(
        self, network: GroupNetwork, config: HsdagConfig, costs: ScheduleProblem, heats: tuple[float, ...] = (1.0,)
    ) -> None:
        self.network = network
        self._heats = heats
        self._config = config
        self._costs = costs
        self._tables = tables_of(costs)
        self._tail_s = tails_of(self._tables)
        level_s = levels_of(self._tables).upward_s
        self._urgency = torch.tensor(URGENCY * level_s / (level_s.max() or 1.0), dtype=torch.float32)
        self._groups = functools.lru_cache(maxsize=4)(Groups.of)  # every epoch needs the same groups

    @torch.no_grad()
    def draw(self, count: int, exploring: Exploring, generator: torch.Generator) -> list[Rollout]:
        """Draw ``count`` plans in episodes of ``config.steps`` steps.

        All plans of a step begin with the state that follows from the last plan of the step before.
        """
        rollouts: list[Rollout] = []
        state: torch.Tensor | None = None
        for step in range(1, self._config.steps + 1):
            is_dropping = self._config.dropout > 0  # then a seed is drawn, which the masks follow from
            situation = Situation(state, int(torch.randint(2**62, (1,), generator=generator)) if is_dropping else None)
            view = self.network.view(situation)
            parses = self.network.parse(view, -(-count // self._config.steps), generator)
            for i, heat in enumerate(self._heats):
                if some := parses[i :: len(self._heats)]:
                    rules = replace(exploring, heat=heat * exploring.heat)
                    rollouts += self._draws(situation, view, some, rules, generator, step)
            if step < self._config.steps:
                state = self.network.next_state(view, parses[-1])
        return rollouts[:count]

    @torch.no_grad()
    def best(self, generator: torch.Generator) -> Rollout:
        """Return the most probable parse, each group on its most probable device; ties are broken at random."""
        view = self.network.view(Situation())
        return self._draws(Situation(), view, self.network.parse(view), Exploring(heat=GREEDY), generator)[0]

    @torch.no_grad()
    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:
        """Return rollouts of plans, with parses that allow them: edges between devices are dropped, others drawn."""
        view = self.network.view(Situation())
        parses = self.network.parse(view, len(plans), generator, [plan.placement.copy() for plan in plans])
        order = np.stack([order_of(self._costs, plan) for plan in plans])
        device = np.stack([plan.placement[by] for plan, by in zip(plans, order, strict=True)])
        return self._draws(Situation(), view, parses, Exploring(), generator, forced=(order, device))

    def loss(self, rollouts: Sequence[Rollout], advantages: torch.Tensor | None, aim: Aim) -> torch.Tensor:
        """Return the loss that ``Policy`` defines.

        It is computed as the sum of the tables times their gradients, which a compiled loop over decisions adds up.
        """
        weights = torch.ones(len(rollouts)) if advantages is None else advantages
        entropy, clip = (0.0, None) if advantages is None else (aim.entropy, aim.clip)
        num = sum(self._count(rollout.record) for rollout in rollouts)
        by_situation: dict[object, list[int]] = {}
        for i, rollout in enumerate(rollouts):
            state, seed = rollout.record.situation
            by_situation.setdefault((id(state), seed), []).append(i)
        total = torch.zeros(())
        for members in by_situation.values():
            draws = [rollouts[i].record for i in members]
            tables = self._tables_of(self.network.view(draws[0].situation), [draw.parse for draw in draws])
            episodes = Episodes(*(np.stack(column) for column in zip(*(draw.episode for draw in draws), strict=True)))
            ascent = Ascent(weights[members].double().numpy(), entropy, clip or np.inf, self._config.learns_order)
            slopes = climb(self._arrays(tables.scores), ascent, episodes, tables.row)
            for name, slope in slopes._asdict().items():
                total = total + (getattr(tables.scores, name) * torch.from_numpy(slope).float()).sum()
            drawn_with = torch.stack([draw.edges for draw in draws])
            gain = clipped(tables.edges, drawn_with, weights[members][:, None], clip)
            total = total + gain.sum() + entropy * tables.of_edges.sum()
        return -(aim.imitation if advantages is None else 1.0) * total / num

    def _count(self, draw: Draw) -> int:
        """Return the number of decisions of a draw."""
        on_order = len(draw.episode.order) * self._config.learns_order
        return int(draw.episode.able.any(axis=1).sum()) + on_order + len(draw.edges)

    def _tables_of(self, view: View, parses: Sequence[Parse]) -> ParseTables:
        """Return the tables for parses from one situation."""
        groups = self._groups(tuple(parses))
        pooled, edges, of_edges = self.network.embed(view, groups)
        select = self._urgency + (self.network.urgency(view) if self._config.learns_order else 0.0)
        logits = self.network.logits(pooled, groups).clamp(min=LEAST_LOGIT)
        scores = Scores.linear(select, self.network.weights(pooled), logits)
        shape = len(parses), len(edges) // len(parses)
        row = groups.distinct.numpy()[groups.labels]
        return ParseTables(scores, row, edges.reshape(shape), of_edges.reshape(shape))

    @staticmethod
    def _arrays(scores: Scores[torch.Tensor]) -> Scores[Float32Array]:
        return Scores(*(np.ascontiguousarray(table.detach().numpy(), dtype=np.float32) for table in scores))

    def _draws(
        self,
        situation: Situation,
        view: View,
        parses: Sequence[Parse],
        exploring: Exploring,
        generator: torch.Generator,
        step: int = 1,
        forced: tuple[IntArray, IntArray] | None = None,
    ) -> list[Rollout]:
        """Return a rollout for each of several parses from one situation.

        Args:
            situation: Situation in which plans are drawn.
            view: Output of the forward pass for the situation.
            parses: Parses B.
            exploring: Share of uniform decisions, and temperature of the others.
            generator: Source of randomness.
            step: Position of the plans in their episodes, from 1.
            forced: Units [B, U] and devices [B, U] of every step, to be recorded instead of drawn ones.
        """
        tables = self._tables_of(view, parses)
        labels = self._groups(tuple(parses)).labels
        learns_order = self._config.learns_order
        heat, share = exploring.heat, exploring.share
        rules = Rules((heat if learns_order else GREEDY, heat), (share * learns_order, share))
        random = torch.rand((*labels.shape, 2), generator=generator, dtype=torch.float64).numpy()
        shared = Sharing(tables.row, labels - labels.min(axis=1, keepdims=True))
        episodes = decode(self._tables, self._tail_s, self._arrays(tables.scores), rules, random, forced, shared)
        rollouts = []
        for i, parse in enumerate(parses):
            episode = Episodes(*(column[i] for column in episodes))
            rank = inverse_of(episode.order)
            plan = Plan(episode.home[rank], rank if learns_order else None)
            rollouts.append(Rollout(plan, Draw(situation, parse, episode, tables.edges[i]), step))
        return rollouts


class HsdagPlacer(LearnedPlacer[HsdagConfig]):
    """Placer that learns groups of units and their devices together; see docs/learned-methods.md."""

    name = "hsdag"
    needs_costs = False
    gives_order = True
    options_type = HsdagConfig
    paper_reward = "measured"

    def check_request(self, objective: Objective, semantics: Semantics, *, has_costs: bool) -> None:
        """Raise OptionError as the base class does, also if features that suit any problem lack costs."""
        super().check_request(objective, semantics, has_costs=has_costs)
        if not self.options.is_portable:
            return
        needs = "a policy of hsdag from other problems needs the costs of ops"
        if not has_costs:
            raise OptionError(f"{needs}, which are unknown here; use {option('reward')} hybrid or a problem file")
        if not self.options.costs:
            raise OptionError(f"{needs} as features: its option costs must be true")

    def policy(self, problem: Problem, generator: torch.Generator) -> GroupPolicy:
        """Return an untrained policy on features of units, and on their costs if known and asked for."""
        options = self.options
        graph = problem.units.graph
        values = feature_matrix(problem.units, feature_groups(options)).values
        time_s = None
        if options.costs and problem.costs is not None:
            of_costs = cost_features(problem.costs)
            values = np.concatenate([values, of_costs[:, problem.num_devices * options.is_portable :]], axis=1)
            time_s = torch.tensor(finite_times(problem.costs), dtype=torch.float32)
        topology = Topology.from_edges(graph.num_ops, graph.edge_src, graph.edge_dst)
        edges = None if options.encoder == "hsdag" else edges_of(problem, with_costs=options.costs)
        x = standardise(values)
        network = GroupNetwork(x, topology, problem.supported, options, generator, time_s, edges)
        heats: tuple[float, ...] = (1.0,)
        if problem.costs is None and options.sees:
            network.begin()
            heats = HEATS
        return GroupPolicy(network, options, problem.costs or uniform_costs(problem), heats)


def feature_groups(config: HsdagConfig) -> tuple[str, ...]:
    """Return the feature groups that the options leave on, in the order of the feature matrix."""
    is_on = {"output_shape": config.output_shape, "positional": config.node_id}
    is_on |= dict.fromkeys(STRUCTURE_GROUPS, config.structure)
    chosen = PORTABLE if config.is_portable else GROUPS
    return tuple(group for group in chosen if is_on.get(group, True))
