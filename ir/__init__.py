"""The model as a graph: reading, co-location, coarsening, placements, affinity maps and export."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hsdag.ir.build import fingerprint, graph_of, read_graph
    from hsdag.ir.coarsen import CoarseGraph, chain_partition, placement_units
    from hsdag.ir.colocation import Colocation, colocate
    from hsdag.ir.device import DeviceSpec, parse_devices
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
    "build": ("fingerprint", "graph_of", "read_graph"),
    "coarsen": ("CoarseGraph", "chain_partition", "placement_units"),
    "colocation": ("Colocation", "colocate"),
    "device": ("DeviceSpec", "parse_devices"),
    "graph": ("ComputationGraph", "graph_from_edges", "topological_order"),
    "partition": ("Partition",),
    "placement": ("LatencyRecord", "Placement", "SpeedupRecord"),
    "reader": ("load_model", "parse_shapes"),
}


def __getattr__(name: str) -> Any:
    """Names are imported on first use: errors alone load nothing, placements no OpenVINO."""
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None and name.endswith("Error"):
        home = "errors"
    if home is None or name not in __all__:
        raise AttributeError(f"module 'hsdag.ir' has no attribute {name!r}")
    return getattr(import_module(f"hsdag.ir.{home}"), name)
