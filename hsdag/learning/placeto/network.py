"""PlacetoNetwork: embeds a graph that is being placed, and places the groups at hand (Placeto, §3.2, A.7).

Legend: K states, G groups, S groups that a step places, F features, D devices, W embedding.
"""

from __future__ import annotations

import torch
from torch import nn

from hsdag.learning.encoders import Edges, make_encoder
from hsdag.learning.networks import Mlp
from hsdag.learning.placeto.config import OWN, PlacetoConfig
from hsdag.learning.placeto.groups import Groups


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
