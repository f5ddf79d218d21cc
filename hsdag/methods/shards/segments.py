"""Segments of a model, cut at the tensors through which all paths of its work pass.

Legend: N ops, D devices, K segments.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from hsdag.ir.graph.computation_graph import BoolArray, FloatArray
from hsdag.ir.graph.state import SHAPE_OF_TYPES
from hsdag.ir.shards.regions import OpShapes
from hsdag.ir.shards.rules import shape_of

LEAST_SHARE = 1e-4
"""Share of the model's work below which an op is not worth dividing; ops that depend on no larger one are repeated on
every device."""

KERNELS = ("Convolution", "GroupConvolution", "MatMul")
"""Op types that do most of the work."""

NOISE = 0.15
"""Largest difference of the times of equal segments, as a share of their median."""


class Segments:
    """Segments of a model.

    Args:
        time_s: Seconds of each op on each device, NaN where it does not run [N, D].
        pins: Devices of pinned ops.
        repeated: Ops that every device repeats [N].
        can_be_equal: Whether to look for equal segments.

    Attributes:
        cuts: Last op of each segment [K].
        main: Main ops of each segment [K]: those worth dividing, and the ops that depend on one.
        members: All running ops of each segment [K].
        others: Running ops that are not main ones.
        kinds: A number per segment [K], the same for equal segments.
        time_s: Seconds of each op on each device, infinite where it does not run, averaged over equal segments [N, D].
    """

    def __init__(
        self, shapes: OpShapes, time_s: FloatArray, pins: Mapping[int, int], repeated: BoolArray, *, can_be_equal: bool
    ) -> None:
        self._shapes = shapes
        self._pins = pins
        self._repeated = repeated
        self._runs = np.array(shapes.runs)
        self.time_s = np.where(self._runs[:, None], np.where(np.isnan(time_s), np.inf, time_s), 0.0)
        self._work_s = np.where(self._runs, np.nan_to_num(time_s).max(axis=1), 0.0)
        self._is_main = self._main_ops()
        self.cuts = self._useful(self._cut_ops())
        between = [range(first + 1, last + 1) for first, last in itertools.pairwise([-1, *self.cuts])]
        self.main = [[v for v in ops if self._is_main[v]] for ops in between]
        self.members = [[v for v in ops if self._runs[v]] for ops in between]
        self.others: list[int] = np.flatnonzero(self._runs & ~self._is_main).tolist()
        self.kinds = self._equal_segments() if can_be_equal else list(range(len(self.main)))

    def is_heavy(self, v: int) -> bool:
        """Return whether an op is a matrix product or a convolution that does more than LEAST_SHARE of the work."""
        is_kernel = self._shapes.op(v).type in KERNELS
        return is_kernel and bool(self._work_s[v] > LEAST_SHARE * self._work_s.sum())

    def _main_ops(self) -> BoolArray:
        """Return which ops [N] are worth dividing or depend on one that is; all others are cheap to repeat."""
        graph = self._shapes.graph
        is_main: BoolArray = self._work_s > LEAST_SHARE * self._work_s.sum()
        is_main &= np.isin(graph.op_types, [*KERNELS, "Gather"])
        is_main &= ~self._repeated
        for v in graph.topological_order.tolist():
            if self._runs[v] and not is_main[v] and not self._repeated[v] and graph.op_types[v] != "Assign":
                is_main[v] = is_main[graph.predecessors.of(v)].any()
        return is_main

    def _cut_ops(self) -> list[int]:
        """Return the ops whose results every path through the main ops passes, in order, and the last main op."""
        cuts: list[int] = []
        furthest = -1
        main = np.flatnonzero(self._is_main).tolist()
        for v in main:
            readers = [u for u in self._shapes.graph.successors.of(v).tolist() if self._is_main[u]]
            if v == main[-1] or (furthest <= v and readers):
                cuts.append(v)
            furthest = max([furthest, *readers])
        return cuts

    def _useful(self, cuts: list[int]) -> list[int]:
        """Remove cuts that only separate a region from light ops which can be divided by rows together with it.

        The light ops must keep the tensor's size. A cut at a matrix product stays, as its result may be a sum of
        partial results.
        """
        kept = [-1, *cuts[:1]]
        for before, last in itertools.pairwise(cuts):
            is_light = not self._heavy(before, last) and self._shapes.op(before).type != "MatMul"
            if is_light and self._is_by_rows(kept[-2], before, last):
                kept.pop()
            kept.append(last)
        return kept[1:]

    def _heavy(self, before: int, last: int) -> set[int]:
        return {v for v in range(before + 1, last + 1) if self._is_main[v] and self.is_heavy(v)}

    def _is_by_rows(self, before: int, cut: int, last: int) -> bool:
        """Return whether the ops between ``before`` and ``last`` form one region by rows that includes ``cut``.

        The results of ``cut`` and ``last`` must have the same size.
        """
        inside = {cut, *self._heavy(before, cut)}
        sizes = self._shapes.op(last).outputs[0]
        axes = [axis for axis, size in enumerate(sizes) if size >= self.time_s.shape[1]]
        regions = (self._shapes.region("rows", last, axis, range(before + 1)) for axis in axes)
        is_same = sizes == self._shapes.op(cut).outputs[0]
        return is_same and any(region is not None and inside <= set(region.ops) for region in regions)

    def _equal_segments(self) -> list[int]:
        """Give each segment a number [K], equal ones the same, and set the times of their ops to the mean.

        Equal segments have equal ops with equal inputs and readers, and their times differ by no more than NOISE.
        """
        kinds = list(range(len(self.members)))
        by_looks = dict[tuple[object, ...], list[int]]()
        for k, members in enumerate(self.members):
            place = {v: position for position, v in enumerate(members)}
            cut = self.cuts[k - 1] if k else -1
            by_looks.setdefault(tuple(self._looks(v, place, cut) for v in members), []).append(k)
        for alike in by_looks.values():
            times_s = np.array([self.time_s[self.members[k]] for k in alike])
            total_s = times_s.sum(axis=1)
            is_usual = np.isclose(total_s, np.median(total_s, axis=0), rtol=NOISE).all(axis=1)
            usual = [k for k, usual in zip(alike, is_usual.tolist(), strict=True) if usual]
            for k in usual:
                kinds[k] = usual[0]
                self.time_s[self.members[k]] = times_s[is_usual].mean(axis=0)
        return kinds

    def _looks(self, v: int, place: Mapping[int, int], cut: int) -> tuple[object, ...]:
        """Return all properties of an op, other than its time, that decide how it may be divided.

        Args:
            place: Position of each op of the segment.
            cut: Last op of the segment before; -1 for the first segment.
        """
        op = self._shapes.op(v)
        graph = self._shapes.graph
        reads = [self._shapes.producer(v, port) for port in range(len(op.inputs))]
        sources = [-1 if u < 0 else place.get(u, "cut" if u == cut else f"op {u}") for u in reads]
        types = {u: "shape" if graph.op_types[u] in SHAPE_OF_TYPES else "op" for u in graph.successors.of(v).tolist()}
        readers = frozenset(place.get(u, kind) for u, kind in types.items())
        constants = [op.node.input_value(port).get_node() for port, u in enumerate(reads) if u < 0]
        numbers = [op.constant(port) for port, u in enumerate(reads) if u < 0 and len(op.inputs[port]) < 2]
        flags = self._is_main[v], self._repeated[v], self._pins.get(v), str(numbers), *map(_constant_looks, constants)
        return op.type, str(op.attributes), op.inputs, op.outputs, *sources, *flags, readers


def _constant_looks(node: Any) -> tuple[object, ...]:
    """Return the types and sizes, without values, of the ops that make a constant input, like weights and scales."""
    sources = () if node.get_type_name() in SHAPE_OF_TYPES else node.input_values()
    made = node.get_type_name(), str(node.get_output_element_type(0)), shape_of(node.output(0))
    return *made, *(_constant_looks(value.get_node()) for value in sources)
