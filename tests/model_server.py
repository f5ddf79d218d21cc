"""A pipeline of OpenVINO Model Server over plain OpenVINO: its configuration is checked, then run, as documented.

Written from Model Server's pages on configuration and its DAG scheduler; it knows nothing of who wrote the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import openvino as ov
from numpy.typing import NDArray

REQUEST, RESPONSE = "request", "response"
KEYS = {
    "document": {"model_config_list", "pipeline_config_list"},
    "pipeline": {"name", "inputs", "nodes", "outputs"},
    "node": {"name", "model_name", "type", "inputs", "outputs"},
    "source": {"node_name", "data_item"},
}
"""What of the server's configuration concerns models and pipelines of DL nodes without demultiplexers."""


class Pipeline:
    """The only pipeline of a configuration file. Raises AssertionError where the server would refuse it."""

    def __init__(self, config: Path, core: ov.Core | None = None) -> None:
        core = core or ov.Core()
        document = json.loads(config.read_text(encoding="utf-8"))
        assert set(document) == KEYS["document"]
        configs = [entry["config"] for entry in document["model_config_list"]]
        (self.pipeline,) = document["pipeline_config_list"]
        assert set(self.pipeline) == KEYS["pipeline"]
        assert all(set(node) == KEYS["node"] and node["type"] == "DL model" for node in self.pipeline["nodes"])
        self.models = {model["name"]: _compiled(core, config.parent, model) for model in configs}
        self.nodes = {node["name"]: node for node in self.pipeline["nodes"]}
        assert len(self.models) == len(configs)
        assert self.pipeline["name"] not in self.models
        assert len(self.nodes) == len(self.pipeline["nodes"])
        assert not {REQUEST, RESPONSE} & set(self.nodes)
        assert len(set(self.pipeline["inputs"])) == len(self.pipeline["inputs"])
        self.order = self._checked_order()

    def _checked_order(self) -> list[str]:
        """The nodes in topological order: all inputs are fed once by what is there, and all lead to the response."""
        graph = nx.DiGraph()
        for name, node in self.nodes.items():
            compiled = self.models[node["model_name"]]
            fed = [(key, source) for entry in node["inputs"] for key, source in entry.items()]
            assert sorted(key for key, _ in fed) == sorted(port.get_any_name() for port in compiled.inputs)
            assert {o["data_item"] for o in node["outputs"]} <= {p.get_any_name() for p in compiled.outputs}
            for key, source in fed:
                graph.add_edge(source["node_name"], name)
                self._check_fit(compiled.input(key), source)
        for entry in self.pipeline["outputs"]:
            for source in entry.values():
                graph.add_edge(source["node_name"], RESPONSE)
                self._check_fit(None, source)
        assert nx.is_directed_acyclic_graph(graph)
        assert nx.ancestors(graph, RESPONSE) == {REQUEST, *self.nodes}
        return [name for name in nx.topological_sort(graph) if name in self.nodes]

    def _check_fit(self, port: Any, source: Mapping[str, str]) -> None:
        """The source of an input exists; if it is a node, its shape fits and its type is the input's."""
        assert set(source) == KEYS["source"]
        if source["node_name"] == REQUEST:
            assert source["data_item"] in self.pipeline["inputs"]
            return
        node = self.nodes[source["node_name"]]
        (item,) = (o["data_item"] for o in node["outputs"] if o["alias"] == source["data_item"])
        if port is not None:
            output = self.models[node["model_name"]].output(item)
            assert output.get_element_type() == port.get_element_type()
            assert output.get_partial_shape().compatible(port.get_partial_shape())
            assert port.get_partial_shape().rank.is_static

    def infer(self, request: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The response to a request."""
        assert set(request) == set(self.pipeline["inputs"])
        items = {(REQUEST, name): value for name, value in request.items()}
        for name in self.order:
            node = self.nodes[name]
            fed = {key: _item(items, source) for entry in node["inputs"] for key, source in entry.items()}
            results = self.models[node["model_name"]](fed)
            for output in node["outputs"]:
                items[name, output["alias"]] = np.array(results[output["data_item"]])
        return {key: _item(items, source) for entry in self.pipeline["outputs"] for key, source in entry.items()}


def _item(items: Mapping[tuple[str, str], NDArray[Any]], source: Mapping[str, str]) -> NDArray[Any]:
    return items[source["node_name"], source["data_item"]]


def _compiled(core: ov.Core, folder: Path, config: Mapping[str, Any]) -> Any:
    """The newest version of a model, on its device; a relative path counts from the folder of the configuration."""
    versions = (folder / config["base_path"]).iterdir()
    newest = max((version for version in versions if version.name.isdecimal()), key=lambda v: int(v.name))
    (file,) = newest.glob("*.xml")
    return core.compile_model(file, config.get("target_device", "CPU"), config.get("plugin_config", {}))
