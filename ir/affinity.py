"""Affinity maps on ov.Models: checking them, compiling what bears them, and embedding a placement in an IR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import openvino as ov

from hsdag.ir.colocation import colocate, variable_of
from hsdag.ir.device import DeviceSpec, hetero_properties
from hsdag.ir.errors import DeviceError, PlacementError
from hsdag.ir.graph import ComputationGraph
from hsdag.ir.reader import last_line

_RT_INFO_PATH = ["hsdag", "placement"]


def compile_placed(
    core: Any, model: ov.Model, specs: Sequence[DeviceSpec], properties: Mapping[str, Any] | None = None
) -> Any:
    """Compile a model with affinities for the devices that hold ops: HETERO, or the one device.

    Raises DeviceError when a device is absent here, fails to load or does not compile the model.
    """
    for spec in specs:
        spec.register(core)
    names = [spec.openvino_name for spec in specs]
    target = names[0] if len(names) == 1 else "HETERO:" + ",".join(names)
    given = hetero_properties(specs, properties) if len(names) > 1 else dict(properties or {})
    try:
        return core.compile_model(model, target, given)
    except RuntimeError as error:
        raise DeviceError(f"{target} cannot compile the placed model: {last_line(error)}") from error


def embed_placement(model: ov.Model, document: str) -> None:
    """Store a placement document in the model's own rt_info, which survives serialisation."""
    model.set_rt_info(document, _RT_INFO_PATH)


def embedded_placement(model: ov.Model) -> str | None:
    """The placement document a model carries, if any."""
    if not model.has_rt_info(_RT_INFO_PATH):
        return None
    return str(model.get_rt_info(_RT_INFO_PATH).astype(str))


def check_colocation(graph: ComputationGraph, devices: list[str]) -> None:
    """Raise PlacementError where ops that must share a device do not; floating ops follow their readers."""
    constraints = colocate(graph)
    first: dict[int, int] = {}
    for v, group in enumerate(constraints.sets.labels.tolist()):
        if not constraints.floating[v]:
            u = first.setdefault(group, v)
            if devices[u] != devices[v]:
                variable = variable_of(graph)
                if variable is not None:
                    raise PlacementError(
                        f"the model keeps state between inferences (variable {variable!r}), which cannot be split: "
                        "put all its ops on one device"
                    )
                pair = f"{graph.op_names[u]!r} and {graph.op_names[v]!r}"
                where = f"{devices[u]} and {devices[v]}"
                raise PlacementError(f"ops {pair} must share a device, but the affinity map puts them on {where}")
