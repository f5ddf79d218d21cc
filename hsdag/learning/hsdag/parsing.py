"""Graph parsing network: edge scores, groups, pooled embeddings (paper §2.4, Alg. 2).

Legend: N nodes, E undirected edges, K nominated edges, B parses, G distinct groups of them, H hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from hsdag.ir.graph import BoolArray, FloatArray, IntArray, inverse_of
from hsdag.learning.hsdag.config import HsdagConfig
from hsdag.learning.hsdag.groups import Groups, Parse, Topology
from hsdag.learning.networks import Mlp

NEUTRAL_SCORE = 0.5  # sigmoid(0), the untrained score


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


def parse_of(topology: Topology, nominated: IntArray, scores: FloatArray, kept: BoolArray) -> Parse:
    """Groups from edge scores [E] and which of the nominated edges [K] are kept.

    A departure from the paper: where the kept edges would join a connected graph into one group, the weakest
    of them is dropped unless its score exceeds 0.5. One group, hence one device, has to be learned.
    """
    if topology.num_nodes > 1 and int(kept.sum()) == topology.num_nodes - 1:  # the forest is a tree
        weakest = np.lexsort((topology.rank[nominated], scores[nominated]))[0]
        if scores[nominated[weakest]] <= NEUTRAL_SCORE:
            kept = kept & (np.arange(len(kept)) != weakest)
    return Parse(topology, nominated, kept)


class ParsingNetwork(nn.Module):
    """Edge scores sigmoid(MLP(z_u * z_v)) (Eq. 7) and what follows from them; untrained, all scores are 0.5."""

    def __init__(self, config: HsdagConfig, generator: torch.Generator) -> None:
        super().__init__()
        self._sampled, self._range, self._bias = config.sampled_parsing, config.score_range, config.score_bias
        widths = [config.hidden] * config.parsing_layers + [1]
        self.edge_mlp = Mlp(widths, generator, zero_output=True)

    def score_logits(self, z: torch.Tensor, topology: Topology) -> torch.Tensor:
        """[E] logits of the edge scores for embeddings [N, H]."""
        product = z.index_select(0, topology.left_index) * z.index_select(0, topology.right_index)
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
        scores = np.asarray(torch.sigmoid(self.score_logits(z, topology)).double().numpy())
        nominated = nominate(topology, scores)
        kept = self._kept(scores[nominated], count, generator)
        if devices is not None:
            homes = np.stack(devices)
            kept = kept & (homes[:, topology.left[nominated]] == homes[:, topology.right[nominated]])
        return [parse_of(topology, nominated, scores, each) for each in kept]

    def _kept(self, scores: FloatArray, count: int, generator: torch.Generator | None) -> BoolArray:
        """[count, K] which nominated edges of scores [K] are kept."""
        if not self._sampled:
            return np.ones((count, len(scores)), dtype=np.bool_)
        if generator is None:
            return np.broadcast_to(scores >= NEUTRAL_SCORE, (count, len(scores)))
        return torch.rand((count, len(scores)), generator=generator, dtype=torch.float64).numpy() < scores

    def embed(
        self, z: torch.Tensor, groups: Groups, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Pooled embeddings [G, H] of distinct groups, by the score logits [E] of edges; where parsings are sampled,
        log-probabilities [B K] of the nominated edges' fates and their entropies [B K], else none of either.
        """
        log_p = entropy = z.new_zeros(0)
        if self._sampled:
            fates = nn.functional.logsigmoid(torch.cat([-logits, logits]))
            log_p = fates.gather(0, groups.nominated + len(logits) * groups.kept)
            entropy = nn.functional.softplus(logits) - logits * torch.sigmoid(logits)
            entropy = entropy.gather(0, groups.nominated)
        return pool(z, torch.sigmoid(logits), groups), log_p, entropy


def pool(z: torch.Tensor, scores: torch.Tensor, groups: Groups) -> torch.Tensor:
    """[G, H] mean embedding of every distinct group times the mean score of its kept edges (0.5 where it has none)."""
    score = z.new_zeros(groups.num_distinct).index_add(0, groups.edge_group, scores.gather(0, groups.edge))
    count = groups.size - 1  # nominated edges form a forest, and groups are its trees
    weight = torch.where(count > 0, score / count.clamp(min=1), NEUTRAL_SCORE)
    return groups.sums(z) * (weight / groups.size)[:, None]
