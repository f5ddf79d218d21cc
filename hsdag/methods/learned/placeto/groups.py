"""Groups: what Placeto places, and Merge-and-Colocate, which makes them (Placeto, A.6).

Legend: U placement units, G groups, E edges, F features, D devices.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
import torch

from hsdag.ir.graph.computation_graph import BoolArray, IntArray
from hsdag.ir.graph.partition import Partition
from hsdag.methods.learned.networks import standardise
from hsdag.runtime.problem.schedule_problem import ScheduleProblem


class Groups(NamedTuple):
    """Groups of units, their graph, and what is known of them before anything is placed."""

    of_unit: torch.Tensor  # [U]
    order: torch.Tensor  # [G] in which they are visited: that of their first units in topological order
    x: torch.Tensor  # [G, F]
    source: torch.Tensor  # [E]
    target: torch.Tensor  # [E]
    reaches: torch.Tensor  # [G, G] whether a path leads from a unit of the first to one of the second
    able: torch.Tensor  # [G, D] whether a device supports all units


def groups_of(costs: ScheduleProblem, num_groups: int | None, tokens: torch.Tensor | None = None) -> Groups:
    """The groups that merging leaves, each unit by itself where ``num_groups`` is None.

    Features are the paper's, sums of times and output bytes, or means of ``tokens`` [U, F] where these are given.
    """
    num = costs.num_ops
    groups = Partition.identity(num) if num_groups is None else merge_and_colocate(costs, num_groups)
    labels = groups.labels
    narrow = np.stack([np.nanmean(costs.time_s, axis=1), costs.output_bytes], axis=1)
    of_units = narrow if tokens is None else tokens.numpy()
    x = np.zeros((groups.num_groups, of_units.shape[1]))
    np.add.at(x, labels, of_units)
    if tokens is not None:
        x /= np.bincount(labels)[:, None]
    able = np.ones((groups.num_groups, costs.num_devices), dtype=np.bool_)
    np.logical_and.at(able, labels, costs.supported)
    visited = labels[costs.topological_order]
    _, first = np.unique(visited, return_index=True)
    source, target = groups.quotient_edges(costs.edge_src, costs.edge_dst)
    return Groups(
        of_unit=torch.from_numpy(labels.copy()),
        order=torch.from_numpy(visited[np.sort(first)]),
        x=standardise(x),
        source=torch.tensor(source),
        target=torch.tensor(target),
        reaches=torch.from_numpy(_reaches(costs, groups)),
        able=torch.from_numpy(able),
    )


def merge_and_colocate(costs: ScheduleProblem, num_groups: int) -> Partition:
    """The group with the fewest output bytes joins its cheapest consumer, until ``num_groups`` are left (A.6).

    One without consumers joins its cheapest producer, one without neighbours that share a device stays. The bytes of
    a group are the sum over its units. Ties go by index.
    """
    num, able = costs.num_ops, costs.supported.copy()
    size = costs.output_bytes.copy()
    ways: list[list[set[int]]] = [[set() for _ in range(num)] for _ in range(2)]  # consumers, producers
    for u, v in zip(costs.edge_src.tolist(), costs.edge_dst.tolist(), strict=True):
        ways[0][u].add(v)
        ways[1][v].add(u)
    home, left = np.arange(num), num
    waiting = [(float(size[v]), v) for v in range(num)]
    heapq.heapify(waiting)
    while left > num_groups and waiting:
        bytes_then, v = heapq.heappop(waiting)
        if home[v] != v or bytes_then != size[v]:
            continue
        choices = [[u for u in way[v] if (able[u] & able[v]).any()] for way in ways]
        if not any(choices):
            continue
        into = min(choices[0] or choices[1], key=lambda u: (size[u], u))
        home[home == v], left = into, left - 1
        size[into] += size[v]
        able[into] &= able[v]
        for one, other in (ways, ways[::-1]):
            for u in one[v]:
                other[u].discard(v)
                if u != into:
                    other[u].add(into)
                    one[into].add(u)
        heapq.heappush(waiting, (float(size[into]), into))
    return Partition.from_labels(home)


def _reaches(costs: ScheduleProblem, groups: Partition) -> BoolArray:
    """[G, G] whether a path leads from a unit of a group to one of another group; not of a group to itself."""
    found = np.zeros((costs.num_ops, groups.num_groups), dtype=np.bool_)  # groups that lead to a unit
    producers: list[list[int]] = [[] for _ in range(costs.num_ops)]
    for u, v in zip(costs.edge_src.tolist(), costs.edge_dst.tolist(), strict=True):
        producers[v].append(u)
    for v in costs.topological_order.tolist():
        for u in producers[v]:
            found[v] |= found[u]
            found[v, groups.labels[u]] = True
    reaches = np.zeros((groups.num_groups, groups.num_groups), dtype=np.bool_)
    np.logical_or.at(reaches, groups.labels, found)
    np.fill_diagonal(reaches, val=False)
    return np.ascontiguousarray(reaches.T)


def device_of_groups(of_unit: IntArray, placement: IntArray) -> IntArray:
    """[G] the device of each group's first unit in a placement [U]."""
    _, first = np.unique(of_unit, return_index=True)
    return np.asarray(placement[first], dtype=np.int64)
