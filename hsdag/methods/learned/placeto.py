"""PlacetoPlacer: Placeto, a policy that improves a placement unit by unit, as a placer (Placeto, §3, A.7).

Legend: U placement units, E edges, F features, D devices, W embedding, K states, B episodes, N sweeps, T
steps of a sweep, S units that a step places, M decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hsdag.methods.exact.formulation import Formulation
from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.inputs import tokens_of
from hsdag.methods.learned.networks import Edges, Mlp, standardise
from hsdag.methods.learned.options import REINFORCE, Baseline, Ranges, Reward, TrainingOptions
from hsdag.methods.learned.policy import Exploring, Likelihood, Policy, Rollout, drawn, log_p_of
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator.values import simulated_values
from hsdag.scoring.memory import MemoryCheck


@dataclass(frozen=True)
class PlacetoConfig(TrainingOptions):
    """Hyper-parameters of Placeto. Raises OptionError for wrong ones."""

    plans_per_update: int = 8
    epochs: int = 2
    learning_rate: float = 3e-3
    last_learning_rate: float = 3e-4
    elites: int = 1
    patience: int = 25
    sweeps: int = 1
    """Times that an episode visits every unit (A.7: n)."""
    intermediate: bool = True
    """Reward every step by what it gains (A.4), which has a plan evaluated per step; else the last one alone."""
    step: int = 24
    """Units that a step places at once; the paper places one."""
    rounds: int = 2
    """Rounds of messages (A.7: k)."""
    width: int = 16
    """Hidden units of the networks that make, pass on and pool embeddings (A.7: d)."""
    embedding: int = 16
    """Width of embeddings (A.7: |E|)."""
    head: int = 128
    """Hidden units of the network that chooses a device."""
    reads_own: bool = True
    """The network that chooses a device is given the features of the unit that it places, too."""
    is_mean: bool = True
    """Average messages and pooled embeddings, where the paper sums them."""
    wide_features: bool = True
    """Use types, places in topological order, times on every device, transfers and levels, where the paper has one
    time and the output's size."""
    memory_penalty: float = 2.0
    """Seconds added for each GB that the fullest device is over its memory (A.7: c)."""

    ranges: ClassVar[Ranges] = (
        *TrainingOptions.ranges,
        ("at least 1", lambda x: x >= 1, "sweeps step rounds width embedding head"),
        ("at least 0", lambda x: x >= 0, "memory_penalty"),
    )

    @classmethod
    def default(cls, *, is_cheap: bool) -> Self:
        """A reward per step where plans are simulated."""
        return cls(intermediate=is_cheap)

    @classmethod
    def paper(cls) -> Self:
        """The paper to the letter: §3, A.4, A.7."""
        return cls(
            **REINFORCE,
            plans_per_update=8,
            learning_rate=1e-3,
            last_learning_rate=1e-4,
            entropy=1e-2,
            last_entropy=0.0,
            reward=Reward.NEGATIVE,
            baseline=Baseline.RECENT,
            max_grad_norm=0.0,
            step=1,
            rounds=8,
            width=8,
            embedding=8,
            head=16,
            reads_own=False,
            is_mean=False,
            wide_features=False,
        )


class Units(NamedTuple):
    """The graph of the units, and what is known of them before anything is placed."""

    order: torch.Tensor  # [U] in which they are visited, topological
    x: torch.Tensor  # [U, F]
    edges: Edges
    reaches: torch.Tensor  # [U, U] whether a path leads from the first to the second
    able: torch.Tensor  # [U, D] whether a device supports a unit


def units_of(costs: ScheduleProblem, tokens: torch.Tensor | None = None) -> Units:
    """The units with the paper's features, times and output bytes, or with ``tokens`` [U, F] where these are given."""
    narrow = np.stack([np.nanmean(costs.time_s, axis=1), costs.output_bytes], axis=1)
    ends = np.unique(np.stack([costs.edge_src, costs.edge_dst]), axis=1)
    return Units(
        order=torch.tensor(costs.topological_order),
        x=standardise(narrow if tokens is None else tokens.numpy()),
        edges=Edges.without_costs(*torch.tensor(ends)),
        reaches=torch.tensor(Formulation(costs).reach),
        able=torch.tensor(costs.supported),
    )


