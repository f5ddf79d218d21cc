"""Method ``placeto``: Placeto, whose policy improves a placement group by group (Placeto, §3, A.6, A.7).

Legend: U placement units, G groups, E edges, F features, D devices, W width of embeddings, K states, B episodes,
T steps of an episode, S groups that a step places, M decisions.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import networkx as nx
import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hsdag.base.errors import OptionError
from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray, inverse_of
from hsdag.ir.graph.partition import Partition
from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.networks import Edges, Mlp, standardise, tokens_of
from hsdag.methods.learned.options import NO_END, REINFORCE, Baseline, Ranges, Reward, TrainingOptions
from hsdag.methods.learned.policy import Exploring, Likelihood, LikelihoodPolicy, Rollout, drawn, log_p_of
from hsdag.methods.learned.stepwise import (
    SEEN_NUMBERS,
    Decisions,
    Draws,
    Schedules,
    Seeing,
    order_of_visits,
    tables_and_tails,
)
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem


@dataclass(frozen=True)
class PlacetoConfig(TrainingOptions):
    """Hyper-parameters of ``placeto``. Raises OptionError for a value out of range or options that conflict."""

    plans_per_update: int = 8
    learning_rate: float = 3e-3
    intermediate: bool = False
    """Reward every step by its gain (A.4), which requires one evaluation per step; else reward the final plan alone."""
    groups: int | None = None
    """Number of groups that Merge-and-Colocate (A.6) leaves; None: no merging, each unit is a group."""
    step: int = 64
    """Number of groups that a step places at once; one in the paper."""
    rounds: int = 2
    """Number of rounds of message passing (A.7: k)."""
    width: int = 16
    """Number of hidden units of the networks that compute, pass and pool embeddings (A.7: d)."""
    embedding: int = 16
    """Width of embeddings (A.7: |E|)."""
    head: int = 128
    """Number of hidden units of the network that chooses a device."""
    reads_own: bool = True
    """Feed the network that chooses a device the features of the group that it places, in addition to embeddings."""
    is_mean: bool = True
    """Average messages and pooled embeddings; the paper sums them."""
    wide_features: bool = True
    """Use types, positions in topological order, times on every device, transfers and levels as features; the paper
    uses one time and the size of the output."""
    sees: bool = True
    """Place units one after another, each given features of the devices in the schedule of the units before it.
    Possible only if each group is one unit; not in the paper."""

    ranges: ClassVar[Ranges] = (
        *TrainingOptions.ranges,
        ("at least 1 or None", 1, NO_END, "groups"),
        ("at least 1", 1, NO_END, "step rounds width embedding head"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sees and self.groups is not None:
            raise OptionError("option groups needs sees=false: the schedule that is seen is one of units")

    @classmethod
    def paper(cls) -> Self:
        """Return the preset that follows the paper exactly (§3, A.4, A.6, A.7)."""
        return cls(
            **REINFORCE,
            plans_per_update=8,
            learning_rate=1e-3,
            last_learning_rate=1e-4,
            entropy=1e-2,
            reward=Reward.NEGATIVE,
            baseline=Baseline.RECENT,
            max_grad_norm=0.0,
            intermediate=True,
            step=1,
            rounds=8,
            width=8,
            embedding=8,
            head=16,
            reads_own=False,
            is_mean=False,
            wide_features=False,
            sees=False,
        )


class UnitGroups(NamedTuple):
    """Groups of units, their graph, and their features that do not depend on the placement."""

    of_unit: torch.Tensor  # [U] group of each unit
    first: IntArray  # [G] first unit of each group, by index
    order: torch.Tensor  # [G] order of visits: that of their first units in the order given
    x: torch.Tensor  # [G, F] standardised features
    edges: Edges
    reaches: torch.Tensor  # [G, G] whether a path leads from a unit of the first group to one of the second
    able: torch.Tensor  # [G, D] whether a device supports all units of a group


def groups_of(
    costs: ScheduleProblem, order: IntArray, num_groups: int | None, tokens: torch.Tensor | None
) -> UnitGroups:
    """Return the groups of a problem's units.

    Args:
        costs: Costs of the units.
        order: Order of units by which groups are visited [U].
        num_groups: Number of groups that merging leaves; None: each unit is a group.
        tokens: Features of units, whose means are the features of groups [U, F]; None for the paper's features: sums of
            times and of output bytes.
    """
    groups = Partition.identity(costs.num_ops) if num_groups is None else merge_and_colocate(costs, num_groups)
    labels = groups.labels
    narrow = np.stack([np.nanmean(costs.time_s, axis=1), costs.output_bytes], axis=1)
    of_units = narrow if tokens is None else tokens.numpy()
    x = np.zeros((groups.num_groups, of_units.shape[1]))
    np.add.at(x, labels, of_units)
    if tokens is not None:
        x /= np.bincount(labels)[:, None]
    able = np.ones((groups.num_groups, costs.num_devices), dtype=np.bool_)
    np.logical_and.at(able, labels, costs.supported)
    visited = labels[order]
    _, first = np.unique(visited, return_index=True)
    source, target = groups.quotient_edges(costs.edge_src, costs.edge_dst)
    return UnitGroups(
        of_unit=torch.from_numpy(labels.copy()),
        first=np.unique(labels, return_index=True)[1],
        order=torch.from_numpy(visited[np.sort(first)]),
        x=standardise(x),
        edges=Edges.without_costs(torch.tensor(source), torch.tensor(target)),
        reaches=torch.from_numpy(_reaches(costs, groups)),
        able=torch.from_numpy(able),
    )


def merge_and_colocate(costs: ScheduleProblem, num_groups: int) -> Partition:
    """Merge the group with the fewest output bytes into its cheapest consumer until ``num_groups`` are left (A.6).

    The cheapest is the one with the fewest output bytes; those of a group are the sum over its units. A group without
    consumers is merged into its cheapest producer, and only groups that share a supported device are merged; a group
    without such a neighbour stays as it is. Ties are broken by index.
    """
    able = costs.supported.copy()
    size = costs.output_bytes.copy()
    graph = nx.DiGraph(zip(costs.edge_src.tolist(), costs.edge_dst.tolist(), strict=True))
    graph.add_nodes_from(range(costs.num_ops))
    home = np.arange(costs.num_ops)
    left = costs.num_ops
    waiting = [(float(size[v]), v) for v in range(costs.num_ops)]
    heapq.heapify(waiting)
    while left > num_groups and waiting:
        bytes_then, v = heapq.heappop(waiting)
        if home[v] != v or bytes_then != size[v]:
            continue
        choices = [[u for u in way if (able[u] & able[v]).any()] for way in (graph.succ[v], graph.pred[v])]
        if not any(choices):
            continue
        into = min(choices[0] or choices[1], key=lambda u: (size[u], u))
        home[home == v] = into
        left -= 1
        size[into] += size[v]
        able[into] &= able[v]
        nx.contracted_nodes(graph, into, v, self_loops=False, copy=False)
        heapq.heappush(waiting, (float(size[into]), into))
    return Partition.from_labels(home)


def _reaches(costs: ScheduleProblem, groups: Partition) -> BoolArray:
    """Return whether a path leads from a unit of one group to a unit of another [G, G]; the diagonal is False."""
    before = np.zeros((costs.num_ops, groups.num_groups), dtype=np.bool_)  # groups from which a path leads to a unit
    for e in np.argsort(inverse_of(costs.topological_order)[costs.edge_dst]).tolist():
        u, v = costs.edge_src[e], costs.edge_dst[e]
        before[v] |= before[u]
        before[v, groups.labels[u]] = True
    reaches = np.zeros((groups.num_groups, groups.num_groups), dtype=np.bool_)
    np.logical_or.at(reaches, groups.labels, before)
    np.fill_diagonal(reaches, val=False)
    return np.ascontiguousarray(reaches.T)


class PlacetoNetwork(nn.Module):
    """Network from states to logits of devices; untrained, all are equal.

    Messages pass down the graph and up the graph, with separate networks. Then, for each group that is being placed,
    the embeddings of its ancestors, of its descendants, and of all other groups are pooled.
    """

    def __init__(self, groups: UnitGroups, config: PlacetoConfig, generator: torch.Generator) -> None:
        super().__init__()
        self._groups = groups
        self._config = config
        num_devices, width, embedding = groups.able.shape[1], config.width, config.embedding

        def network(fan_in: int, fan_out: int) -> Mlp:
            return Mlp([fan_in, width, width, fan_out], generator)

        self.embed = network(groups.x.shape[1] + num_devices + 2, embedding)
        self.send = nn.ModuleList(network(embedding, embedding) for _ in range(2))
        self.receive = nn.ModuleList(network(embedding, embedding) for _ in range(2))
        self.tell = nn.ModuleList(network(2 * embedding, 2 * embedding) for _ in range(3))
        self.pool = nn.ModuleList(network(2 * embedding, 2 * embedding) for _ in range(3))
        fan_in = 8 * embedding + (groups.x.shape[1] if config.reads_own else 0)
        self.choose = Mlp([fan_in, config.head, config.head, num_devices], generator, zero_output=True)
        self.seeing = Seeing(len(groups.able), num_devices)

    def forward(self, device: torch.Tensor, visited: torch.Tensor, at_hand: torch.Tensor) -> torch.Tensor:
        """Return logits [K, S, D] of devices for the groups that are being placed.

        Args:
            device: Devices of all groups [K, G].
            visited: Whether the episode has placed a group already [K, G].
            at_hand: Groups that are being placed [K, S].
        """
        one_hot = nn.functional.one_hot(device, self._groups.able.shape[1])
        is_at_hand = torch.zeros(device.shape).scatter(1, at_hand, 1.0)
        state = torch.cat([one_hot, is_at_hand[..., None], visited[..., None]], dim=2).float()
        e = self.embed(torch.cat([self._groups.x.expand(len(device), -1, -1), state], dim=2))
        h = torch.cat([self._passed(e, way) for way in range(2)], dim=2)
        index = at_hand[..., None].expand(-1, -1, h.shape[2])
        features = [self._groups.x[at_hand]] if self._config.reads_own else []
        logits = self.choose(torch.cat([h.gather(1, index), *self._pooled(h, at_hand), *features], dim=2))
        return torch.as_tensor(logits.masked_fill(~self._groups.able[at_hand], -torch.inf))

    def _passed(self, e: torch.Tensor, way: int) -> torch.Tensor:
        """Return embeddings [K, G, W] after all rounds of messages in one direction.

        A round computes e + g(sum over neighbours of f(x)) from the embeddings x of the round before.

        Args:
            e: Initial embeddings [K, G, W].
            way: Direction: 0 down the graph, 1 up the graph.
        """
        from_group, to_group = self._groups.edges.ends[way], self._groups.edges.ends[1 - way]
        count = torch.bincount(to_group, minlength=e.shape[1]).clamp(min=1)[:, None] if self._config.is_mean else 1
        x = e
        for _ in range(self._config.rounds):
            sent = self.send[way](x)[:, from_group]
            x = e + self.receive[way](torch.zeros_like(e).index_add(1, to_group, sent) / count)
        return x

    def _pooled(self, h: torch.Tensor, at_hand: torch.Tensor) -> list[torch.Tensor]:
        """Return three pooled embeddings [K, S, 2 W]: of ancestors, of descendants, and of all other groups.

        Args:
            h: Embeddings of all groups [K, G, 2 W].
            at_hand: Groups that are being placed [K, S].
        """
        before, behind = self._groups.reaches.t()[at_hand], self._groups.reaches[at_hand]
        beside = ~(before | behind).scatter(2, at_hand[..., None], True)
        pooled = []
        for members, tell, pool in zip((before, behind, beside), self.tell, self.pool, strict=True):
            weight = members.float()
            if self._config.is_mean:
                weight = weight / weight.sum(dim=2, keepdim=True).clamp(min=1.0)
            pooled.append(pool(weight @ tell(h)))
        return pooled


ROWS = 2**16
"""Largest number of embeddings in one pass; more are split into passes that are computed again for the gradient, to
save memory."""


class Episode(NamedTuple):
    """Devices that an episode begins with, and its decisions."""

    start: torch.Tensor  # [G] devices at the start, by group
    decisions: Decisions  # on groups in place of units, in the order of visits


class PlacetoPolicy(LikelihoodPolicy):
    """A policy that begins with a trivial placement and visits every group once to place it anew."""

    network: PlacetoNetwork

    def __init__(
        self, network: PlacetoNetwork, groups: UnitGroups, config: PlacetoConfig, costs: ScheduleProblem
    ) -> None:
        self.network = network
        self._groups = groups
        self._config = config
        self._tables = tables_and_tails(costs) if config.sees else None
        self._rank = inverse_of(groups.order.numpy()) if config.sees else None
        num = len(groups.order)
        num_steps = -(-num // config.step)
        place = torch.arange(num_steps * config.step).reshape(num_steps, config.step)
        self._is_real = place < num  # [T, S]; the last step is padded with the last group
        self._at_hand = groups.order[place.clamp(max=num - 1)]  # [T, S] groups placed at each step
        self._step_of = torch.empty(num, dtype=torch.int64)  # [G] step at which each group is placed
        self._step_of[groups.order] = torch.arange(num) // config.step

    @torch.no_grad()
    def draw(self, count: int, exploring: Exploring, generator: torch.Generator) -> list[Rollout]:
        """Draw ``count`` episodes, step by step for all at once."""
        starts = self._starts(count, generator)
        device, visited = starts.clone(), torch.zeros(starts.shape, dtype=torch.bool)
        schedules = None if self._tables is None else Schedules(*self._tables, count)
        draws = Draws(self.network.seeing, schedules, exploring, generator)
        trails: list[list[Plan]] = [[] for _ in range(count)]
        for at_hand, is_real in zip(self._at_hand, self._is_real, strict=True):
            if self._config.intermediate:
                for trail, now in zip(trails, device, strict=True):
                    trail.append(self._plan(now))
            groups = at_hand[is_real]
            logits = self.network(device, visited, at_hand.expand(count, -1))[:, is_real]
            device[:, groups] = draws.choose(logits, groups)
            visited[:, groups] = True
        return self._rollouts(starts, draws.decisions(device), trails)

    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:
        """Return episodes that place each group on the device of its first unit in a plan.

        Their starts are drawn as in ``draw``.
        """
        device = torch.from_numpy(np.stack([plan.placement[self._groups.first] for plan in plans]))
        decisions = Decisions.along(self._groups.order, device, self._tables)
        return self._rollouts(self._starts(len(plans), generator), decisions, [()] * len(plans))

    def likelihood(self, rollouts: Sequence[Rollout]) -> Likelihood:
        """Return log-probabilities of all decisions, by batched passes over states rebuilt from the choices."""
        decisions: list[Decisions] = [rollout.record.decisions for rollout in rollouts]
        start = torch.stack([rollout.record.start for rollout in rollouts])
        device = torch.stack([of_episode.device for of_episode in decisions])  # [B, G]
        b, num = device.shape
        t = len(self._at_hand)
        states = torch.cartesian_prod(torch.arange(b), torch.arange(t)).t()  # [2, B T]
        of_steps = [
            self._padded(torch.stack([getattr(of_episode, name) for of_episode in decisions]))
            for name in (("features", "able") if self._config.sees else ())
        ]

        def of_some(some: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            episode, step = some
            visited = self._step_of < step[:, None]
            now = torch.where(visited, device[episode], start[episode])
            at_hand = self._at_hand[step]
            logits, chosen = self.network(now, visited, at_hand), device[episode].gather(1, at_hand)
            if self._config.sees:
                features, able = (column[episode, step] for column in of_steps)
                seeing = self.network.seeing
                able = able.scatter(2, chosen[..., None], value=True)
                logits = (seeing(logits, at_hand) + features @ seeing.weights).masked_fill(~able, -torch.inf)
            return log_p_of(logits, chosen)

        passes = torch.split(states, max(1, ROWS // num), dim=1)
        parts = [
            of_some(some) if len(passes) == 1 else checkpoint(of_some, some, use_reentrant=False) for some in passes
        ]
        is_real = self._is_real.repeat(b, 1)
        log_p, entropy = (torch.cat(column)[is_real] for column in zip(*parts, strict=True))
        owner = torch.arange(b).repeat_interleave(num)
        if self._config.intermediate:
            owner = owner * t + (torch.arange(num) // self._config.step).repeat(b)
        return Likelihood(log_p, torch.cat([of_episode.log_p for of_episode in decisions]), owner, entropy)

    def _padded(self, of_visits: torch.Tensor) -> torch.Tensor:
        """Return an array by visits [B, G, ...] as one by steps [B, T, S, ...], padded with zeros at the end."""
        steps, of_step = self._at_hand.shape
        room = of_visits.new_zeros(len(of_visits), steps * of_step, *of_visits.shape[2:])
        room[:, : of_visits.shape[1]] = of_visits
        return room.reshape(len(of_visits), steps, of_step, *of_visits.shape[2:])

    def _starts(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Draw start placements [B, G]: all groups of an episode on one random device.

        A group that this device does not support is on a random device that does support it.
        """
        able = self._groups.able
        anywhere, _ = drawn(torch.where(able, 0.0, -torch.inf).expand(count, -1, -1), Exploring(), generator)
        single = torch.randint(able.shape[1], (count, 1), generator=generator).expand(-1, len(able))
        return torch.where(able.t()[single[:, 0]], single, anywhere)

    def _plan(self, device: torch.Tensor) -> Plan:
        """Return the plan that places groups on devices [G]."""
        return Plan(device[self._groups.of_unit].numpy(), self._rank)

    def _rollouts(
        self, starts: torch.Tensor, decisions: Sequence[Decisions], trails: Sequence[Sequence[Plan]]
    ) -> list[Rollout]:
        """Return the rollouts of B episodes with start placements [B, G]."""
        return [
            Rollout(self._plan(each.device), Episode(start, each), trail=tuple(trail))
            for start, each, trail in zip(starts, decisions, trails, strict=True)
        ]


