"""Affinity maps on ov.Models: setting them, compiling what bears them, and embedding a placement in an IR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import openvino as ov

from hsdag.ir.build import ordered_ops
from hsdag.ir.colocation import colocate
from hsdag.ir.copies import make_private
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


def set_affinities(model: ov.Model, graph: ComputationGraph, devices: list[str]) -> None:
    """Give every op its device, by OpenVINO's names, and every reader of a floating op an instance of its own.

    ``graph`` is the graph of ``model`` without copies; op v goes to ``devices[v]``, but a floating op goes
    to where it is read. Nothing is copied when one device holds all ops.
    """
    nodes = [node for _, node in ordered_ops(model)]
    homes = list(range(graph.num_ops))
    if len(set(devices)) > 1:
        private = make_private(model, graph)
        homes = private.homes
        for reader, copy in private.copies:
            copy.get_rt_info()["affinity"] = devices[reader]
    for v, node in enumerate(nodes):
        node.get_rt_info()["affinity"] = devices[homes[v]]


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
                pair = f"{graph.op_names[u]!r} and {graph.op_names[v]!r}"
                where = f"{devices[u]} and {devices[v]}"
                raise PlacementError(f"ops {pair} must share a device, but the affinity map puts them on {where}")
