"""Groupings of a graph, level by level, and the groups of several of them together, equal ones once.

Legend: N nodes, E undirected edges, K nominated edges, B parses, S groups of all parses, G distinct ones, M members and
L kept edges of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from hsdag.ir.graph import BoolArray, IntArray
from hsdag.ir.partition import Partition
from hsdag.learning.hsdag.topology import Topology


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
        """Groups of the last level."""
        return self.partition.num_groups

    @cached_property
    def representative(self) -> torch.Tensor:
        """[num_groups] one node of every group."""
        return torch.from_numpy(np.unique(self.partition.labels, return_index=True)[1])


@dataclass(frozen=True, eq=False)
class Groups:
    """One level of several parses that share a topology; groups with the same members and kept edges are one."""

    topology: Topology
    nominated: torch.Tensor  # [B K] edges, one parse after another
    kept: torch.Tensor  # [B K]
    labels: IntArray  # [B N] group, of all, of every node in every parse
    distinct: torch.Tensor  # [S] distinct group of every group
    num_distinct: int  # G
    member: torch.Tensor  # [M] nodes
    member_group: torch.Tensor  # [M] their distinct groups
    edge: torch.Tensor  # [L] kept edges
    edge_group: torch.Tensor  # [L] their distinct groups

    @staticmethod
    def of(levels: Sequence[Level]) -> Groups:
        """The groups of levels with one topology, by a digest of 64 bits of their members and kept edges."""
        t, num = levels[0].topology, len(levels)
        kept_edges = [level.nominated[level.kept] for level in levels]
        edge = np.concatenate(kept_edges)
        first_node = np.repeat(np.arange(num) * t.num_nodes, [len(each) for each in kept_edges])
        groups = Partition.from_pairs(num * t.num_nodes, first_node + t.left[edge], first_node + t.right[edge])
        labels, home = groups.labels, groups.labels[first_node + t.left[edge]]
        node = np.tile(np.arange(t.num_nodes), num)
        digest = np.zeros(groups.num_groups, dtype=np.uint64)
        np.add.at(digest, labels, t.digests[node])
        np.add.at(digest, home, t.digests[t.num_nodes + edge])
        _, first, distinct = np.unique(digest, return_index=True, return_inverse=True)
        is_first = np.zeros(groups.num_groups, dtype=np.bool_)
        is_first[first] = True
        of_node, of_edge = is_first[labels], is_first[home]
        return Groups(
            t,
            torch.from_numpy(np.concatenate([level.nominated for level in levels])),
            torch.from_numpy(np.concatenate([level.kept for level in levels])),
            labels,
            distinct=torch.from_numpy(distinct),
            num_distinct=len(first),
            member=torch.from_numpy(node[of_node]),
            member_group=torch.from_numpy(distinct[labels[of_node]]),
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

    def sums(self, of_node: torch.Tensor) -> torch.Tensor:
        """[G, ...] sums over members of what is given for nodes [N, ...]."""
        zeros = of_node.new_zeros(self.num_distinct, *of_node.shape[1:])
        return zeros.index_add(0, self.member_group, of_node.index_select(0, self.member))


@dataclass(frozen=True, eq=False)
class Together:
    """Parses of one graph, level by level; the nodes of all but the first level are groups of one parse each."""

    levels: tuple[Groups, ...]
    num_parses: int

    @staticmethod
    def of(parses: Sequence[Parse]) -> Together:
        """The parses, in their order."""
        first = Groups.of([parse.levels[0] for parse in parses])
        others = zip(*(parse.levels[1:] for parse in parses), strict=True)
        return Together((first, *(Groups.of([_disjoint(levels)]) for levels in others)), len(parses))

    @property
    def distinct(self) -> torch.Tensor:
        """[S] distinct group of every group of the last level, one parse after another."""
        return self.levels[-1].distinct

    @cached_property
    def labels(self) -> IntArray:
        """[B, N] group, of all in the last level, of every node in every parse."""
        labels = self.levels[0].labels
        for groups in self.levels[1:]:
            labels = groups.labels[labels]
        return labels.reshape(self.num_parses, -1)

    @property
    def sizes(self) -> list[int]:
        """[B] groups of every parse."""
        return [int(size) for size in np.diff(self.labels.max(axis=1), prepend=-1)]

    def sums(self, of_node: torch.Tensor) -> torch.Tensor:
        """[G, ...] sums over the nodes of distinct groups of the last level."""
        total = self.levels[0].sums(of_node)
        for below, groups in zip(self.levels, self.levels[1:], strict=False):
            total = groups.sums(total[below.distinct])
        return total

    def representatives(self, of_node: torch.Tensor) -> torch.Tensor:
        """[G, ...] what is given for nodes, of one node of every distinct group of the last level."""
        found = of_node[self.levels[0].representative]
        for below, groups in zip(self.levels, self.levels[1:], strict=False):
            found = found[below.distinct][groups.representative]
        return found


def _disjoint(levels: Sequence[Level]) -> Level:
    """Levels of different graphs as one level of all of them."""
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
