"""The model as a graph: reading, co-location, coarsening, placements, affinity maps and export."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hsdag.ir.coarsen import CoarseGraph, chain_partition, coarsen, placement_units
from hsdag.ir.colocation import Colocation, colocate
from hsdag.ir.errors import (
    DeviceError,
    ExecutionError,
    FileFormatError,
    HsdagError,
    ModelError,
    OptionError,
    OutputError,
    PlacementError,
    SearchError,
)
from hsdag.ir.graph import ComputationGraph, graph_from_edges, topological_order
from hsdag.ir.partition import Partition
from hsdag.ir.placement import LatencyRecord, Placement, SpeedupRecord

if TYPE_CHECKING:
    from hsdag.ir.build import fingerprint, graph_of, read_graph
    from hsdag.ir.device import DeviceSpec, parse_devices
    from hsdag.ir.reader import load_model, parse_shapes

__all__ = [
    "CoarseGraph",
    "Colocation",
    "ComputationGraph",
    "DeviceError",
    "DeviceSpec",
    "ExecutionError",
    "FileFormatError",
    "HsdagError",
    "LatencyRecord",
    "ModelError",
    "OptionError",
    "OutputError",
    "Partition",
    "Placement",
    "PlacementError",
    "SearchError",
    "SpeedupRecord",
    "chain_partition",
    "coarsen",
    "colocate",
    "fingerprint",
    "graph_from_edges",
    "graph_of",
    "load_model",
    "parse_devices",
    "parse_shapes",
    "placement_units",
    "read_graph",
    "topological_order",
]

_HOMES = {
    "DeviceSpec": "device",
    "fingerprint": "build",
    "graph_of": "build",
    "load_model": "reader",
    "parse_devices": "device",
    "parse_shapes": "reader",
    "read_graph": "build",
}


def __getattr__(name: str) -> Any:
    """What loads OpenVINO is imported on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hsdag.ir' has no attribute {name!r}")
    return getattr(import_module(f"hsdag.ir.{_HOMES[name]}"), name)
