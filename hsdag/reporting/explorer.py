"""``hsdag report RUN --explorer DIR``: a search for Model Explorer, its graph and what is known of its nodes.

Legend: N ops, D devices.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hsdag.drawing.explorer_document import Document, graph_document, label_data, number_data, received
from hsdag.ir.files import make_folder, write_atomically
from hsdag.ir.graph.colocation import colocate
from hsdag.reporting.html.content import PlacedGraph
from hsdag.runtime.measuring.profile import LinkProfile


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


def _stem(name: str) -> str:
    """A name as that of a file."""
    return re.sub(r"[^\w.-]", "_", name)