MEMORY_PENALTY_S_PER_BYTE = 2.0 / 1e9
"""Penalty for each byte by which the fullest device exceeds its memory (A.7: c, 2 s for each GB)."""


class PlacetoPlacer(LearnedPlacer[PlacetoConfig]):
    """Placer that visits groups of units in turn and places each anew, given the devices of all others.

    See docs/learned-methods.md.
    """

    name = "placeto"
    gives_order = True
    options_type = PlacetoConfig

    def policy(self, problem: Problem, generator: torch.Generator) -> PlacetoPolicy:
        """Return an untrained policy over groups of units, which Merge-and-Colocate makes if the options ask for it."""
        tokens = tokens_of(problem, with_costs=True) if self.options.wide_features else None
        order = order_of_visits(problem, sees=self.options.sees).numpy()
        groups = groups_of(problem.known_costs, order, self.options.groups, tokens)
        network = PlacetoNetwork(groups, self.options, generator)
        return PlacetoPolicy(network, groups, self.options, problem.known_costs)

    def needed_bytes(self, problem: Problem) -> float:
        """Return the bytes of activations, reachability, features of devices, and plans of episodes.

        The activations are those of ``ROWS`` embeddings, with all that is kept for the gradient.
        """
        options = self.options
        num = options.groups or problem.num_units
        made = 2 * options.rounds * (4 * options.width + 3 * options.embedding) + 14 * options.embedding
        num_steps = options.plans_per_update * -(-num // options.step)
        num_rows = min(max(ROWS, num), num_steps * num)
        seen = SEEN_NUMBERS * problem.num_devices * options.plans_per_update * num * options.sees
        return 12.0 * num_rows * made + 9.0 * num**2 + 4.0 * seen + 16.0 * options.intermediate * num_steps * num

    def penalised(self, value: float, over_bytes: FloatArray, memory_bytes: FloatArray) -> float:  # noqa: ARG002
        """Return R(p) of A.7: the value, plus a penalty for each GB by which the fullest device exceeds its memory."""
        return value + MEMORY_PENALTY_S_PER_BYTE * float(over_bytes.max())
