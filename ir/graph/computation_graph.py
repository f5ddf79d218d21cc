"""ComputationGraph: a neural network as an immutable DAG of ops in struct-of-arrays form.

Legend: N ops, E edges (one per input port), R largest rank.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

R = TypeVar("R")


@dataclass(frozen=True)
class Csr:
    """Neighbour lists: those of op v are ``indices[indptr[v]:indptr[v + 1]]``.

    ``edges`` has, for each neighbour, the index of the edge that leads to it. Neighbours are in edge order.
    """

    indptr: IntArray
    indices: IntArray
    edges: IntArray

    @staticmethod
    def build(num_ops: int, tail: IntArray, head: IntArray) -> Csr:
        """Build neighbour lists of ``tail`` -> ``head`` in O(N + E), neighbours in edge order."""
        order = np.argsort(tail, kind="stable").astype(np.int64)
        indptr = np.zeros(num_ops + 1, dtype=np.int64)
        np.cumsum(np.bincount(tail, minlength=num_ops), out=indptr[1:])
        return Csr(indptr, head[order], order)

    def of(self, v: int) -> IntArray:
        """Return the neighbours of op ``v``, repeated where several edges lead to the same op."""
        return self.indices[self.indptr[v] : self.indptr[v + 1]]


def inverse_of(order: IntArray) -> IntArray:
    """Return [N] the place of each item in ``order`` [N], a permutation of them."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place


