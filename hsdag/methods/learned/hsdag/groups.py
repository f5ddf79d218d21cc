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

from hsdag.ir.graph.computation_graph import BoolArray, IntArray, inverse_of
from hsdag.ir.graph.partition import Partition

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

    @cached_property
    def labels(self) -> torch.Tensor:
        """[N] group of every node."""
        return torch.tensor(self.partition.labels)

    @property
    def num_groups(self) -> int:
        """Connected components."""
        return self.partition.num_groups

    @cached_property
    def representative(self) -> torch.Tensor:
        """[num_groups] one node of every group."""
        return torch.from_numpy(np.unique(self.partition.labels, return_index=True)[1])


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of several parses of one graph; groups with the same members and kept edges are one."""

    topology: Topology
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
        t, num = parses[0].topology, len(parses)
        kept_edges = [parse.nominated[parse.kept] for parse in parses]
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
            torch.from_numpy(np.concatenate([parse.nominated for parse in parses])),
            torch.from_numpy(np.concatenate([parse.kept for parse in parses])),
            labels.reshape(num, -1),
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

    @property
    def sizes(self) -> list[int]:
        """[B] groups of every parse."""
        return [int(size) for size in np.diff(self.labels.max(axis=1), prepend=-1)]

    def sums(self, of_node: torch.Tensor) -> torch.Tensor:
        """[G, ...] sums over members of what is given for nodes [N, ...]."""
        zeros = of_node.new_zeros(self.num_distinct, *of_node.shape[1:])
        return zeros.index_add(0, self.member_group, of_node.index_select(0, self.member))