class PlacetoNetwork(nn.Module):
    """From states to logits of devices; untrained, all are equal.

    Messages go down the graph and up it, with networks of their own. Then what is before the units at hand, behind
    them and beside them is pooled.
    """

    def __init__(self, units: Units, config: PlacetoConfig, generator: torch.Generator) -> None:
        super().__init__()
        self._units, self._config = units, config
        num_devices, width, embedding = units.able.shape[1], config.width, config.embedding
        hidden = [width, width]

        def network(fan_in: int, fan_out: int) -> Mlp:
            return Mlp([fan_in, *hidden, fan_out], generator)

        num_features = units.x.shape[1] + num_devices + 2
        self.embed = network(num_features, embedding)
        self.send = nn.ModuleList(network(embedding, embedding) for _ in range(2))
        self.receive = nn.ModuleList(network(embedding, embedding) for _ in range(2))
        self.tell = nn.ModuleList(network(2 * embedding, 2 * embedding) for _ in range(3))
        self.pool = nn.ModuleList(network(2 * embedding, 2 * embedding) for _ in range(3))
        own = units.x.shape[1] if config.reads_own else 0
        self.choose = Mlp([8 * embedding + own, config.head, config.head, num_devices], generator, zero_output=True)

    def forward(self, device: torch.Tensor, visited: torch.Tensor, at_hand: torch.Tensor) -> torch.Tensor:
        """[K, S, D] logits for the units ``at_hand`` [K, S], given devices [K, U] and who was visited [K, U]."""
        one_hot = nn.functional.one_hot(device, self._units.able.shape[1])
        is_at_hand = torch.zeros(device.shape).scatter(1, at_hand, 1.0)
        state = torch.cat([one_hot, is_at_hand[..., None], visited[..., None]], dim=2).float()
        e = self.embed(torch.cat([self._units.x.expand(len(device), -1, -1), state], dim=2))
        h = torch.cat([self._passed(e, way) for way in range(2)], dim=2)
        index = at_hand[..., None].expand(-1, -1, h.shape[2])
        own = [self._units.x[at_hand]] if self._config.reads_own else []
        logits = self.choose(torch.cat([h.gather(1, index), *self._pooled(h, at_hand), *own], dim=2))
        return torch.as_tensor(logits.masked_fill(~self._units.able[at_hand], -torch.inf))

    def _passed(self, e: torch.Tensor, way: int) -> torch.Tensor:
        """[K, U, W] embeddings after rounds of messages down the graph or up: x + g(sum over neighbours of f(x))."""
        ends = self._units.edges.ends
        from_unit, to_unit = ends[way], ends[1 - way]
        count = torch.bincount(to_unit, minlength=e.shape[1]).clamp(min=1)[:, None] if self._config.is_mean else 1
        x = e
        for _ in range(self._config.rounds):
            sent = self.send[way](x)[:, from_unit]
            x = e + self.receive[way](torch.zeros_like(e).index_add(1, to_unit, sent) / count)
        return x

    def _pooled(self, h: torch.Tensor, at_hand: torch.Tensor) -> list[torch.Tensor]:
        """Three [K, S, 2 W]: what the units before those at hand, behind them, and beside them tell."""
        reaches = self._units.reaches
        before, behind = reaches.t()[at_hand], reaches[at_hand]
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

    start: torch.Tensor  # [U]
    device: torch.Tensor  # [N, U]
    log_p: torch.Tensor  # [N, U], or [0] where they were not drawn


