"""Export a placement as one text file: json is the placement itself, csv a table, dot a Graphviz drawing.

Legend: N ops, S submodels.
"""

from __future__ import annotations

import csv
from io import StringIO
from itertools import cycle

import numpy as np
import openvino as ov

from hsdag.exports.base import Exporter, document
from hsdag.ir.device import DeviceIndex
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import Colocation, colocate
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.partition import Partition
from hsdag.ir.placement.homes import op_devices
from hsdag.ir.placement.placement import Placement
from hsdag.ir.placement.submodels import SubmodelCollector

COLUMNS = ("op", "type", "device", "openvino_device")

FILL_COLOURS = "#a6cee3 #fdbf6f #b2df8a #cab2d6 #fb9a99 #ffff99 #1f78b4 #ff7f00 #33a02c #6a3d9a #e31a1c #b15928".split()
"""Fill colours of devices in the order of the placement; they repeat after the twelfth device."""


def csv_text(placement: Placement, model: ov.Model | None) -> str:
    """Return a table with header ``COLUMNS`` and a row per op.

    With a model, rows are in its order. Without one, they are those of the placement's affinity map, and types are
    empty.
    """
    rows = [(placement.names.get(op, op), "", device) for op, device in placement.affinity.items()]
    if model is not None:
        graph = graph_of(model)
        rows = list(zip(graph.op_names, graph.op_types, op_devices(placement, graph), strict=True))
    index = DeviceIndex.of(placement.devices)
    names = index.openvino_named(index.positions(device for *_, device in rows))
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows((*row, name) for row, name in zip(rows, names, strict=True))
    return text.getvalue()


def dot_text(placement: Placement, model: ov.Model | None) -> str:
    """Return a drawing of the ops for ``dot -Tsvg``, coloured by device, with a frame around each submodel.

    Bold edges between frames carry a tensor; dashed edges mean that the producer is copied into the other submodel.
    """
    assert model is not None
    graph = graph_of(model)
    constraints = colocate(graph)
    parts = submodels(placement, graph)
    lines = [
        f"digraph {quoted(graph.name)} {{",
        'graph [compound=true, fontname="sans-serif"];',
        'node [shape=box, style=filled, fontname="sans-serif", fontsize=10];',
        'edge [fontname="sans-serif", fontsize=9];',
        *_frames(placement, graph, constraints, parts),
        *_edges(graph, constraints, parts),
        "}",
    ]
    return "\n".join(lines) + "\n"


def submodels(placement: Placement, graph: ComputationGraph) -> Partition:
    """Return the submodel that HETERO puts each op into, [N] -> [S].

    Constants and shape computations belong to no submodel; they are counted to that of their first reader.
    """
    devices = DeviceIndex.of(placement.devices).positions(op_devices(placement, graph))
    labels = SubmodelCollector(graph).submodel_of(np.asarray(devices, dtype=np.int64))
    for v in graph.topological_order[::-1].tolist():
        if labels[v] < 0:
            readers = graph.successors.of(v)
            labels[v] = labels[readers[np.argmin(graph.position[readers])]]
    return Partition.from_labels(labels)


def quoted(text: str) -> str:
    """Return a Graphviz string that displays ``text`` as it is."""
    shown = text.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return '"' + shown.replace("\r", "").replace("\n", "\\n") + '"'


def _frames(placement: Placement, graph: ComputationGraph, constraints: Colocation, parts: Partition) -> list[str]:
    """Return the frames of all submodels with their ops."""
    fills = dict(zip((device.name for device in placement.devices), cycle(FILL_COLOURS), strict=False))
    devices = op_devices(placement, graph)
    lines = []
    for s in range(parts.num_groups):
        members = parts.members.of(s).tolist()
        device = next(devices[v] for v in members if not constraints.floating[v])
        label = quoted(f"submodel {s} on {device}, {len(members)} ops")
        lines.append(f'subgraph cluster_{s} {{ label={label}; color="black"; penwidth=2;')
        lines += (_node(graph, v, fills[device], small=bool(constraints.floating[v])) for v in members)
        lines.append("}")
    return lines


def _node(graph: ComputationGraph, v: int, fill: str, *, small: bool) -> str:
    """Return the statement that draws op ``v``; constants and shape computations are ``small``."""
    shape = "x".join(map(str, graph.shape_of(v))) or "scalar"
    label = quoted(f"{graph.op_names[v]}\n{graph.op_types[v]} {shape}")
    if small:
        return f'n{v} [shape=point, width=0.1, label="", tooltip={label}, color="{fill}"];'
    return f'n{v} [label={label}, fillcolor="{fill}"];'


def _edges(graph: ComputationGraph, constraints: Colocation, parts: Partition) -> list[str]:
    """Return the statements that draw all edges."""
    lines = []
    for e in range(graph.num_edges):
        s, d = int(graph.edge_src[e]), int(graph.edge_dst[e])
        style = ""
        if parts.labels[s] != parts.labels[d]:
            tensor = f' [style=bold, color="red", label="{int(graph.edge_bytes[e])} B"]'
            style = tensor if constraints.edge_kept[e] else ' [style=dashed, color="gray"]'
        lines.append(f"n{s} -> n{d}{style};")
    return lines


EXPORTERS = {
    "json": Exporter(document(lambda placement, _: placement.to_json()), takes_copies=True),
    "csv": Exporter(document(csv_text)),
    "dot": Exporter(document(dot_text), needs_model=True),
}
