"""Exports read back, and models to export."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op

from hsdag.ir.placement.placement import Placement

Place = Callable[[ov.Model, Callable[[int], str]], Placement]
Alternating = Callable[[ov.Model], Placement]
Devices = dict[str, str]
"""By the friendly name of an op: the name of its device."""

FLOATING = frozenset({"Constant", "Parameter", "Result", "Convert", "Multiply", "Subtract", "FakeQuantize"})
"""Types of ops that follow their readers, decompressions of weights among them."""

COPY = re.compile(r"(?P<op>.*)/hsdag-copy@(?P<reader>.*?)(?:#\d+)?", re.DOTALL)


def placed_by(placement: Placement) -> Devices:
    return {placement.names.get(op, op): device for op, device in placement.affinity.items()}


def read_back(kind: str, file: Path, placement: Placement) -> Devices:
    """The devices that ``file``, the first one of an export, tells; ``placement`` only gives OpenVINO's names."""
    return READERS[kind](file, {device.openvino_name: device.name for device in placement.devices})


def _json(file: Path, names: Devices) -> Devices:
    return placed_by(Placement.load(file))


def _csv(file: Path, names: Devices) -> Devices:
    with file.open(newline="", encoding="utf-8") as rows:
        return {row["op"]: row["device"] for row in csv.DictReader(rows)}


def _dot(file: Path, names: Devices) -> Devices:
    """Of ops in frames; those drawn as points are copied to their readers."""
    found, device = {}, ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if frame := re.match(r'subgraph cluster_\d+ \{ label="submodel \d+ on (.*), \d+ ops"', line):
            device = frame[1]
        elif node := re.match(r'n\d+ \[label="((?:[^"\\]|\\.)*)", fillcolor', line):
            name = node[1].rsplit("\\n", 1)[0]
            shown = re.sub(r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[1], name)
            found[shown.replace("&amp;", "&")] = device
    return found


def _ort(file: Path, names: Devices) -> Devices:
    """By the names of tensors."""
    import onnx

    nodes = onnx.load(file, load_external_data=False).graph.node
    return {
        tensor: entry.value
        for node in nodes
        for entry in node.metadata_props
        for tensor in node.output
        if entry.key == "layer_ann"
    }


READERS = {"csv": _csv, "dot": _dot, "json": _json, "ort": _ort}


def random_inputs(model: ov.Model) -> dict[str, NDArray[np.float32]]:
    """By the names of a model's inputs."""
    rng = np.random.default_rng(0)
    return {port.get_any_name(): rng.standard_normal(port.get_shape()).astype(np.float32) for port in model.inputs}


def awkward() -> ov.Model:
    """Two outputs of one tensor, inputs that go straight to outputs, one that nobody reads, names with marks."""
    x, y = (op.parameter([1, 4, 6, 6], np.float32, name=name) for name in ("x", "y<&>"))
    unread = op.parameter([3], np.float32, name="unread")
    for parameter in (x, y, unread):
        parameter.output(0).get_tensor().set_names({parameter.get_friendly_name()})
    halves = op.split(op.tanh(x, name="t/1;2,3"), op.constant(1), 2)
    left, right = op.relu(halves.output(0), name="r"), op.sin(halves.output(1), name="s")
    join = op.add(op.concat([left, right], 1, name="c"), y, name="a")
    results = [op.result(join), op.result(join), op.result(y), op.result(op.cos(left))]
    return ov.Model(results, [x, y, unread], 'awkward "model"')
