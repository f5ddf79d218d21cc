"""Placements by hand, as files hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.coarsen import placement_units
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.placement.placement import ModelRecord, Placement


def by_hand(
    graph: ComputationGraph, devices: Sequence[DeviceSpec], device_of: Sequence[str], **fields: Any
) -> Placement:
    """A placement by the name of the device [N] of each op; its file may have other ``fields``."""
    given = {"method": "by hand", "seed": 0, "objective": "latency", "executor": "hetero", **fields}
    affinity = dict(zip(graph.canonical_names, device_of, strict=True))
    return Placement(model=ModelRecord.of(graph), devices=list(devices), affinity=affinity, **given)


def halves(graph: ComputationGraph, devices: Sequence[DeviceSpec], **fields: Any) -> Placement:
    """The first half of the placement units on the first of two devices, the rest on the second."""
    units = placement_units(graph)
    late = units.partition.labels >= units.graph.num_ops // 2
    return by_hand(graph, devices, [devices[int(second)].name for second in late], **fields)
