"""PlacetoPlacer: Placeto, a policy that improves a placement group by group, as a placer (Placeto, §3, A.6, A.7).

Legend: U placement units, G groups, E edges, F features, D devices, W embedding, K states, B episodes, N sweeps, T
steps of a sweep, S groups that a step places, M decisions.
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
from hsdag.methods.learned.decoding import Episodes
from hsdag.methods.learned.networks import Edges, Mlp, standardise, tokens_of
from hsdag.methods.learned.options import NO_END, REINFORCE, Baseline, Ranges, Reward, TrainingOptions
from hsdag.methods.learned.policy import Exploring, Likelihood, LikelihoodPolicy, Rollout, drawn, log_p_of
from hsdag.methods.learned.stepwise import SEEN_NUMBERS, Schedules, Seeing, joined, order_of_visits, tables_and_tails
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem


@dataclass(frozen=True)
class PlacetoConfig(TrainingOptions):
    """Hyper-parameters of Placeto. Raises OptionError for wrong ones."""

    plans_per_update: int = 8
    learning_rate: float = 3e-3
    sweeps: int = 1
    """Times that an episode visits every group (A.7: n)."""
    intermediate: bool = False
    """Reward every step by what it gains (A.4), which has a plan evaluated per step; else the last one alone."""
    groups: int | None = None
    """Groups that Merge-and-Colocate (A.6) leaves; None: no merging, every unit is a group."""
    step: int = 64
    """Groups that a step places at once; the paper places one."""
    rounds: int = 2
    """Rounds of messages (A.7: k)."""
    width: int = 16
    """Hidden units of the networks that make, pass on and pool embeddings (A.7: d)."""
    embedding: int = 16
    """Width of embeddings (A.7: |E|)."""
    head: int = 128
    """Hidden units of the network that chooses a device."""
    reads_own: bool = True
    """The network that chooses a device is given the features of the group that it places, too."""
    is_mean: bool = True
    """Average messages and pooled embeddings, where the paper sums them."""
    wide_features: bool = True
    """Use types, places in topological order, times on every device, transfers and levels, where the paper has one
    time and the output's size."""
    sees: bool = True
    """Units are placed one after another, each seeing what devices do with those that the sweep has placed; for groups
    that are units. Not in the paper."""
    memory_penalty: float = 2.0
    """Seconds added for each GB that the fullest device is over its memory (A.7: c)."""

    ranges: ClassVar[Ranges] = (
        *TrainingOptions.ranges,
        ("at least 1 or None", 1, NO_END, "groups"),
        ("at least 1", 1, NO_END, "sweeps step rounds width embedding head"),
        ("at least 0", 0, NO_END, "memory_penalty"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sees and self.groups is not None:
            raise OptionError("option groups needs sees=false: the schedule that is seen is one of units")

    @classmethod
    def paper(cls) -> Self:
        """The paper to the letter: §3, A.4, A.6, A.7."""
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


class Groups(NamedTuple):
    """Groups of units, their graph, and what is known of them before anything is placed."""

    of_unit: torch.Tensor  # [U]
    first: IntArray  # [G] the first unit of each
    order: torch.Tensor  # [G] in which they are visited: that of their first units in topological order
    x: torch.Tensor  # [G, F]
    edges: Edges
    reaches: torch.Tensor  # [G, G] whether a path leads from a unit of the first to one of the second
    able: torch.Tensor  # [G, D] whether a device supports all units


def groups_of(
    costs: ScheduleProblem,
    num_groups: int | None,
    tokens: torch.Tensor | None = None,
    order: IntArray | None = None,
) -> Groups:
    """The groups that merging leaves, each unit by itself where ``num_groups`` is None.

    They are visited in ``order`` [U] of units, by default the topological one of the problem. Features are the paper's,
    sums of times and output bytes, or means of ``tokens`` [U, F] where these are given.
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
    visited = labels[costs.topological_order if order is None else order]
    _, first = np.unique(visited, return_index=True)
    source, target = groups.quotient_edges(costs.edge_src, costs.edge_dst)
    return Groups(
        of_unit=torch.from_numpy(labels.copy()),
        first=np.unique(labels, return_index=True)[1],
        order=torch.from_numpy(visited[np.sort(first)]),
        x=standardise(x),
        edges=Edges.without_costs(torch.tensor(source), torch.tensor(target)),
        reaches=torch.from_numpy(_reaches(costs, groups)),
        able=torch.from_numpy(able),
    )


def merge_and_colocate(costs: ScheduleProblem, num_groups: int) -> Partition:
    """The group with the fewest output bytes joins its cheapest consumer, until ``num_groups`` are left (A.6).

    One without consumers joins its cheapest producer, one without neighbours that share a device stays. The bytes of
    a group are the sum over its units. Ties go by index.
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
    """[G, G] whether a path leads from a unit of a group to one of another group; not of a group to itself."""
    found = np.zeros((costs.num_ops, groups.num_groups), dtype=np.bool_)  # groups that lead to a unit
    for e in np.argsort(inverse_of(costs.topological_order)[costs.edge_dst]).tolist():
        u, v = costs.edge_src[e], costs.edge_dst[e]
        found[v] |= found[u]
        found[v, groups.labels[u]] = True
    reaches = np.zeros((groups.num_groups, groups.num_groups), dtype=np.bool_)
    np.logical_or.at(reaches, groups.labels, found)
    np.fill_diagonal(reaches, val=False)
    return np.ascontiguousarray(reaches.T)


class PlacetoNetwork(nn.Module):
    """From states to logits of devices; untrained, all are equal.

    Messages go down the graph and up it, with networks of their own. Then what is before the groups at hand, behind
    them and beside them is pooled.
    """

    def __init__(self, groups: Groups, config: PlacetoConfig, generator: torch.Generator) -> None:
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
        own = groups.x.shape[1] if config.reads_own else 0
        self.choose = Mlp([8 * embedding + own, config.head, config.head, num_devices], generator, zero_output=True)
        self.seeing = Seeing(len(groups.able), num_devices)

    def forward(self, device: torch.Tensor, visited: torch.Tensor, at_hand: torch.Tensor) -> torch.Tensor:
        """[K, S, D] logits for the groups ``at_hand`` [K, S], given devices [K, G] and who was visited [K, G]."""
        one_hot = nn.functional.one_hot(device, self._groups.able.shape[1])
        is_at_hand = torch.zeros(device.shape).scatter(1, at_hand, 1.0)
        state = torch.cat([one_hot, is_at_hand[..., None], visited[..., None]], dim=2).float()
        e = self.embed(torch.cat([self._groups.x.expand(len(device), -1, -1), state], dim=2))
        h = torch.cat([self._passed(e, way) for way in range(2)], dim=2)
        index = at_hand[..., None].expand(-1, -1, h.shape[2])
        own = [self._groups.x[at_hand]] if self._config.reads_own else []
        logits = self.choose(torch.cat([h.gather(1, index), *self._pooled(h, at_hand), *own], dim=2))
        return torch.as_tensor(logits.masked_fill(~self._groups.able[at_hand], -torch.inf))

    def _passed(self, e: torch.Tensor, way: int) -> torch.Tensor:
        """[K, G, W] embeddings after rounds of messages down the graph or up: x + g(sum over neighbours of f(x))."""
        from_group, to_group = self._groups.edges.ends[way], self._groups.edges.ends[1 - way]
        count = torch.bincount(to_group, minlength=e.shape[1]).clamp(min=1)[:, None] if self._config.is_mean else 1
        x = e
        for _ in range(self._config.rounds):
            sent = self.send[way](x)[:, from_group]
            x = e + self.receive[way](torch.zeros_like(e).index_add(1, to_group, sent) / count)
        return x

    def _pooled(self, h: torch.Tensor, at_hand: torch.Tensor) -> list[torch.Tensor]:
        """Three [K, S, 2 W]: what the groups before those at hand, behind them, and beside them tell."""
        before, behind = self._groups.reaches.t()[at_hand], self._groups.reaches[at_hand]
        beside = ~(before | behind).scatter(2, at_hand[..., None], True)
        found = []
        for members, tell, pool in zip((before, behind, beside), self.tell, self.pool, strict=True):
            weight = members.float()
            if self._config.is_mean:
                weight = weight / weight.sum(dim=2, keepdim=True).clamp(min=1.0)
            found.append(pool(weight @ tell(h)))
        return found


ROWS = 2**16
"""Embeddings that one pass makes; the gradient of more decisions is taken pass by pass, to save memory."""


@dataclass(frozen=True, eq=False)
class Episode:
    """Where an episode began, what it chose in every sweep, and the log-probabilities, by order of visits."""

    start: torch.Tensor  # [G]
    device: torch.Tensor  # [N, G]
    log_p: torch.Tensor  # [N, G], or [0] where they were not drawn
    features: torch.Tensor  # [N, G, D, F] of devices, or [0] where the policy does not see
    able: torch.Tensor  # [N, G, D], or [0]


class PlacetoPolicy(LikelihoodPolicy):
    """Begins with a trivial placement and visits every group once a sweep, to place it anew."""

    network: PlacetoNetwork

    def __init__(self, network: PlacetoNetwork, groups: Groups, config: PlacetoConfig, costs: ScheduleProblem) -> None:
        self.network = network
        self._groups = groups
        self._config = config
        self._tables = tables_and_tails(costs)
        self._rank = inverse_of(groups.order.numpy()) if config.sees else None
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
        device = start = self._starts(count, generator)
        sweeps, log_ps, seen = [], list[torch.Tensor](), list[list[Episodes]]()
        trails: list[list[Plan]] = [[] for _ in range(count)]
        for _ in range(self._config.sweeps):
            visited = torch.zeros(device.shape, dtype=torch.bool)
            schedules = Schedules(*self._tables, count) if self._config.sees else None
            seen.append([])
            for at_hand, is_real in zip(self._at_hand, self._is_real, strict=True):
                if self._config.intermediate:
                    for trail, now in zip(trails, device, strict=True):
                        trail.append(self._plan(now))
                groups = at_hand[is_real]
                logits = self.network(device, visited, at_hand.expand(count, -1))[:, is_real]
                if schedules is None:
                    chosen, log_p = drawn(logits, exploring, generator)
                else:
                    seen[-1].append(schedules.drawn(self.network.seeing, logits, groups, exploring, generator))
                    chosen, log_p = (torch.from_numpy(each) for each in (seen[-1][-1].home, seen[-1][-1].log_p[..., 1]))
                device, visited = device.clone(), visited.clone()
                device[:, groups] = chosen
                visited[:, groups] = True
                log_ps.append(log_p.float())
            sweeps.append(device)
        of_visits = torch.cat(log_ps, dim=1).reshape(count, self._config.sweeps, -1)
        of_sweeps = (
            torch.stack(columns, dim=1) for columns in zip(*(joined(each, count) for each in seen), strict=True)
        )
        records = zip(start, torch.stack(sweeps, dim=1), of_visits, *of_sweeps, strict=True)
        return [
            Rollout(self._plan(last), Episode(*record), trail=tuple(trail))
            for last, record, trail in zip(device, records, trails, strict=True)
        ]

    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:
        """Episodes that place every group where the plan has its first unit, from starts drawn as ever."""
        device = torch.from_numpy(np.stack([plan.placement[self._groups.first] for plan in plans]))
        order, seen = self._groups.order, list[Episodes]()
        if self._config.sees:
            seen = [Schedules(*self._tables, len(plans)).follow(order.numpy(), device[:, order].numpy())]
        starts, undrawn = self._starts(len(plans), generator), torch.zeros(len(plans), 0)
        of_sweeps = (
            each[:, None].expand(-1, self._config.sweeps, *each.shape[1:]) for each in joined(seen, len(plans))
        )
        sweeps = device[:, None].expand(-1, self._config.sweeps, -1)
        records = zip(starts, sweeps, undrawn, *of_sweeps, strict=True)
        return [Rollout(self._plan(last), Episode(*each)) for last, each in zip(device, records, strict=True)]

    def likelihood(self, rollouts: Sequence[Rollout]) -> Likelihood:
        """All steps of all episodes in a few batched passes; states follow from what was chosen."""
        start = torch.stack([rollout.record.start for rollout in rollouts])[:, None]
        device = torch.stack([rollout.record.device for rollout in rollouts])  # [B, N, G]
        before = torch.cat([start, device[:, :-1]], dim=1)
        b, n, num = device.shape
        t = len(self._at_hand)
        columns = torch.meshgrid(torch.arange(b), torch.arange(n), torch.arange(t), indexing="ij")
        states = torch.stack([column.reshape(-1) for column in columns])  # [3, B N T]

        of_steps = [
            self._padded(torch.stack([getattr(rollout.record, name) for rollout in rollouts]))
            for name in (("features", "able") if self._config.sees else ())
        ]

        def of_some(some: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            episode, sweep, step = some
            visited = self._step_of < step[:, None]
            now = torch.where(visited, device[episode, sweep], before[episode, sweep])
            at_hand = self._at_hand[step]
            logits, chosen = self.network(now, visited, at_hand), device[episode, sweep].gather(1, at_hand)
            if self._config.sees:
                features, able = (each[episode, sweep, step] for each in of_steps)
                seeing = self.network.seeing
                able = able.scatter(2, chosen[..., None], value=True)
                logits = (seeing(logits, at_hand) + features @ seeing.weights).masked_fill(~able, -torch.inf)
            return log_p_of(logits, chosen)

        passes = torch.split(states, max(1, ROWS // num), dim=1)
        parts = [
            of_some(some) if len(passes) == 1 else checkpoint(of_some, some, use_reentrant=False) for some in passes
        ]
        is_real = self._is_real.repeat(b * n, 1)
        log_p, entropy = (torch.cat(column)[is_real] for column in zip(*parts, strict=True))
        drawn_with = torch.cat([rollout.record.log_p.reshape(-1) for rollout in rollouts])
        owner = torch.arange(b).repeat_interleave(n * num)
        if self._config.intermediate:
            step = torch.arange(n)[:, None] * t + torch.arange(num) // self._config.step  # [N, G]
            owner = owner * n * t + step.flatten().repeat(b)
        return Likelihood(log_p, drawn_with, owner, entropy)

    def _padded(self, of_visits: torch.Tensor) -> torch.Tensor:
        """[B, N, T, S, ...] by steps, of what is by visits [B, N, G, ...]; the last step is filled up with zeros."""
        steps, of_step = self._at_hand.shape
        room = of_visits.new_zeros(*of_visits.shape[:2], steps * of_step, *of_visits.shape[3:])
        room[:, :, : of_visits.shape[2]] = of_visits
        return room.reshape(*of_visits.shape[:2], steps, of_step, *of_visits.shape[3:])

    def _starts(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """[B, G] all groups on one device, drawn for each episode; one that lacks it is on any that it has."""
        able = self._groups.able
        anywhere, _ = drawn(torch.where(able, 0.0, -torch.inf).expand(count, -1, -1), Exploring(), generator)
        single = torch.randint(able.shape[1], (count, 1), generator=generator).expand(-1, len(able))
        return torch.where(able.t()[single[:, 0]], single, anywhere)

    def _plan(self, device: torch.Tensor) -> Plan:
        """The plan of devices [G]."""
        return Plan(device[self._groups.of_unit].numpy(), self._rank)


GB = 1e9


class PlacetoPlacer(LearnedPlacer[PlacetoConfig]):
    """Visits groups of units in turn and places each anew, given where all others are; see docs/learned-methods.md."""

    name = "placeto"
    gives_order = True
    options_type = PlacetoConfig

    def policy(self, problem: Problem, generator: torch.Generator) -> PlacetoPolicy:
        """Groups of the problem's units, by Merge-and-Colocate where asked for."""
        tokens = tokens_of(problem, with_costs=True) if self.options.wide_features else None
        order = order_of_visits(problem, sees=self.options.sees).numpy()
        groups = groups_of(problem.known_costs, self.options.groups, tokens, order)
        network = PlacetoNetwork(groups, self.options, generator)
        return PlacetoPolicy(network, groups, self.options, problem.known_costs)

    def needed_bytes(self, problem: Problem) -> float:
        """Activations of ``ROWS`` embeddings with what the gradient keeps, reachability, and the plans of episodes."""
        options = self.options
        num = options.groups or problem.num_units
        made = 2 * options.rounds * (4 * options.width + 3 * options.embedding) + 14 * options.embedding
        num_steps = options.plans_per_update * options.sweeps * -(-num // options.step)
        num_rows = min(max(ROWS, num), num_steps * num)
        seen = SEEN_NUMBERS * problem.num_devices * options.plans_per_update * options.sweeps * num * options.sees
        return 12.0 * num_rows * made + 9.0 * num**2 + 4.0 * seen + 16.0 * options.intermediate * num_steps * num

    def penalised(self, value: float, over_bytes: FloatArray, memory_bytes: FloatArray) -> float:  # noqa: ARG002
        """R(p) of A.7: so many seconds more per GB that the fullest device is over its memory."""
        return value + self.options.memory_penalty / GB * float(over_bytes.max())
