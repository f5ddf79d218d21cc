"""Undirected graphs, their parses into groups, and the distinct groups of several parses.

Legend: N nodes, E undirected edges, K nominated edges, B parses, S groups of all parses, G distinct ones, M members of
distinct groups, L kept edges of distinct groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.ir.graph.computation_graph import BoolArray, IntArray
from hsdag.ir.graph.partition import Partition


@dataclass(frozen=True, eq=False)
class Topology:
    """Undirected graph: edges ``left[e]`` < ``right[e]``, each once, with fixed pseudo-random ranks that break ties."""

    num_nodes: int
    left: IntArray  # [E] smaller node of each edge
    right: IntArray  # [E] larger node of each edge
    rank: IntArray  # [E] permutation of 0 to E - 1, independent of the graph

    @staticmethod
    def from_edges(num_nodes: int, src: IntArray, dst: IntArray) -> Topology:
        """Return the topology of directed edges, without self-loops and repeated pairs, in O(E log E)."""
        left, right = Partition.identity(num_nodes).quotient_edges(np.minimum(src, dst), np.maximum(src, dst))
        return Topology(num_nodes, left, right, np.random.default_rng(0).permutation(len(left)))

    @cached_property
    def digests(self) -> NDArray[np.uint64]:
        """Return random numbers [N + E], one for each node and then each edge; their sums distinguish sets of these."""
        return np.random.default_rng(1).integers(2**63, size=self.num_nodes + len(self.left), dtype=np.uint64)


@dataclass(frozen=True, eq=False)
class Parse:
    """Parse of a graph into groups, by the edges that its nodes nominate and those of them that are kept."""

    topology: Topology
    nominated: IntArray  # [K] edges, each with the highest score of those at one of its ends
    kept: BoolArray  # [K] whether the edge is kept

    @cached_property
    def partition(self) -> Partition:
        """Return the groups: connected components of the kept edges."""
        edges = self.nominated[self.kept]
        t = self.topology
        return Partition.from_pairs(t.num_nodes, t.left[edges], t.right[edges])


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of several parses of one graph; groups with the same members and kept edges are one distinct group."""

    nominated: torch.Tensor  # [B K] edges, one parse after another
    kept: torch.Tensor  # [B K] whether the edge is kept
    labels: IntArray  # [B, N] group of each node in each parse, 0 to S - 1
    distinct: torch.Tensor  # [S] distinct group of each group
    num_distinct: int  # G, number of distinct groups
    member: torch.Tensor  # [M] nodes of distinct groups
    member_group: torch.Tensor  # [M] their distinct groups
    edge: torch.Tensor  # [L] kept edges of distinct groups
    edge_group: torch.Tensor  # [L] their distinct groups

    @staticmethod
    def of(parses: Sequence[Parse]) -> Groups:
        """Return the groups of parses, in their order; 64-bit digests of members and kept edges identify equal ones."""
        t = parses[0].topology
        num = len(parses)
        kept_edges = [parse.nominated[parse.kept] for parse in parses]
        edge = np.concatenate(kept_edges)
        first_node = np.repeat(np.arange(num) * t.num_nodes, [len(edges) for edges in kept_edges])
        groups = Partition.from_pairs(num * t.num_nodes, first_node + t.left[edge], first_node + t.right[edge])
        home = groups.labels[first_node + t.left[edge]]
        node = np.tile(np.arange(t.num_nodes), num)
        digest = np.zeros(groups.num_groups, dtype=np.uint64)
        np.add.at(digest, groups.labels, t.digests[node])
        np.add.at(digest, home, t.digests[t.num_nodes + edge])
        _, first, distinct = np.unique(digest, return_index=True, return_inverse=True)
        is_first = np.zeros(groups.num_groups, dtype=np.bool_)
        is_first[first] = True
        of_node, of_edge = is_first[groups.labels], is_first[home]
        return Groups(
            torch.from_numpy(np.concatenate([parse.nominated for parse in parses])),
            torch.from_numpy(np.concatenate([parse.kept for parse in parses])),
            groups.labels.reshape(num, -1),
            distinct=torch.from_numpy(distinct),
            num_distinct=len(first),
            member=torch.from_numpy(node[of_node]),
            member_group=torch.from_numpy(distinct[groups.labels[of_node]]),
            edge=torch.from_numpy(edge[of_edge]),
            edge_group=torch.from_numpy(distinct[home[of_edge]]),
        )

    @cached_property
    def size(self) -> torch.Tensor:
        """Return the number of nodes [G] of each distinct group."""
        return torch.bincount(self.member_group, minlength=self.num_distinct).float()

    @cached_property
    def representative(self) -> torch.Tensor:
        """Return one node [G] of each distinct group."""
        return self.member.new_zeros(self.num_distinct).index_copy(0, self.member_group, self.member)

    def sums(self, of_node: torch.Tensor) -> torch.Tensor:
        """Return the sums [G, ...] of values of nodes [N, ...] over the members of each distinct group."""
        zeros = of_node.new_zeros(self.num_distinct, *of_node.shape[1:])
        return zeros.index_add(0, self.member_group, of_node.index_select(0, self.member))
