"""Regions: connected ops that several devices compute together by one scheme, each device a range.

Legend: N ops of the model's graph, R ops of a region.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, TypeAlias

import openvino as ov

from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.state import SHAPE_OF_TYPES
from hsdag.ir.shards.rules import NodeView, Piece, Span, contraction, partial_piece, piece_of

Scheme: TypeAlias = Literal["rows", "hidden", "heads", "channels", "columns", "replicated"]
"""How a region is divided (docs/shards.md); ``replicated`` ops are computed by every device."""

FLOPS_PER_BYTE = 10.0
"""FLOPs that a CPU core computes in the time that it takes to read one byte of weights."""

_Pieces: TypeAlias = dict[int, tuple[Span | None, Piece]]


@dataclass(frozen=True)
class Region:
    """Ops [R] in topological order, the axis along which each is divided, and the range of the last op by device.

    ``axes`` [R] are None for an op that is not divided along an axis of its result: the last op of a region whose
    partial results are summed, with ``shares`` along the axis that it sums over, and replicated ops, whose shares are
    empty. The first device of ``shares`` adds to its own part what every device would otherwise add to the sum.
    """

    scheme: Scheme
    ops: tuple[int, ...]
    axes: tuple[int | None, ...]
    shares: Mapping[int, tuple[int, int]]


class OpShapes:
    """The ops of a model as rules see them, with the producers of their inputs among ops that run on data.

    ``nodes`` [N] are those of a folded clone ``model`` (``ir.graph.folding.folded_clone``), ``runs`` [N] whether an op
    is computed by a device: neither known beforehand, nor an input or a result.
    """

    def __init__(
        self, graph: ComputationGraph, model: ov.Model, nodes: Sequence[ov.Node], runs: Sequence[bool]
    ) -> None:
        self.graph = graph
        self.model = model
        self.nodes = nodes
        self.runs = runs
        self._view = cache(lambda v: NodeView(nodes[v]))
        self._source = cache(self._producer)
        self._pieces: dict[tuple[object, ...], _Pieces | None] = {}
        self._reading = cache(self._part_read)

    def cloned(self) -> OpShapes:
        """Return the shapes of a clone of the folded clone, sharing cached results."""
        other = copy(self)
        other.model = self.model.clone()
        named = {n.get_friendly_name(): n for n in other.model.get_ordered_ops() if n.get_type_name() != "Constant"}
        other.nodes = [named.get(str(v), node) for v, node in enumerate(self.nodes)]
        return other

    def op(self, v: int) -> NodeView:
        """Return an op as rules see it."""
        return self._view(v)

    def producer(self, v: int, port: int) -> int:
        """Return the op whose result an input reads; -1 for a value that is known or that a piece adds."""
        return self._source(v, port)

    def _producer(self, v: int, port: int) -> int:
        if port >= len(self.op(v).inputs):
            return -1
        source = self.nodes[v].input_value(port).get_node()
        u = int(source.get_friendly_name().partition(".")[0])
        if source.get_type_name() == "Constant":  # a constant that OpenVINO adds has the name of its op
            return -1
        return u if self.runs[u] or self.graph.op_types[u] == "Parameter" else -1

    def pieces(self, region: Region, device: int) -> _Pieces | None:
        """Return for each op of a divided region what a device computes: the range, None if partial, and how.

        An op that is read with several ranges computes the smallest range that contains them. None where a rule does
        not allow the region to be divided in this way.
        """
        key = region.ops, region.axes, region.shares[device]
        if key not in self._pieces:
            self._pieces[key] = self._pieces_of(region, *region.shares[device])
        return self._pieces[key]

    def _pieces_of(self, region: Region, first: int, last: int) -> _Pieces | None:
        if not 0 <= first < last <= self.extent(region):
            return None
        axis_of = dict(zip(region.ops, region.axes, strict=True))
        if not self._has_attention_of_states(axis_of):
            return None
        end = region.axes[-1]
        wanted = {} if end is None else {region.ops[-1]: Span(end, first, last)}
        pieces: _Pieces = {}
        for v in reversed(region.ops):
            span = wanted.get(v)
            op = self.op(v)
            piece = piece_of(op, span) if span is not None else None if pieces else partial_piece(op, first, last)
            if piece is None or (span is not None and not 0 <= span.first < span.last):
                return None
            pieces[v] = span, piece
            for port, need in enumerate(piece.inputs):
                u = self.producer(v, port)
                if u not in axis_of:
                    continue
                along = axis_of[u]
                if along is None or (need is not None and need.axis != along):
                    return None
                whole = Span(along, 0, self.op(u).outputs[0][along])
                wanted[u] = (need or whole) | wanted.get(u, need or whole)
        return pieces

    @cached_property
    def _begun(self) -> dict[int, int]:
        """Return the op that computes the initial value of each variable by its ReadValue, for computed values."""
        reads = [v for v, kind in enumerate(self.graph.op_types) if kind == "ReadValue"]
        return {v: self.producer(v, 0) for v in reads if self.producer(v, 0) >= 0}

    def _has_attention_of_states(self, ops: Container[int]) -> bool:
        """Return whether ops include the attention of each variable that they divide, with its keys and values.

        OpenVINO's CPU plugin moves the ops that compute only an initial value into the variable, and then fails if
        a Concat reads the variable or it grows. It leaves them alone if attention takes keys and values from variables.
        """
        states = defaultdict[int, set[int]](set)
        for v, first in self._begun.items():
            if v not in ops and first in ops:
                return False
            pending = [v] if v in ops else []
            while pending:
                for u in self.graph.successors.of(pending.pop()).tolist():
                    if u not in ops:
                        if self.graph.op_types[u] not in ("Assign", *SHAPE_OF_TYPES):
                            return False
                    elif self.graph.op_types[u] == "ScaledDotProductAttention":
                        states[u].add(v)
                    else:
                        pending.append(u)
        return all(len(read) > 1 for read in states.values())

    def work_of(self, v: int, span: Span | None, piece: Piece, share: float) -> float:
        """Return the share of an op's time that a piece of it takes: that of its range.

        Weights that are not cut are read whole. For a partial result, ``share`` counts in place of the range's.
        """
        done = share if span is None else span.size / self.op(v).outputs[0][span.axis]
        is_cut = any(need is not None and self.producer(v, port) < 0 for port, need in enumerate(piece.inputs))
        return done if is_cut else done + (1.0 - done) * self._reading(v)

    def _part_read(self, v: int) -> float:
        """Return the part of an op's time that reading its weights takes."""
        weight_bytes = 0.0
        pending = [v] if self.op(v).type in ("MatMul", "Convolution") else []
        while pending:
            sources = [u for u in self.graph.predecessors.of(pending.pop()).tolist() if not self.runs[u]]
            weight_bytes += float(self.graph.weight_bytes[sources].sum())
            pending += sources
        return min(FLOPS_PER_BYTE * weight_bytes / max(float(self.graph.flops[v]), 1.0), 1.0)

    def region(self, scheme: Scheme, last: int, axis: int | None, stop: Container[int] = ()) -> Region | None:
        """Return the largest region that ends in op ``last`` divided along ``axis``; None for partial results.

        It goes back as far as rules carry the axis, but not to the ops in ``stop``. ``shares`` are empty.
        """
        op = self.op(last)
        if axis is None:
            ends = contraction(op)
            piece = ends and partial_piece(op, 0, ends[0].last)
        else:
            size = op.outputs[0][axis]
            piece = piece_of(op, Span(axis, 0, size)) if size > 1 else None
        if piece is None:
            return None
        axis_of: dict[int, int | None] = {last: axis}
        pending = [(last, piece)]
        while pending:
            v, piece = pending.pop()
            for port, need in enumerate(piece.inputs):
                u = self.producer(v, port)
                if u < 0 or need is None or u in axis_of or u in stop or not self.runs[u]:
                    continue
                whole = Span(need.axis, 0, self.op(u).outputs[0][need.axis])
                before = piece_of(self.op(u), whole) if self.nodes[v].input_value(port).get_index() == 0 else None
                if before is not None:
                    axis_of[u] = need.axis
                    pending.append((u, before))
        ops = tuple(sorted(axis_of))
        return Region(scheme, ops, tuple(axis_of[v] for v in ops), {})

    def grain(self, region: Region) -> int | None:
        """Return the least size of which every range of the region's end must be a multiple; None if there is none."""
        size = self.extent(region)
        for grain in (g for g in range(1, size // 2 + 1) if size % g == 0):
            shares = {0: (0, grain), 1: (grain, 2 * grain)}
            if all(self.pieces(Region(region.scheme, region.ops, region.axes, shares), d) for d in shares):
                return grain
        return None

    def is_complete(self, region: Region) -> bool:
        """Return whether ops have the region's axes, and its shares cover what its end divides, without overlap."""
        axes = zip(region.ops, region.axes, strict=True)
        has_axes = all(axis is None or 0 <= axis < self.op(v).rank for v, axis in axes)
        ranges = sorted(region.shares.values())
        return has_axes and [0, *(last for _, last in ranges)] == [*(first for first, _ in ranges), self.extent(region)]

    def extent(self, region: Region) -> int:
        """Return the size of the axis that the region's end divides or sums over; 0 where there is none."""
        op = self.op(region.ops[-1])
        if (axis := region.axes[-1]) is not None:
            return op.outputs[0][axis]
        ends = contraction(op)
        return ends[0].last if ends else 0
