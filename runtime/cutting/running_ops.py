"""RunningOps: what cutting needs to know of a graph, whatever the placement; made once for each graph.

Legend: N ops, R ops that run.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np

from hsdag.ir.colocation import colocate, known_ops
from hsdag.ir.graph import BoolArray, ComputationGraph, Csr, FloatArray, IntArray
from hsdag.ir.state import carried_by_repeated, repeated_ops, variable_of

JOIN_TYPES = frozenset(
    "Concat Reshape Squeeze Unsqueeze Transpose Split VariadicSplit StridedSlice Slice Pad Relu Add Convert".split()
)
"""Ops so cheap beside a transfer of their result that they may be computed once more where it is read."""


@dataclass(frozen=True, eq=False)
class RunningOps:
    """Ops that run, who reads whom among them, and how many bytes of each are read.

    Repeated ops do not run: who reads one reads what it reads.
    """

    runs: BoolArray  # [N]
    order: IntArray  # [R] in topological order
    producers: Csr  # of every op, each once, by first input port
    readers: Csr  # of every op, each once
    is_join: BoolArray  # [N] and reads an op that runs
    is_result: BoolArray  # [N] whether a Result reads it
    read_bytes: FloatArray  # [N] of those outputs that anything reads
    atom: IntArray  # [N] a number that ops share which stay in one part: those that keep a variable

    @staticmethod
    def of(graph: ComputationGraph) -> RunningOps:
        """Those of a graph, in O(N + E) the first time."""
        if graph not in _known:
            _known[graph] = _running_ops(graph)
        return _known[graph]


_known: weakref.WeakKeyDictionary[ComputationGraph, RunningOps] = weakref.WeakKeyDictionary()


def _running_ops(graph: ComputationGraph) -> RunningOps:
    n, types = graph.num_ops, np.asarray(graph.op_types)
    known = known_ops(graph)
    repeated = repeated_ops(graph, known)
    runs = ~(known | repeated) & (types != "Parameter")
    of_running = np.zeros(n, dtype=np.bool_)
    of_running[graph.edge_dst[runs[graph.edge_src]]] = True
    runs &= ~((types == "Result") & of_running)
    carried = carried_by_repeated(graph, repeated, known)
    src, dst = (np.append(of, more) for of, more in zip((graph.edge_src, graph.edge_dst), carried, strict=True))
    both = np.flatnonzero(runs[src] & runs[dst])
    _, first = np.unique(src[both] * np.int64(n) + dst[both], return_index=True)
    in_order = both[np.sort(first)]
    src, dst = src[in_order], dst[in_order]
    atom = np.arange(n) if variable_of(graph) is None else colocate(graph).sets.labels
    is_alone = np.bincount(atom[runs], minlength=n)[atom] == 1
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
        is_join=np.isin(types, list(JOIN_TYPES)) & (np.diff(producers.indptr) > 0) & is_alone,
        is_result=is_result,
        read_bytes=np.bincount(graph.edge_src[once], graph.edge_bytes[once], minlength=n).astype(np.float64),
        atom=atom,
    )
