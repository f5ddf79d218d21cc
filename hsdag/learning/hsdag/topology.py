"""Topology: a graph as networks see it, undirected, without parallel edges. Legend: N nodes, E edges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.ir.graph import IntArray, inverse_of
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
