"""Graph files: a graph comes back as it was, and files that are none are named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hsdag.ir.errors import FileFormatError
from hsdag.ir.graph.build import fingerprint, graph_of
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.graph_file import read_graph_file, write_graph_file
from hsdag.models import build_model


@pytest.fixture(scope="module")
def graph() -> ComputationGraph:
    return graph_of(build_model("tiny_stateful_llama_int4"))


def test_every_column_of_a_graph_comes_back(graph: ComputationGraph, tmp_path: Path) -> None:
    write_graph_file(graph, tmp_path / "graph.json")
    found = read_graph_file(tmp_path / "graph.json")
    for name, column in vars(graph).items():
        if name in ComputationGraph.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(found, name), column, err_msg=name)
    assert fingerprint(found) == fingerprint(graph)


def test_an_edge_that_leaves_the_graph_is_named(graph: ComputationGraph, tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    write_graph_file(graph, path)
    document = json.loads(path.read_text())
    document["edge_dst"][0] = graph.num_ops
    path.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match=r"graph\.json: an edge of graph .* leaves the graph"):
        read_graph_file(path)
