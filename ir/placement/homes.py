"""The ops of a graph under a placement: their devices and ranks, once the placement is known to be for that graph.

Legend: N ops.
"""

from __future__ import annotations

from hsdag.base.errors import PlacementError, option
from hsdag.ir.graph.colocation import check_colocation
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.placement.placement import ModelRecord, Placement


def op_devices(placement: Placement, graph: ComputationGraph) -> list[str]:
    """Return [N] the name of the device of each op of a graph.

    Raises PlacementError when the placement is not for the model of this graph, by its fingerprint and the names
    of its ops; and where it divides ops or copies the model.
    """
    keys = graph.canonical_names
    check_model(placement, graph)
    if placement.shards or placement.copies:
        raise PlacementError(
            "the placement divides ops over devices, which HETERO does not run, or inferences: load it with "
            "hsdag.compile_model, or run what 'hsdag export --format openvino' makes of it"
        )
    if set(placement.affinity) != set(keys):
        odd = sorted(set(placement.affinity) ^ set(keys))
        raise PlacementError(f"the affinity map and the model disagree on {len(odd)} ops, the first is {odd[0]!r}")
    devices = [placement.affinity[key] for key in keys]
    if placement.executor != "cuda":  # it copies whatever is read on another device
        check_colocation(graph, devices)
    return devices


def op_homes(placement: Placement, graph: ComputationGraph) -> list[str]:
    """Return [N] devices as ``op_devices`` does; for an op on several devices their names, joined by ``+``."""
    if not (placement.shards or placement.copies):
        return op_devices(placement, graph)
    check_model(placement, graph)
    if placement.copies:
        homes_of_copies = [
            [c.device] * graph.num_ops if c.device else op_homes(c.pipeline(placement), graph) for c in placement.copies
        ]
        return ["+".join(homes) for homes in zip(*homes_of_copies, strict=True)]
    shared = {op: "+".join(region.shares) for region in placement.shards or () for op in region.ops}
    homes = {**placement.affinity, **shared}
    return [homes[op] for op in graph.canonical_names]


def placed_priority(placement: Placement, graph: ComputationGraph) -> list[int | None] | None:
    """Return [N] the rank of each op of a graph, None where it has none; None if no op has one."""
    return [placement.priority.get(op) for op in graph.canonical_names] if placement.priority else None


def check_model(placement: Placement, graph: ComputationGraph) -> None:
    """Raise PlacementError where the fingerprint says that the placement is for another model."""
    from hsdag.ir.graph.build import fingerprint  # not at the top: it loads OpenVINO, and simulators read placements

    if fingerprint(graph) != placement.model.fingerprint:
        raise PlacementError(_mismatch(placement, graph))


def _mismatch(placement: Placement, graph: ComputationGraph) -> str:
    model, record = placement.model, ModelRecord.of(graph)
    if set(placement.names) == set(graph.canonical_names) and record.input_shapes != model.input_shapes:
        return (
            f"the placement is for model {model.name!r} with the input shapes {model.inputs_text}, and "
            f"this model has {record.inputs_text}: reshape the model ({option('shape')}) or place it again"
        )
    return (
        f"the placement is for model {model.name!r} and this is another model (named {graph.name!r}): "
        "their ops, shapes or edges differ; place this model again"
    )
