"""The adapter that Model Explorer loads: an OpenVINO IR as its graphs, those of bodies beside that of the model.

Weights are not loaded into a graph: of constants, those of up to ``MOST_ELEMENTS`` elements show their values.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import openvino as ov
from model_explorer import Adapter, AdapterMetadata, ModelExplorerGraphs
from model_explorer.graph_builder import Graph, GraphNode, IncomingEdge, KeyValue, MetadataItem

from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.reader import read_model_file
from hsdag.reporting.explorer import Document, NodeDetails, graph_document

MOST_ELEMENTS = 16
"""Of constants whose values are shown, as Model Explorer's own adapters have it."""

BODIES = {"If": ("then", "else"), "Loop": ("body",), "TensorIterator": ("body",)}


class OpenVinoAdapter(Adapter):  # type: ignore[misc]
    """Opens .xml files with the .bin beside them."""

    metadata = AdapterMetadata(
        id="hsdag_openvino",
        name="OpenVINO IR (hsdag)",
        description="Opens OpenVINO IR: ops in layers, shapes, attributes, bodies of If, Loop and TensorIterator.",
        source_repo="",
        fileExts=["xml"],
    )

    def convert(self, model_path: str, settings: dict[str, Any]) -> ModelExplorerGraphs:
        """The graphs of a file, the model's in front. Raises ModelError for a file that is no IR."""
        most = int(settings.get("const_element_count_limit", MOST_ELEMENTS))
        model = read_model_file(Path(model_path))
        return {"graphs": [as_graph(document) for document in graph_documents(model, Path(model_path).stem, most)]}


def graph_documents(model: ov.Model, name: str, most_elements: int = MOST_ELEMENTS) -> list[Document]:
    """The graph of a model and those of its bodies, whose ids are ``NAME/OP/then`` and so on."""
    nodes = model.get_ordered_ops()
    graph = graph_of(model)
    bodies: list[Document] = []

    def details(v: int) -> NodeDetails:
        node, ids = nodes[v], []
        for k, part in enumerate(BODIES.get(node.get_type_name(), ())):
            ids.append(f"{name}/{graph.op_names[v]}/{part}")
            bodies.extend(graph_documents(node.get_function(k), ids[-1], most_elements))
        outputs = tuple(f"{p.get_element_type().get_type_name()}{p.get_partial_shape()}" for p in node.outputs())
        return NodeDetails(attributes_of(node, most_elements), outputs, tuple(ids))

    return [graph_document(graph, name, details), *bodies]


def attributes_of(node: ov.Node, most_elements: int) -> dict[str, str]:
    """An op's attributes as texts; of a constant its values where these are few."""
    if node.get_type_name() == "Constant":
        few = prod(node.get_output_shape(0)) <= most_elements
        return {"value": str(node.data.tolist())} if few else {}
    return {key: str(value) for key, value in node.get_attributes().items()}


def as_graph(document: Document) -> Graph:
    """A document as Model Explorer's own objects."""
    nodes = []
    for node in document["nodes"]:
        outputs = [MetadataItem(each["id"], _pairs(each["attrs"])) for each in node["outputsMetadata"]]
        lists = {"attrs": _pairs(node["attrs"]), "outputsMetadata": outputs}
        nodes.append(
            GraphNode(**{**node, **lists, "incomingEdges": [IncomingEdge(**e) for e in node["incomingEdges"]]})
        )
    return Graph(id=document["id"], nodes=nodes)


def _pairs(pairs: list[Document]) -> list[KeyValue]:
    return [KeyValue(**pair) for pair in pairs]
