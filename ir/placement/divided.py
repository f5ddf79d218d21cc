"""Conversions of placements that divide ops: to regions of a graph, and to a divided model with a plain placement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino as ov

from hsdag.base.errors import PlacementError
from hsdag.ir.device import DeviceIndex
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.placement.applied import with_shapes
from hsdag.ir.placement.homes import check_model
from hsdag.ir.placement.placement import FORMAT_VERSION, SPREAD_VERSION, ModelRecord, Placement, ShardRecord
from hsdag.ir.shards.regions import Region
from hsdag.ir.shards.rewrite import shard


def sharded_fields(
    regions: Sequence[Region], homes: Sequence[int], graph: ComputationGraph, devices: Sequence[str]
) -> dict[str, Any]:
    """Return the fields of a placement file for a divided model; ``homes`` [N] are the device indices of all ops.

    ``homes`` counts only for ops outside the regions.
    """
    keys = graph.canonical_names
    divided = {v for region in regions for v in region.ops}
    shards = tuple(
        ShardRecord(
            scheme=region.scheme,
            ops=tuple(keys[v] for v in region.ops),
            axis={keys[v]: axis for v, axis in zip(region.ops, region.axes, strict=True) if axis is not None},
            shares={devices[d]: share for d, share in region.shares.items()},
        )
        for region in regions
    )
    affinity = {keys[v]: devices[d] for v, d in enumerate(homes) if v not in divided}
    return {"version": SPREAD_VERSION, "affinity": affinity, "shards": shards}


def regions_of(placement: Placement, graph: ComputationGraph) -> tuple[tuple[Region, ...], list[int]]:
    """Return the regions that a placement divides, and the device of every op [N], as indices of its ``devices``.

    Raises PlacementError where the placement is for another model, or an op has no device or several.
    """
    check_model(placement, graph)
    index = DeviceIndex.of(placement.devices)
    op = {name: v for v, name in enumerate(graph.canonical_names)}
    named = [name for record in placement.shards or () for name in record.ops] + list(placement.affinity)
    if sorted(named) != sorted(op):
        odd = sorted(set(named) ^ set(op)) or [name for k, name in enumerate(named) if name in named[:k]]
        raise PlacementError(f"the placement gives no device, or several, to {len(odd)} ops, the first is {odd[0]!r}")
    regions = []
    for record in placement.shards or ():
        ops = sorted(op[name] for name in record.ops)
        axes = tuple(record.axis.get(graph.canonical_names[v]) for v in ops)
        shares = dict(zip(index.positions(record.shares), record.shares.values(), strict=True))
        regions.append(Region(record.scheme, tuple(ops), axes, shares))
    first = index.names[0]  # for ops inside regions
    return tuple(regions), index.positions(placement.affinity.get(name, first) for name in graph.canonical_names)


def divided(model: ov.Model, placement: Placement) -> tuple[ov.Model, Placement]:
    """Return a model with the shards of a placement as ops of its own, and the plain placement for it.

    Both are returned unchanged if the placement divides nothing; ``model`` is never changed. Raises PlacementError as
    ``regions_of`` and ``shard`` do.
    """
    if not placement.shards:
        return model, placement
    model = with_shapes(placement, model)
    graph = graph_of(model)
    regions, devices = regions_of(placement, graph)
    index = DeviceIndex.of(placement.devices)
    sharded = shard(model, graph, regions, devices, index.names)
    changes = {
        "version": FORMAT_VERSION,
        "model": ModelRecord.of(sharded.graph, placement.model.name),
        "affinity": dict(zip(sharded.graph.canonical_names, index.named(sharded.devices), strict=True)),
        "names": dict(zip(sharded.graph.canonical_names, sharded.graph.op_names, strict=True)),
        "shards": None,
        "priority": None,
    }
    return sharded.model, placement.model_copy(update=changes)
