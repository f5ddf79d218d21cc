"""Dividing a model by hand: every region that can be, in given shares, without a profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import openvino as ov

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.reader import Shapes, load_model
from hsdag.ir.placement.placement import ModelRecord, Placement, Record, ShardRecord
from hsdag.ir.shards.placed import sharded_fields
from hsdag.ir.shards.regions import Scheme
from hsdag.ir.shards.rewrite import shapes_of
from hsdag.methods.sharding import SCHEMES, ShardChooser, ShardCosts
from hsdag.runtime.executor.merging import CutCosts
from hsdag.runtime.machine.devices import resolve_devices


class ShardResult(Record):
    """The files that were written, and the regions that are divided: how many ops each has, and its shares."""

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
    """The model and a placement that divides all of it that can be, as if syncs took nothing.

    ``shares`` such as ``0.6,0.4`` are those of the devices.

    Raises OptionError for shares and schemes that are none, and where nothing can be divided.
    """
    specs = resolve_devices(devices, partition_cpu).placed
    chosen = _schemes(schemes)
    model = load_model(path, shapes)
    graph = graph_of(model)
    op_s = CutCosts.assumed(graph, len(specs)).op_s
    costs = ShardCosts(op_s, np.ones(len(specs)), 0.0, 0.0)
    found = ShardChooser(shapes_of(model, graph)[1], costs, _shares(shares, len(specs)), chosen).best()
    if found is None:
        raise OptionError("no region of this model can be divided over these devices; name two, or other schemes")
    placement = Placement(
        **sharded_fields(found.regions, found.devices, graph, [spec.name for spec in specs]),
        model=ModelRecord.of(graph, path.stem),
        devices=list(specs),
        names=dict(zip(graph.canonical_names, graph.op_names, strict=True)),
        method="by hand",
        seed=0,
        objective="latency",
        executor="work-conserving",
    )
    return model, placement


def _schemes(names: Sequence[str]) -> tuple[Scheme, ...]:
    known = {name: name for name in get_args(Scheme)}
    for name in names:
        if name not in SCHEMES:
            raise OptionError(f"unknown scheme {name!r}; choose one of {', '.join(SCHEMES)}")
    return tuple(known[name] for name in names) or SCHEMES


def _shares(text: str | None, count: int) -> list[float] | None:
    if text is None:
        return None
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != count or min(found, default=-1.0) < 0 or not 0 < sum(found) < float("inf"):
        raise OptionError(f"--shares {text!r}: one number, 0 or more, is needed for each of the {count} devices")
    return [share / sum(found) for share in found]
