"""The adapter in the real Model Explorer: loaded, found by the file's ending, and converted as its server does it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.reader import load_model
from hsdag.reporting.explorer import label_data

pytestmark = pytest.mark.filterwarnings("ignore")  # of the package under test
REASON = "needs Model Explorer: pip install 'hsdag[explorer]'"


@pytest.fixture(scope="module")
def manager() -> Any:
    """Model Explorer's own loader of extensions, called as its command line calls it."""
    loader = pytest.importorskip("model_explorer.extension_manager", reason=REASON)
    found = loader.ExtensionManager(["hsdag.integrations.model_explorer"])
    found.load_extensions()
    return found


def opened(manager: Any, path: Path) -> list[dict[str, Any]]:
    """The graphs that the server sends to the page."""
    (extension,) = (e for e in manager.get_extensions_metadata() if e["fileExts"] == ["xml"])
    command = {"extensionId": extension["id"], "cmdId": "convert", "modelPath": str(path), "settings": {}}
    graphs: list[dict[str, Any]] = json.loads(json.dumps(manager.run_cmd(command)))["graphs"]
    return graphs


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """An If with two bodies, names with markup and marks, a small constant and a large one."""
    x, choice = op.parameter([1, 4], np.float32, name="in/<b>x</b>;y"), op.parameter([], bool, name="choice")
    inside = [op.parameter([1, 4], np.float32, name=name) for name in ("a", "b")]
    results = [op.result(op.relu(inside[0], name="body/relu")), op.result(op.tanh(inside[1], name="body/tanh"))]
    either = op.if_op(choice)
    either.set_then_body(ov.Model([results[0]], [inside[0]], "then"))
    either.set_else_body(ov.Model([results[1]], [inside[1]], "else"))
    either.set_input(x.output(0), *inside)
    out = either.set_output(*results)
    either.set_friendly_name("outer;1/if")
    small = op.constant(np.array([1, 2, 3, 4], np.float32), name="small")
    large = op.constant(np.full((4, 64), 0.5, np.float32), name="large")
    product = op.matmul(op.add(out, small, name="outer;1/sum"), large, transpose_a=False, transpose_b=False)
    ov.save_model(ov.Model([op.result(product)], [x, choice], "odd"), tmp_path / "odd.xml", compress_to_fp16=False)
    return tmp_path / "odd.xml"


def test_nodes_and_edges_are_those_of_the_model(manager: Any, odd: Path) -> None:
    (graph, *_) = opened(manager, odd)
    model = graph_of(load_model(odd))
    assert graph["id"] == "odd"
    assert [(node["id"], node["label"]) for node in graph["nodes"]] == list(
        zip(model.op_names, model.op_types, strict=True)
    )
    edges = {(e["sourceNodeId"], n["id"], e["targetNodeInputId"]) for n in graph["nodes"] for e in n["incomingEdges"]}
    assert ("in/<b>x</b>;y", "outer;1/if", "1") in edges
    assert len(edges) == model.num_edges
    by_id = {node["id"]: node for node in graph["nodes"]}
    assert by_id["outer;1/sum"]["namespace"] == "outer,1"
    assert by_id["outer;1/sum"]["outputsMetadata"][0]["attrs"] == [{"key": "tensor_shape", "value": "f32[1,4]"}]


def test_bodies_are_graphs_that_their_op_leads_to(manager: Any, odd: Path) -> None:
    graphs = {graph["id"]: graph for graph in opened(manager, odd)}
    (either,) = (node for node in graphs["odd"]["nodes"] if node["label"] == "If")
    assert either["subgraphIds"] == ["odd/outer;1/if/then", "odd/outer;1/if/else"]
    assert set(graphs) == {"odd", *either["subgraphIds"]}
    labels = [{node["label"] for node in graphs[key]["nodes"]} for key in either["subgraphIds"]]
    assert labels == [{"Parameter", "Relu", "Result"}, {"Parameter", "Tanh", "Result"}]


def test_small_constants_show_their_values_and_weights_do_not(manager: Any, odd: Path) -> None:
    by_id = {node["id"]: node for node in opened(manager, odd)[0]["nodes"]}
    assert {"key": "value", "value": "[1.0, 2.0, 3.0, 4.0]"} in by_id["small"]["attrs"]
    assert "0.5" not in json.dumps(by_id["large"])


def test_node_data_are_what_model_explorer_itself_would_write(manager: Any, odd: Path) -> None:
    builder = pytest.importorskip("model_explorer.node_data_builder", reason=REASON)
    graph = graph_of(load_model(odd))
    data = label_data(graph, ["FAST", "SLOW"], np.arange(graph.num_ops) % 2)
    results = {key: builder.NodeDataResult(**result) for key, result in data["results"].items()}
    written = json.loads(builder.GraphNodeData(**{**data, "results": results}).to_json_string())
    assert {key: written[key] for key in data} == data
    assert set(results) == {node["id"] for node in opened(manager, odd)[0]["nodes"]}


def test_graphs_survive_model_explorers_own_classes(manager: Any, odd: Path) -> None:
    from hsdag.integrations.model_explorer.main import as_graph, graph_documents
    from hsdag.ir.graph.reader import read_model_file

    for document in graph_documents(read_model_file(odd), "odd"):
        kept = asdict(as_graph(document))
        for node, found in zip(document["nodes"], kept["nodes"], strict=True):
            assert {key: found[key] for key in node} == node


def test_a_file_that_is_no_ir_is_answered_with_one_line(manager: Any, tmp_path: Path) -> None:
    from hsdag.ir.errors import ModelError

    (tmp_path / "bad.xml").write_text("<html></html>")
    with pytest.raises(ModelError, match=r"bad\.xml is not an OpenVINO IR"):
        opened(manager, tmp_path / "bad.xml")
