"""The placed model as every format sees it: clones, never the caller's model."""

from __future__ import annotations

import openvino as ov

from hsdag.ir.build import graph_of, ordered_ops
from hsdag.ir.graph import ComputationGraph
from hsdag.ir.placement import Placement


def unplaced_clone(placement: Placement, model: ov.Model) -> ov.Model:
    """A copy of the model as it is without any placement, after making sure that this one is for it.

    Raises PlacementError when the placement is for another model.
    """
    clone = placement.fixed(model)
    placement.devices_of(graph_of(clone))
    return clone


def unplaced_graph(placement: Placement, model: ov.Model) -> ComputationGraph:
    """The graph of ``unplaced_clone``: its ops are those of the affinity map."""
    return graph_of(unplaced_clone(placement, model))


def openvino_names(placement: Placement) -> dict[str, str]:
    """By a device's name in the placement: the name OpenVINO knows it by."""
    return {device.name: device.spec().openvino_name for device in placement.devices}


def deployed_map(placement: Placement, placed: ov.Model | None) -> dict[str, str]:
    """OpenVINO's device name per op: of the placed model where it is at hand, else of the affinity map."""
    if placed is not None:
        return {name: node.get_rt_info()["affinity"].astype(str) for name, node in ordered_ops(placed)}
    names = openvino_names(placement)
    return {placement.name_of(op): names[device] for op, device in placement.affinity.items()}
