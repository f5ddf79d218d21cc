"""``hsdag report RUN --explorer DIR``: a graph and what is known of its nodes, as files that Model Explorer opens.

The forms of its documents are those of ``graph_builder`` and ``node_data_builder`` of the package
ai-edge-model-explorer, which is not needed to write them.

Legend: N ops, E edges, D devices.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsdag.ir.files import make_folder, write_atomically
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, FloatArray, IntArray
from hsdag.runtime.measuring.profile import LinkProfile

if TYPE_CHECKING:
    from hsdag.reporting.graph import PlacedGraph

Document = dict[str, Any]

FILLS = ("#a6cee3", "#fdbf6f", "#b2df8a", "#cab2d6", "#fb9a99", "#ffff99")
"""One per device, in the order of the devices; they repeat after the sixth. Dark text can be read on each."""
COLD, HOT = "#fff7ec", "#d7301f"
"""The ends of the scale of times."""


def write_explorer(placed: PlacedGraph, links: LinkProfile | None, folder: Path) -> list[Path]:
    """Write the graph and the data of its nodes to a folder, which is made where it is missing; the graph in front.

    Raises OutputError where a file cannot be written.
    """
    name = placed.graph.name or "model"
    documents: dict[str, Document | list[Document]] = {_stem(name): [graph_document(placed.graph, name)]}
    documents.update(node_data(placed, links))
    make_folder(folder)
    files = [folder / f"{stem}.json" for stem in documents]
    for path, document in zip(files, documents.values(), strict=True):
        write_atomically(path, (json.dumps(document) + "\n").encode())
    return files


def how_to_open(files: Sequence[Path]) -> str:
    """A sentence with the command that opens what ``write_explorer`` wrote."""
    graph, *data = (shlex.quote(str(path)) for path in files)
    shown = f" --node_data_paths {','.join(data)}" if data else ""
    return f"Open it with model-explorer {graph}{shown} (pip install hsdag[explorer])."


def node_data(placed: PlacedGraph, links: LinkProfile | None) -> dict[str, Document]:
    """By what they say, the data of nodes: devices, parts and transfers where the model is placed, and known times."""
    graph, found = placed.graph, {}
    if (placed.device >= 0).all():
        found["device"] = label_data(graph, placed.devices, placed.device)
        names = [f"{placed.group_kind} {k}" for k in range(int(placed.group.max(initial=-1)) + 1)]
        found[_stem(placed.group_kind)] = label_data(graph, names, placed.group)
        cost, reads = received(graph, placed.device, colocate(graph).edge_kept, links)
        unit, scale = ("bytes", 1.0) if links is None else ("ms", 1e3)
        found[f"transfers_{unit}"] = number_data(graph, scale * cost, reads)
    for d, device in enumerate(placed.devices):
        known = ~np.isnan(placed.time_s[:, d])
        if known.any():
            found[_stem(f"ms_on_{device}")] = number_data(graph, 1e3 * placed.time_s[:, d], known)
    return found


def graph_document(graph: ComputationGraph, name: str) -> Document:
    """The graph under an id; a node's id is the op's name, its layer what stands before the name's last ``/``."""
    incoming: list[list[Document]] = [[] for _ in range(graph.num_ops)]
    columns = (graph.edge_src, graph.edge_dst, graph.edge_src_port, graph.edge_dst_port)
    for s, d, out, port in zip(*(column.tolist() for column in columns), strict=True):
        edge = {"sourceNodeId": graph.op_names[s], "sourceNodeOutputId": str(out), "targetNodeInputId": str(port)}
        incoming[d].append(edge)
    nodes = []
    for v, op_name in enumerate(graph.op_names):
        kind, shape = graph.element_types[v], ",".join(map(str, graph.shape_of(v)))
        tensors = [f"{kind}[{shape}]"] if kind else []
        nodes.append(
            {
                "id": op_name,
                "label": graph.op_types[v],
                "namespace": layer_of(op_name),
                "attrs": [{"key": "name", "value": op_name}],
                "incomingEdges": incoming[v],
                "outputsMetadata": [
                    {"id": str(k), "attrs": [{"key": "tensor_shape", "value": tensor}]}
                    for k, tensor in enumerate(tensors)
                ],
            }
        )
    return {"id": name, "nodes": nodes}


def layer_of(name: str) -> str:
    """The layers of an op by its name, ``a/b`` for ``a/b/c``; Model Explorer would split a layer's name at ``;``."""
    return "/".join(filter(None, (part.strip() for part in name.replace(";", ",").split("/")[:-1])))


def _stem(name: str) -> str:
    """A name as that of a file."""
    return re.sub(r"[^\w.-]", "_", name)


def label_data(graph: ComputationGraph, names: Sequence[str], label: IntArray) -> Document:
    """Node data: the name of each op's label [N], none where it is negative, in a colour for each."""
    results = {
        graph.op_names[v]: {"value": names[k], "bgColor": FILLS[k % len(FILLS)], "textColor": "#000000"}
        for v, k in enumerate(label.tolist())
        if k >= 0
    }
    return {"results": results, "showExpandedSummaryOnGroupNode": True}


def number_data(graph: ComputationGraph, values: FloatArray, known: BoolArray) -> Document:
    """Node data: the number of each op [N] that is ``known`` [N], on a scale of colours."""
    results = {graph.op_names[v]: {"value": float(values[v])} for v in np.flatnonzero(known).tolist()}
    gradient = [
        {"stop": 0, "bgColor": COLD, "textColor": "#000000"},
        {"stop": 1, "bgColor": HOT, "textColor": "#000000"},
    ]
    return {"results": results, "gradient": gradient}


def received(
    graph: ComputationGraph, device: IntArray, kept: BoolArray, links: LinkProfile | None
) -> tuple[FloatArray, BoolArray]:
    """[N] what it takes to bring each op what it reads on other devices, and which ops [N] read there.

    In seconds, or in bytes where no links were measured. ``device`` [N]; edges that are not ``kept`` [E] copy their
    producer. A tensor counts once for an op that reads it twice.
    """
    total, reads = np.zeros(graph.num_ops), np.zeros(graph.num_ops, dtype=np.bool_)
    seen: set[tuple[int, int, int]] = set()
    for e in np.flatnonzero(kept & (device[graph.edge_src] != device[graph.edge_dst])).tolist():
        s, d, size = int(graph.edge_src[e]), int(graph.edge_dst[e]), float(graph.edge_bytes[e])
        if (s, int(graph.edge_src_port[e]), d) in seen:
            continue
        seen.add((s, int(graph.edge_src_port[e]), d))
        reads[d] = True
        if links is not None:
            pair = device[s], device[d]
            size = float(links.latency_s[pair] + size / links.bandwidth_bytes_per_s[pair])
        total[d] += size
    return total, reads
