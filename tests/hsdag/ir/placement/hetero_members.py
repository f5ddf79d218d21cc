"""The submodels that HETERO makes of a placed model, member by member, to compare ``SubmodelCollector`` with."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import openvino as ov

from hsdag.ir.graph.computation_graph import IntArray
from hsdag.ir.placement.prepared import PreparedModel

DRAWN = re.compile(r'label="op(\d+)\\n.*?\\nsubgraph=(\d+)\\n')
"""A node of the drawing that HETERO makes where OPENVINO_HETERO_VISUALIZE is set."""


def actual_submodels(
    core: ov.Core, prepared: PreparedModel, devices: Sequence[str], properties: Mapping[str, Any] | None = None
) -> tuple[IntArray, int]:
    """[N] the submodel of every op on the device of its name [N], and how many submodels were compiled.

    It is -1 for ops that have no node of their own, for Parameters and for constants. Submodels of nothing but the
    decompression of a constant are not counted. Changes the working directory and the environment while the model is
    compiled.
    """
    model = prepared.place(devices).clone()
    model.set_friendly_name("model")
    for k, node in enumerate(model.get_ordered_ops()):
        node.set_friendly_name(f"op{k}")
    target = "HETERO:" + ",".join(sorted(set(devices)))
    drawing = mock.patch.dict(os.environ, {"OPENVINO_HETERO_VISUALIZE": "1"})
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), drawing:
        compiled = core.compile_model(model, target, dict(properties or {}))
        text = Path("hetero_subgraphs_model.dot").read_text()
    found = np.full(prepared.graph.num_ops, -1, dtype=np.int64)
    drawn = [(int(k), int(submodel)) for k, submodel in DRAWN.findall(text)]
    for k, submodel in drawn:
        if prepared.op[k] == prepared.home[k]:
            found[prepared.op[k]] = submodel
    uncounted = {submodel for _, submodel in drawn} - set(found.tolist())
    return found, int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")) - len(uncounted)


def same_members(one: IntArray, other: IntArray) -> bool:
    """Whether two splits agree on all ops that both number."""
    both = (one >= 0) & (other >= 0)
    pairs = set(zip(one[both].tolist(), other[both].tolist(), strict=True))
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
