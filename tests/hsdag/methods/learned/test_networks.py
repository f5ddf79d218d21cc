"""Rounds of messages, against their formulas on small graphs."""

from __future__ import annotations

import torch

from hsdag.methods.learned.networks import Edges, GraphConvolution, PooledSage
from tests.hsdag.methods.learned.policies import generator


def test_graph_sage_takes_the_largest_of_what_neighbours_send() -> None:
    sage, edges = PooledSage(2, generator()), Edges.without_costs(torch.tensor([0, 1]), torch.tensor([2, 2]))
    h = torch.randn(3, 2, generator=generator())
    sent = torch.sigmoid(sage.sent(h))
    around = torch.stack([sent[2], sent[2], torch.maximum(sent[0], sent[1])])
    torch.testing.assert_close(sage(h, edges), sage.out(torch.cat([h, around], dim=1)))


def test_the_convolution_of_hsdag_normalises_by_degrees_with_a_loop_at_every_node() -> None:
    edges, h = Edges.without_costs(torch.tensor([0, 1, 1]), torch.tensor([1, 2, 3])), torch.randn(4, 2)
    convolution = GraphConvolution(2, generator())
    adjacency = torch.eye(4)
    adjacency[edges.both[0], edges.both[1]] = 1.0
    scale = adjacency.sum(dim=1).rsqrt().diag()
    torch.testing.assert_close(convolution(h, edges), convolution.out(scale @ adjacency @ scale @ h))
