"""Affinity maps on ov.Models: applying a placement, compiling it, and embedding it in an IR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import openvino as ov

from hsdag.ir.build import fingerprint, graph_of, ordered_ops
from hsdag.ir.colocation import colocate
from hsdag.ir.copies import make_private, merge_copies
from hsdag.ir.device import hetero_properties
from hsdag.ir.errors import DeviceError, PlacementError
from hsdag.ir.graph import ComputationGraph
from hsdag.ir.reader import last_line

if TYPE_CHECKING:
    from hsdag.ir.placement import Placement

_RT_INFO_PATH = ["hsdag", "placement"]


def apply_affinity(placement: Placement, model: ov.Model) -> ov.Model:
    """``Placement.apply``."""
    merge_copies(model)
    graph = graph_of(model)
    devices = check_placement(placement, graph)
    openvino_names = {device.name: device.spec().openvino_name for device in placement.devices}
    set_affinities(model, graph, [openvino_names[device] for device in devices])
    return model


def check_placement(placement: Placement, graph: ComputationGraph) -> list[str]:
    """[N] the device of each op. Raises PlacementError when the placement is not for the model of this graph."""
    if fingerprint(graph) != placement.model.fingerprint:
        raise PlacementError(
            f"the placement is for model {placement.model.name!r} and this is another one (named {graph.name!r}): "
            "their ops, shapes or edges differ; place this model anew"
        )
    if set(placement.affinity) != set(graph.op_names):
        odd = sorted(set(placement.affinity) ^ set(graph.op_names))
        raise PlacementError(f"the affinity map and the model disagree on {len(odd)} ops, the first is {odd[0]!r}")
    devices = [placement.affinity[name] for name in graph.op_names]
    check_colocation(graph, devices)
    return devices


def compile_placement(
    placement: Placement, core: Any, model: ov.Model, properties: Mapping[str, Any] | None = None
) -> Any:
    """``Placement.compile``."""
    specs = {device.name: device.spec() for device in placement.devices}
    used = [specs[name] for name in placement.used_devices]
    for spec in used:
        spec.register(core)
    apply_affinity(placement, model)
    names = [spec.openvino_name for spec in used]
    target = names[0] if len(names) == 1 else "HETERO:" + ",".join(names)
    kept = hetero_properties(used) if len(names) > 1 else {}
    try:
        return core.compile_model(model, target, {**kept, **(properties or {})})
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
