"""Undirected graphs, their groupings level by level, and the groups of several of them together, equal ones once.

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

from hsdag.ir.graph import BoolArray, IntArray, inverse_of
from hsdag.ir.partition import Partition

UintArray = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class Topology:
    """Undirected edges ``left[e]`` < ``right[e]``, each once, with a fixed pseudo-random rank for ties."""

    num_nodes: int
    left: IntArray  # [E]
    right: IntArray  # [E]
    rank: IntArray  # [E] a permutation of 0..E-1

    @staticmethod
    def from_edges(num_nodes: int, src: IntArray, dst: IntArray) -> Topology:
        """The topology of directed edges; self-loops and repeated pairs are dropped. O(E log E)."""
        low, high = np.minimum(src, dst), np.maximum(src, dst)
        keys = np.unique((low * np.int64(max(num_nodes, 1)) + high)[low != high])
        left, right = keys // max(num_nodes, 1), keys % max(num_nodes, 1)
        return Topology(num_nodes, left, right, _hash_rank(left, right))

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.left)

    def quotient(self, partition: Partition) -> Topology:
        """The topology of the groups of ``partition`` (Eq. 11)."""
        labels = partition.labels
        return Topology.from_edges(partition.num_groups, labels[self.left], labels[self.right])

    @cached_property
    def left_index(self) -> torch.Tensor:
        """[E] ``left`` as a tensor."""
        return torch.tensor(self.left)

    @cached_property
    def right_index(self) -> torch.Tensor:
        """[E] ``right`` as a tensor."""
        return torch.tensor(self.right)

    @cached_property
    def digests(self) -> UintArray:
        """[N + E] a hash for every node, then for every edge; sums of them tell sets apart."""
        return _mixed(np.arange(self.num_nodes + self.num_edges, dtype=np.uint64))

    @cached_property
    def convolution(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Edge index [2, 2E + N] and weights of D^-1/2 (A + I) D^-1/2 (Eq. 6)."""
        loops = torch.arange(self.num_nodes)
        left, right = self.left_index, self.right_index
        index = torch.stack([torch.cat([left, right, loops]), torch.cat([right, left, loops])])
        scale = torch.bincount(index[1], minlength=self.num_nodes).float().rsqrt()
        return index, scale[index[0]] * scale[index[1]]


def _hash_rank(left: IntArray, right: IntArray) -> IntArray:
    """[E] rank of every edge by a hash of its end points, so that ties follow no order."""
    with np.errstate(over="ignore"):
        hashed = _mixed(left.astype(np.uint64) * _GOLDEN + right.astype(np.uint64))
    return inverse_of(np.lexsort((right, left, hashed)))


def _mixed(x: UintArray) -> UintArray:
    """Hashes of 64-bit integers (splitmix64)."""
    with np.errstate(over="ignore"):
        x = x + _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


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
