"""Manual sharding: divides every region of a model that can be divided, in given shares and without a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov

from hsdag.base.errors import OptionError, PlacementError, chosen, option
from hsdag.commands.place.loaded_model import ModelInputs
from hsdag.commands.place.session import Session
from hsdag.ir.device import DeviceIndex
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import known_ops
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.reader import Shapes, load_model
from hsdag.ir.placement.divided import regions_of, sharded_fields
from hsdag.ir.placement.placement import ModelRecord, Placement, Record, ShardRecord
from hsdag.ir.shards.nodes import MARK
from hsdag.ir.shards.regions import Region
from hsdag.ir.shards.rewrite import shapes_of, shard
from hsdag.methods.shards.choice import SCHEMES, ShardChooser
from hsdag.methods.shards.division import ShardCosts
from hsdag.runtime.costs.shard_costs import sharded_costs
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.executor.merging import CutCosts
from hsdag.runtime.machine.devices import DeviceSet, resolve_devices
from hsdag.runtime.problem.schedule_problem import ScheduleProblem


class ShardResult(Record):
    """Result of ``hsdag shard``: the written files, and the divided regions with their number of ops and shares."""

    files: tuple[Path, ...]
    regions: tuple[ShardRecord, ...]


def divide(
    path: Path,
    devices: str | None,
    partition_cpu: int | None,
    shares: str | None,
    schemes: Sequence[str],
    shapes: Shapes,
) -> tuple[ov.Model, Placement]:
    """Return the model, and a placement that divides every region that can be divided, as if syncs took no time.

    Args:
        path: Model file. Dynamic sizes that ``shapes`` do not fix stay dynamic.
        devices: Device list, as for ``hsdag place``.
        shares: Share of each device, like ``0.6,0.4``; by default equal shares.
        schemes: Schemes to use; all if empty.

    Raises OptionError for invalid shares or schemes, and if nothing can be divided.
    """
    specs = resolve_devices(devices, partition_cpu).placed
    taken = tuple(chosen("scheme", name, SCHEMES) for name in schemes) or SCHEMES
    model = load_model(path, shapes, dynamic=True)
    graph = graph_of(model)
    costs = ShardCosts(CutCosts.assumed(graph, len(specs)).op_s, np.ones(len(specs)), 0.0, 0.0)
    division = ShardChooser(shapes_of(model, graph), costs, _shares(shares, len(specs)), taken).best()
    if division is None:
        raise OptionError(f"no two devices can divide ops of this model in these shares by {' or '.join(taken)}")
    names = DeviceIndex.of(specs).names
    regions = _divisible(model, graph, division.regions, division.devices, names)
    if all(region.scheme == "replicated" for region in regions):
        raise OptionError("none of the regions of this model can be divided")
    placement = Placement(
        **sharded_fields(regions, division.devices, graph, names),
        model=ModelRecord.of(graph),
        devices=list(specs),
        names=dict(zip(graph.canonical_names, graph.op_names, strict=True)),
        method="by hand",
        seed=0,
        objective="latency",
        executor="work-conserving",
        data_shapes=() if model.is_dynamic() else None,
    )
    return model, placement


def _divisible(
    model: ov.Model, graph: ComputationGraph, regions: Sequence[Region], devices: Sequence[int], names: Sequence[str]
) -> list[Region]:
    """Return the regions that can be rewritten; the others stay whole."""

    def is_possible(some: Sequence[Region]) -> bool:
        try:
            shard(model, graph, some, devices, names, fills=False)
        except PlacementError:
            return False
        return True

    return list(regions) if is_possible(regions) else [region for region in regions if is_possible([region])]


def sharded_problem(path: Path, model: ov.Model, placement: Placement, shapes: Shapes) -> ScheduleProblem:
    """Return the problem of placing the ops of a divided model, with costs from a profile of the whole model.

    The meta-op of a shard is the op that it is a part of; the op that sums or joins shards is its reduction.

    Raises DeviceError for a device that cannot be profiled.
    """
    names = DeviceIndex.of(placement.devices).names
    devices = DeviceSet(tuple(placement.devices), ())
    with Session(path, devices, ModelInputs(shapes), executor="work-conserving") as session:
        profile = session.profile(side_by_side=True)
    graph = graph_of(model)
    sharded = shard(model, graph, *regions_of(placement, graph), names)
    costs = sharded_costs(WorkConservingCosts.of(graph, profile.costs(graph), profile.links.syncs), sharded).costs
    problem = replace(costs, device_names=tuple(names), memory_bytes=profile.memory_bytes)
    is_known = known_ops(sharded.graph)
    meta_ops, roles = list[str](), list[str]()
    for v, name in enumerate(sharded.graph.op_names):
        is_part = MARK in name and not is_known[v]
        meta_ops.append(name.rpartition(MARK)[0] if is_part else "")
        roles.append(("shard" if sharded.origin[v] >= 0 else "reduce") if is_part else "")
    labels = replace(problem.labels, meta_ops=tuple(meta_ops), roles=tuple(roles))
    record = ModelRecord.of(sharded.graph, f"{path.stem}-sharded")
    return replace(problem, labels=labels, model=record, devices=tuple(placement.devices))


def _shares(text: str | None, count: int) -> list[float] | None:
    """Parse the shares of ``count`` devices and scale them to a sum of 1. Raises OptionError for invalid ones."""
    if text is None:
        return None
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if len(shares) != count or min(shares, default=-1.0) < 0 or not 0 < sum(shares) < float("inf"):
        raise OptionError(
            f"{option('shares')} {text!r}: one number, 0 or more, is needed for each of the {count} devices"
        )
    return [share / sum(shares) for share in shares]
