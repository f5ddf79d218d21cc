"""Compiling a placed model for work-conserving execution: cut it, build and compile submodels, set up an engine.

Legend: N ops, D devices, S subgraphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import openvino as ov

from hsdag.base.errors import DeviceError, OptionError, PlacementError, last_line
from hsdag.ir.device import DeviceIndex, DeviceSpec
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.gates import has_one_thread
from hsdag.ir.placement.applied import with_shapes
from hsdag.ir.placement.divided import divided
from hsdag.ir.placement.homes import op_devices, placed_priority
from hsdag.ir.placement.placement import Placement
from hsdag.runtime.executor.cut import Cut, Subgraph
from hsdag.runtime.executor.engine import Engine
from hsdag.runtime.executor.merging import plan_cut
from hsdag.runtime.executor.openvino_backend import CompiledPart, OpenVinoBackend, SharedMemory, build_submodels
from hsdag.runtime.executor.requests import WorkConservingModel
from hsdag.runtime.executor.tasks import Resource, TaskGraph
from hsdag.runtime.machine.devices import PRECISION, in_bf16


def compile_on(
    core: Any,
    model: ov.Model,
    graph: ComputationGraph,
    specs: Sequence[DeviceSpec],
    devices: Sequence[int],
    priority: Sequence[int | None] | None = None,
    properties: Mapping[str, Any] | None = None,
    *,
    by_load: bool = False,
    limit_s: float | None = None,
) -> WorkConservingModel:
    """Cut and compile a placement of a model, which is not changed.

    Args:
        core: The ``ov.Core``.
        model: The model.
        graph: Its graph.
        specs: [D] the devices.
        devices: [N] the index of each op's device.
        priority: [N] the rank of each op, smallest first; None for an op without one.
        properties: Properties for ``compile_model``.
        by_load: Whether parts are merged for throughput; see ``plan_cut``.
        limit_s: The seconds that an inference may take.

    Raises PlacementError as ``plan_cut`` does and for an op on none of the devices, DeviceError when a device does not
    compile its part, ModelError for models that cannot be cut, and OptionError for a limit that is not positive.
    """
    if limit_s is not None and not limit_s > 0:
        raise OptionError(f"an inference may take a positive number of seconds, not {limit_s}")
    device = np.asarray(devices, dtype=np.int64)
    if (device < 0).any():
        raise PlacementError(f"op {graph.op_names[int(device.argmin())]!r} is on none of the devices")
    ranks = None if priority is None else np.array([np.inf if rank is None else float(rank) for rank in priority])
    plan = plan_cut(graph, device, len(specs), ranks, by_load=by_load)
    for spec in specs:
        spec.register(core)

    def compile_part(part: Subgraph, model: ov.Model) -> Any:
        try:
            return core.compile_model(model, specs[part.device].openvino_name, dict(properties or {}))
        except RuntimeError as error:
            first, last = graph.op_names[part.ops[0]], graph.op_names[part.ops[-1]]
            what = f"op {first!r}" if len(part.ops) == 1 else f"the {len(part.ops)} ops from {first!r} to {last!r}"
            raise DeviceError(f"{specs[part.device].name} cannot compile {what}: {last_line(error)}") from error

    bf16 = in_bf16(specs, (properties or {}).get(PRECISION), core)
    single = {d for d, spec in enumerate(specs) if has_one_thread(spec)}
    submodels = build_submodels(model, plan.cut, bf16, single)
    pairs = zip(plan.cut.subgraphs, submodels, strict=True)
    parts = [CompiledPart(submodel, partial(compile_part, part)) for part, submodel in pairs]
    backend = OpenVinoBackend(plan.cut, parts, SharedMemory(core, specs))
    engine = Engine(task_graph(plan.cut, specs), backend, priority=plan.priority)
    return WorkConservingModel(model, plan.cut, backend, engine, limit_s)


def compile_placed(
    model: ov.Model,
    placement: Placement,
    *,
    core: Any = None,
    properties: Mapping[str, Any] | None = None,
    by_load: bool = False,
    limit_s: float | None = None,
) -> WorkConservingModel:
    """Compile a model in memory as ``hsdag.compile_work_conserving`` does; ``by_load`` as for ``plan_cut``."""
    model, placement = divided(with_shapes(placement, model), placement)
    graph = graph_of(model)
    specs = placement.used_specs
    devices = DeviceIndex.of(specs).positions(op_devices(placement, graph))
    ranks = placed_priority(placement, graph)
    return compile_on(
        core or ov.Core(), model, graph, specs, devices, ranks, properties, by_load=by_load, limit_s=limit_s
    )


def task_graph(cut: Cut, specs: Sequence[DeviceSpec]) -> TaskGraph:
    """Return the parts of a cut as tasks."""
    names = cut.graph.op_names
    ends = [(names[p.ops[0]], names[p.ops[-1]]) for p in cut.subgraphs]
    labels = [first if first == last else f"{first} .. {last}" for first, last in ends]
    kinds = [cut.graph.op_types[p.ops[0]] if len(p.ops) == 1 else "subgraph" for p in cut.subgraphs]
    resources = tuple(Resource(spec.name, d) for d, spec in enumerate(specs))
    return TaskGraph(tuple(labels), cut.device, resources, cut.edges, task_types=tuple(kinds), name=cut.graph.name)
