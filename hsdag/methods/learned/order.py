"""The order in which ops are selected: its log-probability, whatever candidates there were at every step.

Legend: B plans, N ops, K levels, P pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


def log_p_in_turn(score: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, N] log-probabilities of the ops selected at every step, by their scores [B, N], and entropies [B, N].

    The op that step t selects is a candidate from step ``first[:, t]`` to t.

    Nothing is subtracted from a sum, which would have no digits left where scores are far apart: every op counts at the
    nodes of a tree that cover its steps, and a step adds up the nodes above it. The weights of a node are relative to
    its largest one, so that no sum is zero.
    """
    cover = Cover.of(first)
    value = score.flatten()[cover.op]
    num_nodes = len(score) * cover.num_nodes
    most = score.detach().min().repeat(num_nodes).scatter_reduce(0, cover.node, value.detach(), "amax")
    below = most[cover.node] - value
    weight = torch.exp(-below)
    sums = [score.new_zeros(num_nodes).scatter_add(0, cover.node, each) for each in (weight, weight * below)]
    most, total, lost = (each.reshape(len(score), -1)[:, cover.above] for each in (most, *sums))  # [B, N, K]
    highest = most.amax(dim=-1, keepdim=True)  # of all candidates
    share = torch.exp(most - highest)
    lost = (share * (lost + (highest - most) * total)).sum(dim=-1)
    total = (share * total).sum(dim=-1)
    return score - highest.squeeze(-1) - total.log(), total.log() + lost / total


class Cover(NamedTuple):
    """The nodes that cover the steps of every op: of a binary tree over the steps, the fewest.

    Node i is above nodes 2 i and 2 i + 1; the last half are the steps.
    """

    op: torch.Tensor  # [P] of a pair of an op and one of its nodes: where it is in [B, N],
    node: torch.Tensor  # [P] and where the node is in [B, num_nodes]
    above: torch.Tensor  # [N, K] the nodes above each step that cover anything
    num_nodes: int

    @classmethod
    def of(cls, first: torch.Tensor) -> Cover:
        """The cover of steps ``first`` [B, N] to t for every step t."""
        num_steps = first.shape[1]
        leaf, longest = 1 << num_steps.bit_length(), int((torch.arange(num_steps) - first).max()) + 1
        level = torch.arange(longest.bit_length(), dtype=torch.int32)
        step = leaf + torch.arange(num_steps, dtype=torch.int32)[:, None]
        left, right = -((-leaf - first.int()[..., None]) >> level), (step + 1) >> level  # [B, N, K] inside these
        pairs = []
        for end, node in ((left, left), (right, right - 1)):
            found = ((left < right) & (end & 1).bool()).flatten().nonzero().squeeze(1)
            op = found // len(level)
            pairs.append(torch.stack([op, node.expand_as(left).flatten()[found] + op // num_steps * (2 * leaf)]))
        ops, nodes = torch.cat(pairs, dim=1)
        return cls(ops, nodes, step >> level, 2 * leaf)
