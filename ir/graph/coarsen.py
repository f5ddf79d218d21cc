"""Coarsening: groups of ops as the ops of a smaller computation graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, IntArray, inverse_of, topological_order
from hsdag.ir.graph.flops import COMPUTES_PRODUCTS
from hsdag.ir.graph.partition import Partition

DEFAULT_SHARE = 1 / 16
"""Largest share of a graph's FLOPs in one placement unit, unless an op alone has more."""


@dataclass(frozen=True, eq=False)
class CoarseGraph:
    """A partition of a graph's ops and its quotient as a graph of its own.

    ``partition`` maps ops of ``fine`` to groups; group g is op g of ``graph``, whose ops are in topological
    order. A group has the name of its first member, the type of the member with the most FLOPs, and the
    output shape of its last member. FLOPs and weights are sums; ``output_bytes`` counts every tensor that
    leaves the group once. Edges between two groups that carry the same tensor are one edge.
    """

    fine: ComputationGraph
    partition: Partition
    graph: ComputationGraph


def coarsen(fine: ComputationGraph, partition: Partition, edge_kept: BoolArray | None = None) -> CoarseGraph:
    """Return the quotient of ``fine`` by ``partition`` over the kept edges (default: all), in O((V + E) log E).

    Groups are renumbered in topological order. Raises ValueError when the quotient has a cycle.
    """
    kept = np.ones(fine.num_edges, dtype=np.bool_) if edge_kept is None else edge_kept
    crossing = kept & (partition.labels[fine.edge_src] != partition.labels[fine.edge_dst])
    s, d = partition.quotient_edges(fine.edge_src[crossing], fine.edge_dst[crossing])
    rank = inverse_of(topological_order(partition.num_groups, s, d))
    ordered = Partition(rank[partition.labels], partition.num_groups)
    return CoarseGraph(fine, ordered, _quotient_graph(fine, ordered, np.flatnonzero(crossing)))


def chain_partition(graph: ComputationGraph) -> Partition:
    """Group ops into the co-location chains of the HSDAG paper, App. G.

    In topological order, if v_j is the only child of v_i and v_i the only parent of v_j, both join one set;
    sets chain. Parallel edges between two ops count as one neighbour. O(V + E log E).
    """
    src, dst = Partition.identity(graph.num_ops).quotient_edges(graph.edge_src, graph.edge_dst)
    children = np.bincount(src, minlength=graph.num_ops)
    parents = np.bincount(dst, minlength=graph.num_ops)
    sole = (children[src] == 1) & (parents[dst] == 1)
    return Partition.from_pairs(graph.num_ops, src[sole], dst[sole])


def placement_units(
    fine: ComputationGraph,
    *,
    max_share: float = DEFAULT_SHARE,
    together: Iterable[Sequence[int]] = (),
    pinned: IntArray | None = None,
) -> CoarseGraph:
    """Group ops into the units that a method places: co-location sets, chained as in App. G.

    Args:
        max_share: Largest share of the graph's FLOPs in one chain, above 0. A longer chain is cut before a convolution,
            matrix product or the like, as a network without branches would otherwise be one unit. 1.0 is the paper's
            coarsening.
        together: Sets of ops that a device computes as one. They are kept in one unit with all ops between them;
            floating ops are ignored.
        pinned: [N] the device that an op must be on, negative for any. A chain is cut where it changes, and ops that
            must be on different devices are parted even if a device computes them as one.
    """
    constraints = colocate(fine)
    pinned = np.full(fine.num_ops, -1) if pinned is None else pinned
    fused = [[v for v in ops if not constraints.floating[v]] for ops in together]
    fused = [ops for ops in fused if len({int(pinned[v]) for v in ops if pinned[v] >= 0}) <= 1]
    units = coarsen(fine, constraints.joined(fine, fused), constraints.edge_kept)
    wanted = np.full(units.graph.num_ops, -1, dtype=np.int64)
    np.maximum.at(wanted, units.partition.labels, pinned)
    chains = _cut_chains(units, chain_partition(units.graph), max_share, wanted)
    return coarsen(fine, chains.refine(units.partition), constraints.edge_kept)


def _cut_chains(units: CoarseGraph, chains: Partition, max_share: float, wanted: IntArray) -> Partition:
    """Cut chains before a product where a piece would exceed ``max_share`` of all FLOPs, and where ``wanted`` changes.

    ``wanted`` [units] is the device that a unit must be on, negative for any.
    """
    graph = units.graph
    limit = max_share * float(graph.flops.sum()) if max_share < 1.0 else np.inf
    starts_work = [t in COMPUTES_PRODUCTS for t in graph.op_types]
    piece = np.zeros(graph.num_ops, dtype=np.int64)
    current, filled, last = [0] * chains.num_groups, [0.0] * chains.num_groups, [-2] * chains.num_groups
    for v in graph.topological_order.tolist():
        chain = int(chains.labels[v])
        work = float(graph.flops[v])
        is_full = starts_work[v] and filled[chain] > 0 and filled[chain] + work > limit
        if is_full or wanted[v] != last[chain]:
            current[chain] += 1
            filled[chain] = 0.0
        last[chain] = int(wanted[v])
        filled[chain] += work
        piece[v] = current[chain]
    return Partition.from_labels(np.unique((chains.labels, piece), axis=1, return_inverse=True)[1])


def _quotient_graph(fine: ComputationGraph, partition: Partition, crossing: IntArray) -> ComputationGraph:
    groups = partition.num_groups
    labels = partition.labels
    first = np.empty(groups, dtype=np.int64)
    first[labels[fine.topological_order[::-1]]] = fine.topological_order[::-1]
    last, heaviest = np.empty(groups, dtype=np.int64), np.empty(groups, dtype=np.int64)
    results_first = np.lexsort((fine.position, np.isin(fine.op_types, "Result", invert=True)))
    last[labels[results_first]] = results_first
    rising = np.lexsort((fine.position, fine.flops))
    heaviest[labels[rising]] = rising
    leaving = _one_each(fine, crossing)
    leaving_bytes = np.bincount(labels[fine.edge_src[leaving]], weights=fine.edge_bytes[leaving], minlength=groups)
    sent = _one_each(fine, crossing, labels[fine.edge_dst[crossing]])
    return ComputationGraph(
        name=fine.name,
        op_names=tuple(fine.op_names[v] for v in first),
        op_types=tuple(fine.op_types[v] for v in heaviest),
        element_types=tuple(fine.element_types[v] for v in last),
        shapes=fine.shapes[last],
        ranks=fine.ranks[last],
        output_bytes=leaving_bytes.astype(np.int64),
        weight_bytes=np.bincount(labels, weights=fine.weight_bytes, minlength=groups).astype(np.int64),
        flops=np.bincount(labels, weights=fine.flops, minlength=groups).astype(np.float64),
        edge_src=labels[fine.edge_src[sent]],
        edge_dst=labels[fine.edge_dst[sent]],
        edge_src_port=fine.edge_src_port[sent],
        edge_dst_port=fine.edge_dst_port[sent],
        edge_bytes=fine.edge_bytes[sent],
        topological_order=np.arange(groups, dtype=np.int64),
        variables=("",) * groups,
    )


def _one_each(graph: ComputationGraph, edges: IntArray, *destination: IntArray) -> IntArray:
    """Return the first of the edges [E'] that carry the same tensor (to the same destination, if given), in order."""
    columns = (graph.edge_src[edges], graph.edge_src_port[edges], *destination)
    return edges[np.sort(np.unique(np.stack(columns), axis=1, return_index=True)[1])]
