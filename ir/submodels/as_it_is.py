"""The submodels that HETERO makes of a model as it is, with affinities of its own or by HETERO's choice.

Such a model was not prepared by ``ir.prepared``: several ops read one constant. Where no op has an affinity, HETERO
asks one device after another for the ops that it runs, in the order of the devices, and each time puts the submodels
of the ops that it has got so far in the place of these ops (OpenVINO 2026.4, src/plugins/hetero/src/plugin.cpp,
``query_model_update``, and subgraph_collector.cpp, ``mask_model_subgraphs_by_ops``).

Legend: N ops of the graph, M nodes (ops, and submodels in the place of ops), E edges.
"""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph import BoolArray, ComputationGraph, IntArray, inverse_of, ranked_order
from hsdag.ir.submodels.collector import net_of
from hsdag.ir.submodels.parts import Room
from hsdag.ir.submodels.rules import split


def placed_submodels(graph: ComputationGraph, devices: IntArray) -> IntArray:
    """[N] the submodel of every op of a model whose ops all have an affinity, as ``devices`` [N]; -1 for constants."""
    joined = _joined(graph, with_results(graph, devices), _none(graph))
    return _numbered(np.where(_is_type(graph, "Constant"), -1, joined))


def automatic_submodels(graph: ComputationGraph, devices: IntArray) -> IntArray:
    """[N] the submodel of every op of a model that HETERO has distributed, as ``devices`` [N] in order of priority.

    It is -1 for constants, and for ops whose submodel gives no tensor to anything, which HETERO drops.
    """
    devices = with_results(graph, devices)
    piece, own = _none(graph), ~_is_type(graph, "Constant")
    for k in range(int(devices.max(initial=0)) + 1):
        known = np.minimum(devices, k + 1)  # the ops that are left join as if they had one device
        joined = _joined(graph, known, piece)
        piece = np.where(own & (known <= k) & (piece < 0), k * graph.num_ops + joined, piece)
    giving = piece[graph.edge_src[piece[graph.edge_src] != piece[graph.edge_dst]]]
    kept = np.isin(piece, np.concatenate((giving, piece[_is_type(graph, "Result")])))
    return _numbered(np.where(kept, piece, -1))


def with_results(graph: ComputationGraph, devices: IntArray) -> IntArray:
    """[N] the devices of ops, where a Result goes with what it reads, whatever was chosen for it."""
    found, into = devices.copy(), _is_type(graph, "Result")[graph.edge_dst]
    found[graph.edge_dst[into]] = devices[graph.edge_src[into]]
    return found


def _none(graph: ComputationGraph) -> IntArray:
    return np.full(graph.num_ops, -1, dtype=np.int64)


def _is_type(graph: ComputationGraph, op_type: str) -> BoolArray:
    return np.isin(graph.op_types, op_type)


def _numbered(labels: IntArray) -> IntArray:
    """The labels that are not negative counted from 0 on."""
    found, number = np.unique(labels, return_inverse=True)
    return np.asarray(number.reshape(-1) - int(np.sum(found < 0)), dtype=np.int64)


def _joined(graph: ComputationGraph, devices: IntArray, piece: IntArray) -> IntArray:
    """[N] a label for the submodel of every op, where the ops of a ``piece`` [N] are one node already; -1: no piece.

    A piece reads every tensor once, its constants are inside, and its Parameters are nodes of their own before it.
    """
    n, inside = graph.num_ops, piece >= 0
    node = np.where(inside, n + np.unique(piece, return_inverse=True)[1].reshape(-1), np.arange(n))
    tensor = graph.edge_src * (graph.edge_src_port.max(initial=0) + 1) + graph.edge_src_port
    src, dst = node[graph.edge_src], node[graph.edge_dst]
    crosses = (src != dst) & ~(_is_type(graph, "Constant")[graph.edge_src] & inside[graph.edge_dst])
    inputs = np.flatnonzero(inside & _is_type(graph, "Parameter"))
    edges = np.stack((src, dst, tensor))[:, crosses]
    into = edges[1] >= n
    once = np.unique(edges[:, into], axis=1)
    first = np.stack((inputs, node[inputs], inputs * 0 - 1))
    src, dst, tensor = np.concatenate((edges[:, ~into], once, first), axis=1)
    return _split(graph, devices, node, src, dst, tensor)


def _split(
    graph: ComputationGraph, devices: IntArray, node: IntArray, src: IntArray, dst: IntArray, tensor: IntArray
) -> IntArray:
    """[N] a label for the submodel of the ``node`` [N] of every op; edges [E] between nodes carry a tensor each."""
    ids = np.unique(np.concatenate((node, src)))
    place, count = np.zeros(int(ids.max(initial=0)) + 1, dtype=np.int64), len(ids)
    place[ids] = np.arange(count)
    rank, device = np.full(count, graph.num_ops), np.zeros(count, dtype=np.int64)
    np.minimum.at(rank, place[node], graph.position)
    device[place[node]] = devices
    is_input, is_result = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    alone = ids[ids < graph.num_ops]
    rank[place[alone]], device[place[alone]] = graph.position[alone], devices[alone]
    is_input[place[alone]] = np.isin(graph.op_types, ["Parameter", "Constant"])[alone]
    is_result[place[alone]] = _is_type(graph, "Result")[alone]
    src, dst = place[src], place[dst]
    order = ranked_order(count, src, dst, rank)
    new = inverse_of(order)
    ends, edge = np.stack((new[src], new[dst]), axis=1), np.arange(len(src))
    net, _ = net_of(ends, edge, tensor, count, is_input[order], is_result[order])
    room = Room.of(net)
    split(net, room, np.ascontiguousarray(device[order]))
    return np.asarray(room.parts.label[new[place[node]]], dtype=np.int64)
