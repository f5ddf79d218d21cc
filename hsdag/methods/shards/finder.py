"""Regions of a model that devices can divide, found by their ends.

Legend: N ops, D devices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np

from hsdag.ir.graph.colocation import colocate, repeated_ops
from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, FloatArray, IntArray
from hsdag.ir.graph.state import SHAPE_OF_TYPES, variable_of
from hsdag.ir.shards.regions import OpShapes, Region, Scheme
from hsdag.methods.shards.division import Divider


class End(NamedTuple):
    """End of a region, and the ops to leave out of it: those before ``first``, and those ``taken``."""

    scheme: Scheme
    last: int  # op
    axis: int | None  # axis of the last op's result
    first: int
    taken: frozenset[int] = frozenset()


_Shared: TypeAlias = tuple[Region, FloatArray, float]
"""A region with shares, the seconds at which devices end [D], and the most bytes that one of them reads."""


class RegionFinder:
    """Finder of the regions that can be divided.

    Args:
        schemes: Schemes that may be used.
        pinned: Ops that are not divided.
        bound: Ops bound to a variable's device, each with all ops that are bound together.
    """

    def __init__(
        self,
        shapes: OpShapes,
        schemes: Collection[Scheme],
        pinned: Collection[int],
        bound: Mapping[int, IntArray],
        divider: Divider,
    ) -> None:
        self._shapes = shapes
        self._schemes = schemes
        self._pinned = frozenset(pinned)
        self._bound = bound
        self._divider = divider
        self._shared: dict[tuple[End, bytes], _Shared | None] = {}
        self.undivided = cache(self._undivided)

    def shared(self, end: End, wait_s: FloatArray) -> _Shared | None:
        """Return the region with this end, with shares; None if there is none that can be divided.

        Args:
            wait_s: Seconds that each device waits before and after its share [D].
        """
        key = end, wait_s.tobytes()
        if key not in self._shared:
            undivided = self.undivided(end)
            self._shared[key] = undivided and self._divider.with_shares(*undivided, wait_s)
        return self._shared[key]

    def _undivided(self, end: End) -> tuple[Region, int] | None:
        """Return the region with this end, without shares, and the grain of its bounds; None if there is none."""
        left_out = (set(range(end.first)) - self._bound.keys()) | end.taken
        region = self._shapes.region(end.scheme, end.last, end.axis, left_out)
        if region is None or not self._is_closed(region):
            return None
        types = {self._shapes.op(v).type for v in region.ops}
        if end.scheme == "hidden" and types & {"Softmax", "ScaledDotProductAttention"}:
            region = replace(region, scheme="heads")
        if region.scheme not in self._schemes or self._pinned & set(region.ops):
            return None
        grain = self._shapes.grain(region)
        return None if grain is None else (region, grain)

    def _is_closed(self, region: Region) -> bool:
        """Return whether ops outside a region read only its last result, and its variables are whole inside it.

        Ops outside may read shapes, and write the variables.
        """
        graph = self._shapes.graph
        inside = set(region.ops)
        kept = {graph.variables[v] for v in region.ops} - {""}
        outside = [u for v in region.ops[:-1] for u in graph.successors.of(v).tolist() if u not in inside]
        if any(graph.variables[u] not in kept and graph.op_types[u] not in SHAPE_OF_TYPES for u in outside):
            return False
        written = {graph.variables[u] for u in outside} - {""}
        bound = {v for u in inside for v in self._bound.get(u, ())}
        return kept == written and all(v in inside or not uses_variable(self._shapes, v) for v in bound)


def uses_variable(shapes: OpShapes, v: int) -> bool:
    """Return whether an op reads a variable, or is the attention or product that uses it."""
    return shapes.runs[v] and shapes.op(v).type in ("ReadValue", "ScaledDotProductAttention", "MatMul")


def bound_to_variables(graph: ComputationGraph) -> tuple[dict[int, IntArray], BoolArray]:
    """Return the ops bound to a variable's device, each with all ops that are bound together, and which ops repeat [N].

    Repeated ops are computed by every device.
    """
    if variable_of(graph) is None:
        return {}, np.zeros(graph.num_ops, dtype=np.bool_)
    colocation = colocate(graph)
    labels, sets = colocation.sets.labels.tolist(), colocation.sets.members
    bound = {labels[v] for v, variable in enumerate(graph.variables) if variable}
    members = {v: sets.of(label) for v, label in enumerate(labels) if label in bound and not colocation.floating[v]}
    return members, repeated_ops(graph)
