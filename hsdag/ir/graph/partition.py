"""Partition: a grouping of ops and its quotient graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hsdag.ir.graph.computation_graph import Csr, IntArray, inverse_of


@dataclass(frozen=True, eq=False)
class Partition:
    """A map from items (ops, or the groups of a finer partition) to groups 0..num_groups-1.

    Every group holds at least one item. Raises ValueError otherwise.
    """

    labels: IntArray  # [N] group of each item
    num_groups: int

    def __post_init__(self) -> None:
        if len(self.labels) and (self.labels.min() < 0 or self.labels.max() >= self.num_groups):
            raise ValueError("a label lies outside 0..num_groups-1")
        if self.num_groups > len(self.labels) or not np.bincount(self.labels, minlength=self.num_groups).all():
            raise ValueError("a group is empty")
        self.labels.flags.writeable = False

    @staticmethod
    def from_labels(labels: IntArray) -> Partition:
        """Groups numbered by the first item that belongs to them; labels may be any integers."""
        _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
        rank = inverse_of(np.argsort(first, kind="stable"))
        return Partition(rank[inverse.reshape(-1)].astype(np.int64), len(first))

    @staticmethod
    def from_pairs(num_items: int, left: IntArray, right: IntArray) -> Partition:
        """Connected components of the undirected pairs ``left[i]`` - ``right[i]``, in near-linear time."""
        num_groups, labels = _components(num_items, left, right, directed=False)
        first = np.full(num_groups, num_items)
        np.minimum.at(first, labels, np.arange(num_items))
        return Partition(inverse_of(np.argsort(first))[labels], num_groups)

    @staticmethod
    def identity(num_items: int) -> Partition:
        """Every item its own group."""
        return Partition(np.arange(num_items, dtype=np.int64), num_items)

    @property
    def num_items(self) -> int:
        """Number of items that are grouped."""
        return len(self.labels)

    @cached_property
    def members(self) -> Csr:
        """Items of every group, ascending: ``partition.members.of(g)``."""
        items = np.arange(self.num_items, dtype=np.int64)
        return Csr.build(self.num_groups, self.labels, items)

    def refine(self, fine: Partition) -> Partition:
        """The map item -> group of this partition, where this one groups the groups of ``fine``."""
        if fine.num_groups != self.num_items:
            raise ValueError(f"cannot compose: {fine.num_groups} fine groups, but {self.num_items} items here")
        return Partition(self.labels[fine.labels], self.num_groups)

    def cycles(self, src: IntArray, dst: IntArray) -> IntArray:
        """[G] a number that groups share where they are on a common cycle of the quotient graph."""
        return _components(self.num_groups, *self.quotient_edges(src, dst), directed=True)[1]

    def quotient_edges(self, src: IntArray, dst: IntArray) -> tuple[IntArray, IntArray]:
        """Distinct edges between different groups, sorted by (source, destination)."""
        s, d = self.labels[src], self.labels[dst]
        keep = s != d
        keys = np.unique(s[keep] * np.int64(self.num_groups) + d[keep])
        return keys // max(self.num_groups, 1), keys % max(self.num_groups, 1)


def _components(num: int, src: IntArray, dst: IntArray, *, directed: bool) -> tuple[int, IntArray]:
    """How many components a graph has, strong ones of a directed graph, and the number [N] of each node's."""
    from scipy.sparse import coo_array  # not at the top: it loads slowly, and the measuring process needs none
    from scipy.sparse.csgraph import connected_components

    matrix = coo_array((np.ones(len(src), dtype=np.int8), (src, dst)), shape=(num, num))
    count, labels = connected_components(matrix, directed=directed, connection="strong")
    return count, labels.astype(np.int64)