def _empty() -> BoolArray:
    return np.zeros(0, dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class ComputationGraph:
    """An immutable DAG of ops.

    Op ``v`` is an integer; ``op_names[v]`` is for people, ``canonical_names[v]`` for files. Shapes are those
    of an op's first output, padded with zeros to the largest rank; ``output_bytes`` sums over all outputs,
    ``edge_bytes`` is the size of the one tensor that the edge carries. By default no size depends on the data, and
    only op types that draw random numbers give different outputs for the same inputs.

    Raises ValueError when the arrays disagree in length, a name occurs twice, an edge leaves the graph,
    or ``topological_order`` is not one.
    """

    name: str
    op_names: tuple[str, ...]
    op_types: tuple[str, ...]
    element_types: tuple[str, ...]
    shapes: IntArray  # [N, R] shape of the first output, zero-padded
    ranks: IntArray  # [N]
    output_bytes: IntArray  # [N]
    weight_bytes: IntArray  # [N] bytes of constants held by the op itself
    flops: FloatArray  # [N] estimate
    edge_src: IntArray  # [E]
    edge_dst: IntArray  # [E]
    edge_src_port: IntArray  # [E]
    edge_dst_port: IntArray  # [E]
    edge_bytes: IntArray  # [E]
    topological_order: IntArray  # [N] op indices, producers first
    variables: tuple[str, ...]  # [N] variable id of ReadValue and Assign, else ""
    is_dynamic: BoolArray = field(default_factory=_empty)  # [N] whether a size of an output depends on the data
    is_function: BoolArray = field(default_factory=_empty)  # [N] False: outputs differ for the same inputs
    canonical_names: tuple[str, ...] = ()  # [N] equal at every read of the model; op names by default

    def __post_init__(self) -> None:
        n, e = self.num_ops, self.num_edges
        defaults = {
            "canonical_names": self.op_names,
            "is_dynamic": np.zeros(n, dtype=np.bool_),
            "is_function": np.ones(n, dtype=np.bool_),
        }
        for name, column in defaults.items():
            if not len(getattr(self, name)):
                object.__setattr__(self, name, column)
        columns = (self.op_types, self.element_types, self.shapes, self.ranks, self.output_bytes, self.weight_bytes)
        more = (self.flops, self.topological_order, self.variables, *(getattr(self, name) for name in defaults))
        if any(len(column) != n for column in (*columns, *more)):
            raise ValueError(f"every op column of graph {self.name!r} needs {n} entries")
        if any(len(column) != e for column in (self.edge_dst, self.edge_src_port, self.edge_dst_port, self.edge_bytes)):
            raise ValueError(f"every edge column of graph {self.name!r} needs {e} entries")
        if len(set(self.op_names)) != n:
            raise ValueError(f"op names of graph {self.name!r} are not unique")
        if e and (
            min(self.edge_src.min(), self.edge_dst.min()) < 0 or max(self.edge_src.max(), self.edge_dst.max()) >= n
        ):
            raise ValueError(f"an edge of graph {self.name!r} leaves the graph")
        if not np.array_equal(np.sort(self.topological_order), np.arange(n)):
            raise ValueError(f"the topological order of graph {self.name!r} is not a permutation of its ops")
        if np.any(self.position[self.edge_src] >= self.position[self.edge_dst]):
            raise ValueError(f"the topological order of graph {self.name!r} puts a consumer before its producer")
        for array in vars(self).values():
            if isinstance(array, np.ndarray):
                array.flags.writeable = False

    @property
    def num_ops(self) -> int:
        """Return |V|."""
        return len(self.op_names)

    @property
    def num_edges(self) -> int:
        """Return |E|, one edge per connected input port."""
        return len(self.edge_src)

    @property
    def mean_degree(self) -> float:
        """Return |E| / |V|, as in the HSDAG paper's Table 1."""
        return self.num_edges / self.num_ops if self.num_ops else 0.0

    @cached_property
    def position(self) -> IntArray:
        """Return [N] the place of each op in the topological order, counted from 0."""
        return inverse_of(self.topological_order)

    @cached_property
    def successors(self) -> Csr:
        """Return the consumers of every op."""
        return Csr.build(self.num_ops, self.edge_src, self.edge_dst)

    @cached_property
    def predecessors(self) -> Csr:
        """Return the producers of every op, in the order of its input ports."""
        return Csr.build(self.num_ops, self.edge_dst, self.edge_src)

    @cached_property
    def index_of(self) -> dict[str, int]:
        """Return the index of each op by its name."""
        return {name: v for v, name in enumerate(self.op_names)}

    def shape_of(self, v: int) -> tuple[int, ...]:
        """Return the shape of op ``v``'s first output."""
        return tuple(int(d) for d in self.shapes[v, : self.ranks[v]])


def fact_of_graph(compute: Callable[[ComputationGraph], R]) -> Callable[[ComputationGraph], R]:
    """Make a function of a graph alone compute its value once; the graph keeps it, and an array becomes read-only.

    It is what ``functools.cached_property`` is to a class, for functions of modules that the graph's does not know. A
    changed copy of a graph (``replace``) has facts of its own.
    """
    key = f"{compute.__module__}.{compute.__qualname__}"

    @wraps(compute)
    def fact(graph: ComputationGraph) -> R:
        facts = vars(graph)
        if key not in facts:
            value = compute(graph)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            facts[key] = value
        stored: R = facts[key]
        return stored

    return fact


def padded(shapes: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Return [N, R] shapes padded with zeros to the largest rank, and their ranks [N]."""
    ranks = np.asarray([len(shape) for shape in shapes], dtype=np.int64)
    table = np.zeros((len(shapes), int(ranks.max(initial=0))), dtype=np.int64)
    for v, shape in enumerate(shapes):
        table[v, : len(shape)] = shape
    return table, ranks


def graph_from_edges(
    op_types: Sequence[str],
    edges: Sequence[tuple[int, int]],
    *,
    name: str = "graph",
    op_names: Sequence[str] | None = None,
    shapes: Sequence[tuple[int, ...]] | None = None,
    output_bytes: Sequence[int] | None = None,
    flops: Sequence[float] | None = None,
) -> ComputationGraph:
    """Build a graph from plain lists, for synthetic workloads and tests.

    Shapes default to ``(1,)``, ``output_bytes`` to four bytes per element of the shape; input ports are numbered
    in edge order. Raises ValueError when the edges form a cycle.
    """
    n = len(op_types)
    shape_list = list(shapes) if shapes is not None else [(1,)] * n
    table, ranks = padded(shape_list)
    pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    src, dst = pairs[:, 0].copy(), pairs[:, 1].copy()
    sizes = output_bytes if output_bytes is not None else [4 * int(np.prod(s, dtype=np.int64)) for s in shape_list]
    size_array = np.asarray(sizes, dtype=np.int64)
    readers = Csr.build(n, dst, src)
    ports = np.empty(len(dst), dtype=np.int64)
    ports[readers.edges] = np.arange(len(dst)) - readers.indptr[dst[readers.edges]]
    return ComputationGraph(
        name=name,
        op_names=tuple(op_names) if op_names is not None else tuple(f"op{v}" for v in range(n)),
        op_types=tuple(op_types),
        element_types=("f32",) * n,
        shapes=table,
        ranks=ranks,
        output_bytes=size_array,
        weight_bytes=np.zeros(n, dtype=np.int64),
        flops=np.asarray(flops if flops is not None else np.zeros(n), dtype=np.float64),
        edge_src=src,
        edge_dst=dst,
        edge_src_port=np.zeros(len(src), dtype=np.int64),
        edge_dst_port=ports,
        edge_bytes=size_array[src],
        topological_order=topological_order(n, src, dst),
        variables=("",) * n,
    )


def from_networkx(graph: Any, name: str = "graph") -> ComputationGraph:
    """Build a graph from a directed acyclic ``networkx.DiGraph``: each node is an op, named as its key in text.

    Args:
        graph: Its nodes may have the attributes ``op_type`` ("Op" by default), ``shape`` (``(1,)``), ``output_bytes``
            (four for each element of the shape), ``weight_bytes`` (0) and ``flops`` (0). An edge may have ``bytes``,
            the bytes sent along it, by default all output bytes of its source.

    Raises ValueError for a graph that has a cycle or is not directed, and for two nodes of one name.

    >>> import hsdag, networkx
    >>> graph = hsdag.from_networkx(networkx.DiGraph([("a", "b"), ("b", "c")]))
    >>> graph.op_names, graph.num_edges
    (('a', 'b', 'c'), 2)
    """
    if not graph.is_directed():
        raise ValueError("the graph has to be directed: its edges go from an op to those that read its result")
    names = [str(node) for node in graph.nodes]
    if len({*names}) < len(names):
        raise ValueError("two nodes have the same name as text")
    index = {node: v for v, node in enumerate(graph.nodes)}
    nodes = list(graph.nodes.values())
    shapes = [tuple(node.get("shape", (1,))) for node in nodes]
    sizes = [
        node.get("output_bytes", 4 * int(np.prod(shape, dtype=np.int64)))
        for node, shape in zip(nodes, shapes, strict=True)
    ]
    sent = list(graph.edges(data="bytes"))
    made = graph_from_edges(
        [str(node.get("op_type", "Op")) for node in nodes],
        [(index[u], index[v]) for u, v, _ in sent],
        name=name,
        op_names=names,
        shapes=shapes,
        output_bytes=sizes,
        flops=[float(node.get("flops", 0.0)) for node in nodes],
    )
    return replace(
        made,
        weight_bytes=np.array([node.get("weight_bytes", 0) for node in nodes], dtype=np.int64),
        edge_bytes=np.array([sizes[index[u]] if size is None else size for u, _, size in sent], dtype=np.int64),
    )


def topological_order(num_ops: int, src: IntArray, dst: IntArray) -> IntArray:
    """Return [N] a topological order of the ops by Kahn's algorithm, first come first served, in O(N + E).

    Raises ValueError when the edges form a cycle.
    """
    successors = Csr.build(num_ops, src, dst)
    indptr, indices = successors.indptr.tolist(), successors.indices.tolist()
    waiting = np.bincount(dst, minlength=num_ops).tolist()
    order = [v for v in range(num_ops) if waiting[v] == 0]
    for v in order:  # the list grows while it is read
        for u in indices[indptr[v] : indptr[v + 1]]:
            waiting[u] -= 1
            if waiting[u] == 0:
                order.append(u)
    if len(order) != num_ops:
        raise ValueError(f"{num_ops - len(order)} ops lie on or behind a cycle")
    return np.asarray(order, dtype=np.int64)


def ranked_order(num_ops: int, src: IntArray, dst: IntArray, rank: ArrayLike) -> IntArray:
    """Return [N] the topological order that always takes the ready op of the smallest ``rank`` [N]; ties by index.

    O(N log N + E). The edges must not form a cycle.
    """
    successors = Csr.build(num_ops, src, dst)
    ranks = np.asarray(rank).tolist()
    waiting = np.bincount(dst, minlength=num_ops).tolist()
    ready = [(ranks[v], v) for v in range(num_ops) if not waiting[v]]
    heapq.heapify(ready)
    order = []
    while ready:
        order.append(heapq.heappop(ready)[1])
        for u in successors.of(order[-1]).tolist():
            waiting[u] -= 1
            if not waiting[u]:
                heapq.heappush(ready, (ranks[u], u))
    assert len(order) == num_ops
    return np.asarray(order, dtype=np.int64)
