"""RunningOps: what cutting needs to know of a graph, whatever the placement; made once for each graph.

Legend: N ops, R ops that run.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np

from hsdag.ir.colocation import floating_ops
from hsdag.ir.graph import BoolArray, ComputationGraph, Csr, FloatArray, IntArray

JOIN_TYPES = frozenset(
    "Concat Reshape Squeeze Unsqueeze Transpose Split VariadicSplit StridedSlice Slice Pad Relu Add Convert".split()
)
"""Ops so cheap beside a transfer of their result that they may be computed once more where it is read."""


@dataclass(frozen=True, eq=False)
class RunningOps:
    """Ops that run, who reads whom among them, and how many bytes of each are read."""

    runs: BoolArray  # [N]
    order: IntArray  # [R] in topological order
    producers: Csr  # of every op, each once, by first input port
    readers: Csr  # of every op, each once
    is_join: BoolArray  # [N] and reads an op that runs
    is_result: BoolArray  # [N] whether a Result reads it
    read_bytes: FloatArray  # [N] of those outputs that anything reads

    @staticmethod
    def of(graph: ComputationGraph) -> RunningOps:
        """Those of a graph, in O(N + E) the first time."""
        if graph not in _known:
            _known[graph] = _running_ops(graph)
        return _known[graph]


_known: weakref.WeakKeyDictionary[ComputationGraph, RunningOps] = weakref.WeakKeyDictionary()


def _running_ops(graph: ComputationGraph) -> RunningOps:
    n, types = graph.num_ops, np.asarray(graph.op_types)
    runs = ~floating_ops(graph) & (types != "Parameter")
    of_running = np.zeros(n, dtype=np.bool_)
    of_running[graph.edge_dst[runs[graph.edge_src]]] = True
    runs &= ~((types == "Result") & of_running)
    both = np.flatnonzero(runs[graph.edge_src] & runs[graph.edge_dst])
    _, first = np.unique(graph.edge_src[both] * np.int64(n) + graph.edge_dst[both], return_index=True)
    in_order = np.sort(first)
    src, dst = graph.edge_src[both[in_order]], graph.edge_dst[both[in_order]]
    producers = Csr.build(n, dst, src)
    to_result = types[graph.edge_dst] == "Result"
    is_result = np.zeros(n, dtype=np.bool_)
    is_result[graph.edge_src[to_result]] = True
    _, once = np.unique(np.stack([graph.edge_src, graph.edge_src_port]), axis=1, return_index=True)
    return RunningOps(
        runs=runs,
        order=graph.topological_order[runs[graph.topological_order]],
        producers=producers,
        readers=Csr.build(n, src, dst),
        is_join=np.isin(types, list(JOIN_TYPES)) & (np.diff(producers.indptr) > 0),
        is_result=is_result,
        read_bytes=np.bincount(graph.edge_src[once], graph.edge_bytes[once], minlength=n).astype(np.float64),
    )
