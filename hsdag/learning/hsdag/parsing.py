"""Graph parsing network: edge scores, groups, pooled embeddings (paper §2.4, Alg. 2).

Legend: N nodes, E undirected edges, K nominated edges, G groups, H hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import nn

from hsdag.ir.graph import BoolArray, FloatArray, IntArray, inverse_of
from hsdag.ir.partition import Partition
from hsdag.learning.hsdag.config import HsdagConfig
from hsdag.learning.hsdag.topology import Topology
from hsdag.learning.networks import Mlp

NEUTRAL_SCORE = 0.5  # sigmoid(0), the untrained score


@dataclass(frozen=True, eq=False)
class Level:
    """One parsing of a graph: the edges its nodes nominated, those kept, and the groups that follow."""

    topology: Topology
    nominated: IntArray  # [K] edges, each the best of one of its ends
    kept: BoolArray  # [K]

    @cached_property
    def partition(self) -> Partition:
        """Connected components of the kept edges."""
        edges = self.nominated[self.kept]
        t = self.topology
        return Partition.from_pairs(t.num_nodes, t.left[edges], t.right[edges])

    @cached_property
    def labels(self) -> torch.Tensor:
        """[N] group of every node."""
        return torch.tensor(self.partition.labels)

    @cached_property
    def kept_edges(self) -> torch.Tensor:
        """Indices of the kept edges."""
        return torch.tensor(self.nominated[self.kept])

    @cached_property
    def group_size(self) -> torch.Tensor:
        """[G] nodes per group."""
        return torch.bincount(self.labels, minlength=self.partition.num_groups).float()


@dataclass(frozen=True, eq=False)
class Parse:
    """A grouping of the nodes, level by level."""

    levels: tuple[Level, ...]

    @cached_property
    def partition(self) -> Partition:
        """Node -> group of the last level."""
        partition = self.levels[0].partition
        for level in self.levels[1:]:
            partition = level.partition.refine(partition)
        return partition

    @cached_property
    def labels(self) -> torch.Tensor:
        """[N] group of every node."""
        return torch.tensor(self.partition.labels)

    @property
    def num_groups(self) -> int:
        """G."""
        return self.partition.num_groups

    @cached_property
    def representative(self) -> torch.Tensor:
        """[G] one node of every group."""
        member = np.empty(self.num_groups, dtype=np.int64)
        member[self.partition.labels] = np.arange(self.partition.num_items)
        return torch.tensor(member)

    @staticmethod
    def side_by_side(parses: Sequence[Parse]) -> Parse:
        """One grouping of a copy of the graph per parse: their groups and nominated edges, one after another."""
        return Parse(tuple(_disjoint(levels) for levels in zip(*(p.levels for p in parses), strict=True)))


def _disjoint(levels: Sequence[Level]) -> Level:
    nodes = np.cumsum([0] + [level.topology.num_nodes for level in levels])
    edges = np.cumsum([0] + [level.topology.num_edges for level in levels])
    topology = Topology(
        int(nodes[-1]),
        np.concatenate([level.topology.left + n for level, n in zip(levels, nodes[:-1], strict=True)]),
        np.concatenate([level.topology.right + n for level, n in zip(levels, nodes[:-1], strict=True)]),
        np.arange(edges[-1], dtype=np.int64),
    )
    nominated = np.concatenate([level.nominated + e for level, e in zip(levels, edges[:-1], strict=True)])
    return Level(topology, nominated, np.concatenate([level.kept for level in levels]))


def nominate(topology: Topology, scores: FloatArray) -> IntArray:
    """[K] the highest-scored incident edge of every node (Eq. 9), ascending, each once; ties by rank.

    Scores and ranks order the edges strictly, so the nominated edges form a forest.
    """
    order = np.lexsort((topology.rank, scores))
    place = inverse_of(order)
    best = np.full(topology.num_nodes, -1, dtype=np.int64)
    np.maximum.at(best, topology.left, place)
    np.maximum.at(best, topology.right, place)
    return np.asarray(np.sort(order[np.unique(best[best >= 0])]), dtype=np.int64)


def parse_level(topology: Topology, nominated: IntArray, scores: FloatArray, kept: BoolArray) -> Level:
    """Groups from edge scores [E] and which of the nominated edges [K] are kept.

    A departure from the paper: where the kept edges would join a connected graph into one group, the weakest
    of them is dropped unless its score exceeds 0.5. One group, hence one device, has to be learned.
    """
    if topology.num_nodes > 1 and int(kept.sum()) == topology.num_nodes - 1:  # the forest is a tree
        weakest = np.lexsort((topology.rank[nominated], scores[nominated]))[0]
        if scores[nominated[weakest]] <= NEUTRAL_SCORE:
            kept = kept & (np.arange(len(kept)) != weakest)
    return Level(topology, nominated, kept)


class ParsingNetwork(nn.Module):
    """Edge scores sigmoid(MLP(z_u * z_v)) (Eq. 7) and what follows from them; untrained, all scores are 0.5."""

    def __init__(self, config: HsdagConfig, generator: torch.Generator) -> None:
        super().__init__()
        self._levels = config.levels
        self._sampled, self._range, self._bias = config.sampled_parsing, config.score_range, config.score_bias
        widths = [config.hidden] * config.parsing_layers + [1]
        self.edge_mlp = Mlp(widths, generator, zero_output=True)

    def score_logits(self, z: torch.Tensor, topology: Topology) -> torch.Tensor:
        """[E] logits of the edge scores for embeddings [N, H]."""
        product = z[topology.left_index] * z[topology.right_index]
        logits = torch.as_tensor(self.edge_mlp(product)).squeeze(-1) + self._bias
        return logits if self._range is None else self._range * torch.tanh(logits / self._range)

    @torch.no_grad()
    def parse(
        self,
        z: torch.Tensor,
        topology: Topology,
        count: int = 1,
        generator: torch.Generator | None = None,
        devices: Sequence[IntArray] | None = None,
    ) -> list[Parse]:
        """``count`` groupings of embeddings [N, H].

        Where parsings are sampled, nominated edges are kept by their probability; without a generator, where that is at
        least one half. ``devices`` are placements [N] that the groupings must allow: edges across devices are dropped.
        """
        scores = self._scores(z, topology)
        nominated = nominate(topology, scores)
        parses = []
        for b in range(count):
            device = None if devices is None else devices[b]
            levels = [self._level(topology, nominated, scores, generator, device)]
            embeddings, found = z, scores
            while len(levels) < self._levels:
                below = levels[-1]
                embeddings = pool(embeddings, torch.from_numpy(found).float(), below)
                quotient = below.topology.quotient(below.partition)
                if device is not None:
                    device = device[np.unique(below.partition.labels, return_index=True)[1]]
                found = self._scores(embeddings, quotient)
                edges = nominate(quotient, found)
                levels.append(self._level(quotient, edges, found, generator, device))
            parses.append(Parse(tuple(levels)))
        return parses

    def _scores(self, z: torch.Tensor, topology: Topology) -> FloatArray:
        """[E] scores of edges."""
        return np.asarray(torch.sigmoid(self.score_logits(z, topology)).double().numpy())

    def _level(
        self,
        topology: Topology,
        nominated: IntArray,
        scores: FloatArray,
        generator: torch.Generator | None,
        device: IntArray | None,
    ) -> Level:
        """One grouping."""
        kept = np.ones(len(nominated), dtype=np.bool_)
        if self._sampled and generator is not None:
            kept = torch.rand(len(nominated), generator=generator, dtype=torch.float64).numpy() < scores[nominated]
        elif self._sampled:
            kept = scores[nominated] >= NEUTRAL_SCORE
        if device is not None:
            kept &= device[topology.left[nominated]] == device[topology.right[nominated]]
        return parse_level(topology, nominated, scores, kept)

    def embed(
        self, z: torch.Tensor, parse: Parse, first_logits: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        """Pooled embeddings [G, H]; where parsings are sampled, log-probabilities [K] of the nominated edges' fates for
        every level, and their entropies.

        ``first_logits`` [E] are the score logits of the first level.
        """
        decisions: list[torch.Tensor] = []
        entropies: list[torch.Tensor] = []
        for depth, level in enumerate(parse.levels):
            logits = first_logits if depth == 0 else self.score_logits(z, level.topology)
            if self._sampled:
                chosen = logits[torch.from_numpy(level.nominated)]
                decisions.append(nn.functional.logsigmoid(torch.where(torch.from_numpy(level.kept), chosen, -chosen)))
                entropies.append(nn.functional.softplus(chosen) - chosen * torch.sigmoid(chosen))
            z = pool(z, torch.sigmoid(logits), level)
        return z, decisions, torch.cat(entropies) if entropies else z.new_zeros(0)


def pool(z: torch.Tensor, scores: torch.Tensor, level: Level) -> torch.Tensor:
    """[G, H] mean embedding of every group times the mean score of its kept edges (0.5 where it has none)."""
    num_groups = level.partition.num_groups
    total = z.new_zeros(num_groups, z.shape[1]).index_add(0, level.labels, z)
    home = level.labels[level.topology.left_index[level.kept_edges]]
    score = z.new_zeros(num_groups).index_add(0, home, scores[level.kept_edges])
    count = level.group_size - 1  # nominated edges form a forest, and groups are its trees
    weight = torch.where(count > 0, score / count.clamp(min=1), NEUTRAL_SCORE)
    return total / level.group_size[:, None] * weight[:, None]
