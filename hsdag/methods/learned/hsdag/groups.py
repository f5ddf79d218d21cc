"""Undirected graphs, their groupings, and the groups of several groupings, equal ones once.

Legend: N nodes, E undirected edges, K nominated edges, B parses, S groups of all parses, G distinct ones, M members and
L kept edges of these.
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
    """Undirected edges ``left[e]`` < ``right[e]``, each once, with a fixed pseudo-random rank for ties."""

    num_nodes: int
    left: IntArray  # [E]
    right: IntArray  # [E]
    rank: IntArray  # [E] a permutation of 0..E-1 that has nothing to do with the graph

    @staticmethod
    def from_edges(num_nodes: int, src: IntArray, dst: IntArray) -> Topology:
        """The topology of directed edges; self-loops and repeated pairs are dropped. O(E log E)."""
        low, high = np.minimum(src, dst), np.maximum(src, dst)
        keys = np.unique((low * np.int64(max(num_nodes, 1)) + high)[low != high])
        left, right = keys // max(num_nodes, 1), keys % max(num_nodes, 1)
        return Topology(num_nodes, left, right, np.random.default_rng(0).permutation(len(keys)))

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.left)

    @cached_property
    def digests(self) -> NDArray[np.uint64]:
        """[N + E] a random number for every node, then for every edge; sums of them tell sets apart."""
        return np.random.default_rng(1).integers(2**63, size=self.num_nodes + self.num_edges, dtype=np.uint64)


@dataclass(frozen=True, eq=False)
class Parse:
    """A grouping of a graph: the edges its nodes nominated, those kept, and the groups that follow."""

    topology: Topology
    nominated: IntArray  # [K] edges, each the best of one of its ends
    kept: BoolArray  # [K]

    @cached_property
    def partition(self) -> Partition:
        """Connected components of the kept edges."""
        edges = self.nominated[self.kept]
        t = self.topology
        return Partition.from_pairs(t.num_nodes, t.left[edges], t.right[edges])


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of several parses of one graph; groups with the same members and kept edges are one."""

    nominated: torch.Tensor  # [B K] edges, one parse after another
    kept: torch.Tensor  # [B K]
    labels: IntArray  # [B, N] group, of all, of every node in every parse
    distinct: torch.Tensor  # [S] distinct group of every group
    num_distinct: int  # G
    member: torch.Tensor  # [M] nodes
    member_group: torch.Tensor  # [M] their distinct groups
    edge: torch.Tensor  # [L] kept edges
    edge_group: torch.Tensor  # [L] their distinct groups

    @staticmethod
    def of(parses: Sequence[Parse]) -> Groups:
        """The groups of parses, in their order, by a digest of 64 bits of their members and kept edges."""
        t = parses[0].topology
        num = len(parses)
        kept_edges = [parse.nominated[parse.kept] for parse in parses]
        edge = np.concatenate(kept_edges)
        first_node = np.repeat(np.arange(num) * t.num_nodes, [len(each) for each in kept_edges])
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
        """[G] nodes per distinct group."""
        return torch.bincount(self.member_group, minlength=self.num_distinct).float()

    @cached_property
    def representative(self) -> torch.Tensor:
        """[G] one node of every distinct group."""
        return self.member.new_zeros(self.num_distinct).index_copy(0, self.member_group, self.member)

    @property
    def sizes(self) -> list[int]:
        """[B] groups of every parse."""
        return [int(size) for size in np.diff(self.labels.max(axis=1), prepend=-1)]

    def sums(self, of_node: torch.Tensor) -> torch.Tensor:
        """[G, ...] sums over members of what is given for nodes [N, ...]."""
        zeros = of_node.new_zeros(self.num_distinct, *of_node.shape[1:])
        return zeros.index_add(0, self.member_group, of_node.index_select(0, self.member))