class PlacetoPolicy(Policy):
    """Begins with a trivial placement and visits every unit once a sweep, to place it anew."""

    network: PlacetoNetwork

    def __init__(self, network: PlacetoNetwork, units: Units, config: PlacetoConfig) -> None:
        self.network, self._units, self._config = network, units, config
        num = len(units.order)
        num_steps = -(-num // config.step)
        place = torch.arange(num_steps * config.step).reshape(num_steps, config.step)
        self._is_real = place < num  # [T, S]; the last step is filled up with the last unit
        self._at_hand = units.order[place.clamp(max=num - 1)]  # [T, S]
        self._step_of = torch.empty(num, dtype=torch.int64)  # [U]
        self._step_of[units.order] = torch.arange(num) // config.step

    @torch.no_grad()
    def draw(self, count: int, exploring: Exploring, generator: torch.Generator) -> list[Rollout]:
        """``count`` episodes that step together."""
        start = self._starts(count, generator)
        device, sweeps, log_ps = start, [], []
        trails: list[list[Plan]] = [[] for _ in range(count)]
        for _ in range(self._config.sweeps):
            visited = torch.zeros(device.shape, dtype=torch.bool)
            for at_hand, is_real in zip(self._at_hand, self._is_real, strict=True):
                if self._config.intermediate:
                    for trail, now in zip(trails, device, strict=True):
                        trail.append(Plan(now.numpy()))
                logits = self.network(device, visited, at_hand.expand(count, -1))
                chosen, log_p = drawn(logits, exploring, generator)
                device, visited = device.clone(), visited.clone()
                device[:, at_hand[is_real]], visited[:, at_hand] = chosen[:, is_real], True
                log_ps.append(log_p[:, is_real])
            sweeps.append(device)
        of_visits = torch.cat(log_ps, dim=1).reshape(count, self._config.sweeps, -1)
        records = zip(device, start, torch.stack(sweeps, dim=1), of_visits, trails, strict=True)
        return [
            Rollout(Plan(last.numpy()), Episode(first, chosen, log_p), trail=tuple(trail))
            for last, first, chosen, log_p, trail in records
        ]

    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:
        """Episodes that place every unit where the plan has it, from starts drawn as ever."""
        starts, found = self._starts(len(plans), generator), []
        for start, plan in zip(starts, plans, strict=True):
            device = torch.from_numpy(plan.placement.copy())
            episode = Episode(start, device.expand(self._config.sweeps, -1), torch.zeros(0))
            found.append(Rollout(plan.unordered, episode))
        return found

    def likelihood(self, rollouts: Sequence[Rollout]) -> Likelihood:
        """All steps of all episodes in a few batched passes; states follow from what was chosen."""
        start = torch.stack([rollout.record.start for rollout in rollouts])[:, None]
        device = torch.stack([rollout.record.device for rollout in rollouts])  # [B, N, U]
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

        passes = torch.split(states, max(1, ROWS // num), dim=1)
        parts = [
            of_some(some) if len(passes) == 1 else checkpoint(of_some, some, use_reentrant=False) for some in passes
        ]
        is_real = self._is_real.repeat(b * n, 1)
        log_p, entropy = (torch.cat(column)[is_real] for column in zip(*parts, strict=True))
        drawn_with = torch.cat([rollout.record.log_p.reshape(-1) for rollout in rollouts])
        owner = torch.arange(b).repeat_interleave(n * num)
        if self._config.intermediate:
            step = torch.arange(n)[:, None] * t + torch.arange(num) // self._config.step  # [N, U]
            owner = owner * n * t + step.flatten().repeat(b)
        return Likelihood(log_p, drawn_with, owner, entropy)

    def _starts(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """[B, U] all units on one device, drawn for each episode; one that lacks it is on any that it has."""
        able = self._units.able
        anywhere, _ = drawn(torch.where(able, 0.0, -torch.inf).expand(count, -1, -1), Exploring(), generator)
        single = torch.randint(able.shape[1], (count, 1), generator=generator).expand(-1, len(able))
        return torch.where(able.t()[single[:, 0]], single, anywhere)


GB = 1e9


class PlacetoPlacer(LearnedPlacer[PlacetoConfig]):
    """Visits units in turn and places each anew, given where all others are; see docs/learned-methods.md."""

    name = "placeto"
    options_type = PlacetoConfig

    def policy(self, problem: Problem, generator: torch.Generator) -> PlacetoPolicy:
        """The paper's network over the problem's units, whose costs are read."""
        assert problem.costs is not None
        tokens = tokens_of(problem, with_costs=True) if self.options.wide_features else None
        units = units_of(problem.costs, tokens)
        return PlacetoPolicy(PlacetoNetwork(units, self.options, generator), units, self.options)

    def needed_bytes(self, problem: Problem) -> float:
        """Activations of ``ROWS`` embeddings, reachability, and the plans of episodes."""
        options, num = self.options, problem.num_units
        made = 2 * options.rounds * (4 * options.width + 3 * options.embedding)
        made += 14 * options.embedding + 2 * problem.num_devices
        num_steps = options.sweeps * -(-num // options.step)
        trails = options.plans_per_update * num_steps * num if options.intermediate else 0
        num_rows = min(max(ROWS, num), options.plans_per_update * num_steps * num)
        return 4.0 * num_rows * 3 * made + 9.0 * num**2 + 16.0 * trails  # 3: with what the gradient keeps and makes

    def penalty(self, problem: Problem) -> Callable[[Plan], float]:
        """R(p) of A.7: the simulated value and so many seconds per GB that the fullest device is over its memory."""
        costs, semantics = problem.costs, problem.semantics
        assert costs is not None
        check, scale_s = MemoryCheck(costs, semantics), self.options.memory_penalty / GB

        def penalised(plan: Plan) -> float:
            if not problem.is_legal(plan.placement):
                return float("nan")
            over_bytes = float((check.peak_bytes(plan.placement) - costs.memory_bytes).max())
            value = float(simulated_values(problem.objective, costs, plan.placement[None], semantics, None)[0])
            return value + scale_s * over_bytes if over_bytes > 0 and np.isfinite(value) else float("nan")

        return penalised
