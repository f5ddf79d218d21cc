"""Placeto's options, and PlacetoNetwork: embeds a graph that is being placed, and places the groups at hand.

Placeto, §3.2, A.7. Legend: K states, G groups, S groups that a step places, F features, D devices, W embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Self

import torch
from torch import nn

from hsdag.methods.learned.networks import Edges, Mlp, make_encoder
from hsdag.methods.learned.options import Baseline, Ranges, Reward, TrainingOptions
from hsdag.methods.learned.placeto.groups import Groups

OWN = "placeto"
"""The encoder of the paper."""


class Start(Enum):
    """The placement that an episode begins with."""

    SINGLE = "single"  # all groups on one device, drawn for each episode
    RANDOM = "random"  # every group on a device of its own draw


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
    """Times that an episode visits every group (A.7: n)."""
    start: Start = Start.SINGLE
    """What an episode begins with: single or random."""
    intermediate: bool = True
    """Reward every step by what it gains (A.4), which has a plan evaluated per step; else the last one alone."""
    groups: int | None = None
    """Groups that Merge-and-Colocate (A.6) leaves; None: no merging, every unit is a group."""
    step: int = 24
    """Groups that a step places at once; the paper places one."""
    encoder: str = OWN
    """How messages are passed: placeto (A.7), messages, both-ways, sage-pool, gcn, gat, gin or sage."""
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
    memory_penalty: float = 2.0
    """Seconds added for each GB that the fullest device is over its memory (A.7: c)."""

    ranges: ClassVar[Ranges] = (
        *TrainingOptions.ranges,
        ("at least 1 or None", lambda x: x >= 1, "groups"),
        ("at least 1", lambda x: x >= 1, "sweeps step rounds width embedding head"),
        ("at least 0", lambda x: x >= 0, "memory_penalty"),
    )

    @classmethod
    def default(cls, *, is_cheap: bool) -> Self:
        """A reward per step where plans are simulated."""
        return cls(intermediate=is_cheap)

    @classmethod
    def paper(cls) -> Self:
        """The paper to the letter: §3, A.4, A.6, A.7."""
        return cls(
            plans_per_update=8,
            epochs=1,
            learning_rate=1e-3,
            last_learning_rate=1e-4,
            entropy=1e-2,
            last_entropy=0.0,
            reward=Reward.NEGATIVE,
            baseline=Baseline.RECENT,
            clip=None,
            elites=0,
            patience=0,
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


class PlacetoNetwork(nn.Module):
    """From states to logits of devices; untrained, all are equal.

    Messages go down the graph and up it, with networks of their own. Then what is before the groups at hand, behind
    them and beside them is pooled.
    """

    def __init__(self, groups: Groups, config: PlacetoConfig, generator: torch.Generator) -> None:
        super().__init__()
        self._groups, self._config = groups, config
        num_devices, width, embedding = groups.able.shape[1], config.width, config.embedding
        hidden = [width, width]

        def network(fan_in: int, fan_out: int) -> Mlp:
            return Mlp([fan_in, *hidden, fan_out], generator)

        num_features = groups.x.shape[1] + num_devices + 2
        if config.encoder == OWN:
            self.embed = network(num_features, embedding)
            self.send = nn.ModuleList(network(embedding, embedding) for _ in range(2))
            self.receive = nn.ModuleList(network(embedding, embedding) for _ in range(2))
        else:
            self.encoder = make_encoder(config.encoder, num_features, 2 * embedding, config.rounds, generator)
        self.tell = nn.ModuleList(network(2 * embedding, 2 * embedding) for _ in range(3))
        self.pool = nn.ModuleList(network(2 * embedding, 2 * embedding) for _ in range(3))
        own = groups.x.shape[1] if config.reads_own else 0
        self.choose = Mlp([8 * embedding + own, config.head, config.head, num_devices], generator, zero_output=True)

    def forward(self, device: torch.Tensor, visited: torch.Tensor, at_hand: torch.Tensor) -> torch.Tensor:
        """[K, S, D] logits for the groups ``at_hand`` [K, S], given devices [K, G] and who was visited [K, G]."""
        one_hot = nn.functional.one_hot(device, self._groups.able.shape[1])
        is_at_hand = torch.zeros(device.shape).scatter(1, at_hand, 1.0)
        state = torch.cat([one_hot, is_at_hand[..., None], visited[..., None]], dim=2).float()
        h = self._embedded(torch.cat([self._groups.x.expand(len(device), -1, -1), state], dim=2))
        index = at_hand[..., None].expand(-1, -1, h.shape[2])
        own = [self._groups.x[at_hand]] if self._config.reads_own else []
        logits = self.choose(torch.cat([h.gather(1, index), *self._pooled(h, at_hand), *own], dim=2))
        return torch.as_tensor(logits.masked_fill(~self._groups.able[at_hand], -torch.inf))

    def _embedded(self, x: torch.Tensor) -> torch.Tensor:
        """[K, G, 2 W] embeddings of features [K, G, F]; another encoder sees all states as one graph of parts."""
        if self._config.encoder == OWN:
            e = self.embed(x)
            return torch.cat([self._passed(e, way) for way in range(2)], dim=2)
        first = (torch.arange(len(x)) * x.shape[1])[:, None]
        source, target = ((first + end).reshape(-1) for end in (self._groups.source, self._groups.target))
        h: torch.Tensor = self.encoder(x.flatten(0, 1), Edges(source, target, torch.zeros(len(source), 1)))
        return h.reshape(*x.shape[:2], -1)

    def _passed(self, e: torch.Tensor, way: int) -> torch.Tensor:
        """[K, G, W] embeddings after rounds of messages down the graph or up: x + g(sum over neighbours of f(x))."""
        ends = self._groups.source, self._groups.target
        from_group, to_group = ends[way], ends[1 - way]
        count = torch.bincount(to_group, minlength=e.shape[1]).clamp(min=1)[:, None] if self._config.is_mean else 1
        x = e
        for _ in range(self._config.rounds):
            sent = self.send[way](x)[:, from_group]
            x = e + self.receive[way](torch.zeros_like(e).index_add(1, to_group, sent) / count)
        return x

    def _pooled(self, h: torch.Tensor, at_hand: torch.Tensor) -> list[torch.Tensor]:
        """Three [K, S, 2 W]: what the groups before those at hand, behind them, and beside them tell."""
        reaches = self._groups.reaches
        before, behind = reaches.t()[at_hand], reaches[at_hand]
        beside = ~(before | behind).scatter(2, at_hand[..., None], True)
        found = []
        for members, tell, pool in zip((before, behind, beside), self.tell, self.pool, strict=True):
            weight = members.float()
            if self._config.is_mean:
                weight = weight / weight.sum(dim=2, keepdim=True).clamp(min=1.0)
            found.append(pool(weight @ tell(h)))
        return found


def needed_bytes(num_groups: int, num_devices: int, config: PlacetoConfig, rows: int) -> float:
    """About what an update holds at once: activations of ``rows`` embeddings, reachability, and episodes' plans."""
    made = 2 * config.rounds * (4 * config.width + 3 * config.embedding) + 14 * config.embedding + 2 * num_devices
    of_row = 3 * made  # with what the gradient keeps and makes of them
    num_steps = config.sweeps * -(-num_groups // config.step)
    trails = config.plans_per_update * num_steps * num_groups if config.intermediate else 0
    num_rows = min(max(rows, num_groups), config.plans_per_update * num_steps * num_groups)
    return 4.0 * num_rows * of_row + 9.0 * num_groups**2 + 16.0 * trails
