"""Partitions of ops into groups, and their quotient graphs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hsdag.ir.graph.computation_graph import Csr, IntArray, inverse_of, topological_order


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
        """Build a partition from any integer labels [N]; groups are numbered in the order of their first items."""
        _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
        rank = inverse_of(np.argsort(first, kind="stable"))
        return Partition(rank[inverse.reshape(-1)].astype(np.int64), len(first))

    @staticmethod
    def from_pairs(num_items: int, left: IntArray, right: IntArray) -> Partition:
        """Return the connected components of the undirected pairs ``left[i]`` - ``right[i]``, in near-linear time.

        Every component is a tree of links to smaller items; roots are joined until each component has one.
        """
        links = np.arange(num_items, dtype=np.int64)
        joined = None
        while joined is None or (links != joined).any():
            joined = links.copy()
            np.minimum.at(links, joined[left], joined[right])
            np.minimum.at(links, joined[right], joined[left])
            while (links != links[links]).any():
                links = links[links]
        first, labels = np.unique(links, return_inverse=True)
        return Partition(labels.reshape(-1).astype(np.int64), len(first))

    @staticmethod
    def identity(num_items: int) -> Partition:
        """Return the partition with every item in a group of its own."""
        return Partition(np.arange(num_items, dtype=np.int64), num_items)

    @cached_property
    def members(self) -> Csr:
        """Return the items of every group, ascending: ``partition.members.of(g)``."""
        return Csr.build(self.num_groups, self.labels, np.arange(len(self.labels), dtype=np.int64))

    def refine(self, fine: Partition) -> Partition:
        """Compose the maps: from the items of ``fine`` to this partition's groups of its groups.

        Raises ValueError if this partition has another number of items than ``fine`` has groups.
        """
        if fine.num_groups != len(self.labels):
            raise ValueError(f"cannot compose: {fine.num_groups} fine groups, but {len(self.labels)} items here")
        return Partition(self.labels[fine.labels], self.num_groups)

    def cycles(self, src: IntArray, dst: IntArray) -> IntArray:
        """Return [G] a number per group, the same for groups on a common cycle of the quotient graph."""
        quotient = self.quotient_edges(src, dst)
        with suppress(ValueError):
            topological_order(self.num_groups, *quotient)
            return np.arange(self.num_groups)
        from scipy.sparse import coo_array  # imported late: it loads slowly, and hardly any quotient has a cycle
        from scipy.sparse.csgraph import connected_components

        matrix = coo_array((np.ones(len(quotient[0]), dtype=np.int8), quotient), shape=(self.num_groups,) * 2)
        return connected_components(matrix, directed=True, connection="strong")[1].astype(np.int64)

    def quotient_edges(self, src: IntArray, dst: IntArray) -> tuple[IntArray, IntArray]:
        """Return the distinct edges between different groups, sorted by (source, destination)."""
        s, d = self.labels[src], self.labels[dst]
        keep = s != d
        return np.divmod(np.unique(s[keep] * np.int64(self.num_groups) + d[keep]), self.num_groups)
