"""Log-probability of an order of ops, each selected by a softmax over the candidates of its step.

Legend: B plans, N ops, K levels, P pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


def log_p_in_turn(score: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities [B, N] of the ops selected at every step, and entropies [B, N] of the distributions.

    Args:
        score: Scores of the ops, in the order in which they are selected [B, N].
        first: First step at which these ops are candidates [B, N]; the op of step t is one from there to t.

    A running sum from which selected ops are subtracted would lose all digits where scores are far apart. Instead,
    every op is added at the nodes of a binary tree that cover the steps at which it is a candidate, and a step adds up
    the nodes above it. The weights at a node are relative to its largest one, so that no sum is zero.
    """
    cover = Cover.of(first)
    value = score.flatten()[cover.op]
    num_nodes = len(score) * cover.num_nodes
    most = score.detach().min().repeat(num_nodes).scatter_reduce(0, cover.node, value.detach(), "amax")
    below = most[cover.node] - value
    weight = torch.exp(-below)
    sums = [score.new_zeros(num_nodes).scatter_add(0, cover.node, terms) for terms in (weight, weight * below)]
    most, total, lost = (of_node.reshape(len(score), -1)[:, cover.above] for of_node in (most, *sums))  # [B, N, K]
    highest = most.amax(dim=-1, keepdim=True)  # highest score of all candidates of a step
    share = torch.exp(most - highest)
    lost = (share * (lost + (highest - most) * total)).sum(dim=-1)
    total = (share * total).sum(dim=-1)
    return score - highest.squeeze(-1) - total.log(), total.log() + lost / total


class Cover(NamedTuple):
    """Fewest nodes of a binary tree over steps that cover the steps at which each op is a candidate.

    Node i is the parent of nodes 2 i and 2 i + 1; the last half of the nodes are the leaves, one for each step.
    """

    op: torch.Tensor  # [P] op of each pair of an op and one of its nodes, as an index into [B, N]
    node: torch.Tensor  # [P] node of the pair, as an index into [B, num_nodes]
    above: torch.Tensor  # [N, K] nodes above each step, on all levels at which nodes cover an op
    num_nodes: int

    @classmethod
    def of(cls, first: torch.Tensor) -> Cover:
        """Return the cover of the steps from ``first[:, t]`` to t, for every step t; ``first`` is [B, N]."""
        num_steps = first.shape[1]
        leaf, longest = 1 << num_steps.bit_length(), int((torch.arange(num_steps) - first).max()) + 1
        level = torch.arange(longest.bit_length(), dtype=torch.int32)
        step = leaf + torch.arange(num_steps, dtype=torch.int32)[:, None]
        # on each level, nodes from left to right - 1 are those below which all steps are in the range
        left, right = -((-leaf - first.int()[..., None]) >> level), (step + 1) >> level  # [B, N, K]
        pairs = []
        for end, node in ((left, left), (right, right - 1)):
            pair = ((left < right) & (end & 1).bool()).flatten().nonzero().squeeze(1)
            op = pair // len(level)
            pairs.append(torch.stack([op, node.expand_as(left).flatten()[pair] + op // num_steps * (2 * leaf)]))
        ops, nodes = torch.cat(pairs, dim=1)
        return cls(ops, nodes, step >> level, 2 * leaf)
