"""Models of OpenVINO under a placement: with affinities for HETERO, and compiled.

Legend: N ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openvino as ov

from hsdag.base.errors import DeviceError, PlacementError, last_line
from hsdag.ir.device import DeviceIndex, hetero_properties
from hsdag.ir.graph.build import corresponding_nodes, graph_of
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.gates import with_gates_apart
from hsdag.ir.graph.reader import fix_shapes
from hsdag.ir.placement.copies import compile_copies
from hsdag.ir.placement.homes import check_model, op_devices
from hsdag.ir.placement.placement import Placement
from hsdag.ir.placement.prepared import prepare


def applied(placement: Placement, model: ov.Model) -> ov.Model:
    """Set affinities and return a prepared copy of a model, as ``Placement.apply`` says."""
    fixed, graph, devices = _openvino_devices(placement, model)
    device_of = {node.get_name(): name for node, name in zip(fixed.get_ordered_ops(), devices, strict=True)}
    for node, counterpart in zip(model.get_ordered_ops(), corresponding_nodes(model, fixed), strict=True):
        node.get_rt_info()["affinity"] = device_of[counterpart.get_name()]
    return prepare(fixed, graph).place(devices, placement.devices)


def compiled(
    placement: Placement, core: Any, model: ov.Model, properties: Mapping[str, Any] | None = None, beside: Any = None
) -> Any:
    """Compile a model, as ``Placement.compile`` says."""
    if placement.copies:
        return _compiled_copies(placement, core, model, properties, beside)
    fixed, graph, devices = _openvino_devices(placement, model)
    specs = placement.used_specs
    if len(specs) == 1:
        placed = with_gates_apart(fixed, specs[0])
        target = specs[0].openvino_name
        options = dict(properties or {})
    else:
        placed = prepare(fixed, graph).place(devices, specs)
        target = "HETERO:" + ",".join(spec.openvino_name for spec in specs)
        options = hetero_properties(specs, properties)
    for spec in specs:
        spec.register(core)
    try:
        return core.compile_model(placed, target, options)
    except RuntimeError as error:
        raise DeviceError(f"{target} cannot compile the placed model: {last_line(error)}") from error


def _compiled_copies(
    placement: Placement, core: Any, model: ov.Model, properties: Mapping[str, Any] | None, beside: Any
) -> Any:
    fixed = with_shapes(placement, model)
    check_model(placement, graph_of(fixed))
    specs = {device.name: device for device in placement.devices}

    def compile_pipeline(pipeline: Placement) -> Any:
        return beside(fixed, pipeline, core, properties) if beside else compiled(pipeline, core, fixed, properties)

    copies = [
        (specs[copy.device] if copy.device else compile_pipeline(copy.pipeline(placement)), copy.requests)
        for copy in placement.copies or ()
    ]
    return compile_copies(core, fixed, copies, properties)


def _openvino_devices(placement: Placement, model: ov.Model) -> tuple[ov.Model, ComputationGraph, list[str]]:
    """Return ``with_shapes(placement, model)``, its graph, and OpenVINO's name of the device of each of its ops [N]."""
    check_openvino(placement)
    fixed, index = with_shapes(placement, model), DeviceIndex.of(placement.devices)
    graph = graph_of(fixed)
    return fixed, graph, index.openvino_named(index.positions(op_devices(placement, graph)))


def with_shapes(placement: Placement, model: ov.Model) -> ov.Model:
    """Return a copy of a model whose inputs without a fixed shape have the shape in which it was placed.

    Inputs for which the placement has no shape stay as they are. Raises ModelError where the model does not take a
    shape.
    """
    clone = model.clone()
    fix_shapes(clone, {}, placement.model.input_shapes, dynamic=True)
    return clone


def check_openvino(placement: Placement) -> None:
    """Raise PlacementError if the devices of a placement are not OpenVINO's."""
    if placement.executor == "cuda":
        raise PlacementError(
            "the placement is for the CUDA engine (executor 'cuda'), whose devices OpenVINO does not have; "
            "run it with 'hsdag bench MODEL --placement FILE', or place the model again for another executor"
        )
