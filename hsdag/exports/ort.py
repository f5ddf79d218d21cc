"""Export format ort: the ONNX model that was placed, with its nodes annotated for ONNX Runtime's partitioner.

ONNX Runtime reads ``layer_ann`` in a node's metadata; the session option ``session.layer_assignment_settings`` says
which device takes which annotation.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hsdag.base.errors import ModelError, OptionError, install_extra, option
from hsdag.base.files import new_files
from hsdag.exports.base import Exporter, ModelSource, unplaced_clone
from hsdag.ir.graph.build import graph_of
from hsdag.ir.placement.homes import op_devices
from hsdag.ir.placement.placement import Placement

ANNOTATION = "layer_ann"
SETTING = "session.layer_assignment_settings"
DESIGNATORS = {"CPU": "cpu", "GPU": "gpu", "NPU": "npu", "cpu": "cpu", "cuda": "gpu"}
"""ONNX Runtime's name for a kind of device, by OpenVINO's plugin or torch's device type."""

MOST_NAMED = 5
"""Name at most this many unmapped nodes in a message."""


def write(placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
    """Write FILE.onnx and FILE.json with the session option, and FILE.onnx.data if the weights are in a separate file.

    ``source.path`` must be the ONNX model. Raises OptionError if it is not, and for device names that ONNX Runtime
    cannot read.
    """
    setting = layer_assignment(placement)
    path = source.path
    if path is None or path.suffix != ".onnx":
        model = path or "a model in memory"
        raise OptionError(
            f"{option('format')} ort annotates an ONNX model: name the .onnx file that was placed, not {model}"
        )
    network = _loaded(path)
    unmapped = annotate(network.graph, device_by_tensor(placement, source))
    if unmapped:
        named = ", ".join(repr(name) for name in unmapped[:MOST_NAMED]) + ", ..." * (len(unmapped) > MOST_NAMED)
        source.tell(
            f"{len(unmapped)} of {len(network.graph.node)} ONNX nodes have no op in OpenVINO's model ({named}): "
            "they go with the nodes around them"
        )
    return _write(network, {SETTING: setting, "not_mapped": unmapped}, path, out_path)


def layer_assignment(placement: Placement) -> str:
    """Return the value of the session option: for each device its annotations, which are names compared in full.

    Raises OptionError for names of devices that ONNX Runtime cannot read, and for kinds of device that it does not
    have.
    """
    annotations: dict[str, list[str]] = {}
    for device in placement.devices:
        if device.name in placement.used_devices:
            if re.search(r"[(),;=]|^\s|\s$", device.name):
                raise OptionError(f"ONNX Runtime cannot read a device's name with any of '(),;=': {device.name!r}")
            kind, _, number = device.plugin.replace(":", ".").partition(".")  # gpu:1 is GPU.1 and cuda:1, npu is NPU
            if kind not in DESIGNATORS:
                raise OptionError(f"ONNX Runtime has no name for device {device.name!r} over {device.plugin!r}")
            of_gpu = f":{number}" if number and DESIGNATORS[kind] == "gpu" else ""
            annotations.setdefault(f"{DESIGNATORS[kind]}{of_gpu}", []).append(f"={device.name}")
    return "; ".join(f"{designator}({', '.join(names)})" for designator, names in annotations.items())


def device_by_tensor(placement: Placement, source: ModelSource) -> dict[str, str]:
    """Return the device of the op that produces each tensor, by tensor name; OpenVINO keeps ONNX's names."""
    assert source.model is not None
    model = unplaced_clone(placement, source.model)
    ops = zip(model.get_ordered_ops(), op_devices(placement, graph_of(model)), strict=True)
    made = [(node, device) for node, device in ops if node.get_type_name() != "Result"]
    return {name: device for node, device in made for port in node.outputs() for name in port.get_names()}


def annotate(graph: Any, devices: dict[str, str]) -> list[str]:
    """Annotate the nodes of an ONNX graph; return the names of nodes without a counterpart in OpenVINO's model.

    Those get the device of a node whose output they read, if there is one.
    """
    unmapped: list[str] = []
    made_on: dict[str, str] = {}
    for node in graph.node:  # in topological order
        device = next((devices[name] for name in node.output if name in devices), None)
        if device is None:
            unmapped.append(node.name or next(iter(node.output), node.op_type))
            device = next((made_on[name] for name in node.input if name in made_on), None)
        if device is not None:
            made_on.update(dict.fromkeys(node.output, device))
            entry = next((item for item in node.metadata_props if item.key == ANNOTATION), None)
            entry = node.metadata_props.add() if entry is None else entry
            entry.key, entry.value = ANNOTATION, device
    return unmapped


def _loaded(path: Path) -> Any:
    """Load an ONNX model with its weights. Raises ModelError for a file that cannot be read."""
    try:
        import onnx
    except ImportError as error:
        raise OptionError(f"{option('format')} ort needs the package onnx; {install_extra('onnx')}") from error
    try:
        return onnx.load(path)
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"{path} cannot be read as ONNX: {error}") from error


def _write(network: Any, document: dict[str, Any], source: Path, out_path: Path) -> list[Path]:
    """Write all files or none, and return them, the model first. Raises OutputError."""
    import onnx

    skeleton = onnx.load(source, load_external_data=False)
    is_outside = any(onnx.external_data_helper.uses_external_data(tensor) for tensor in skeleton.graph.initializer)
    data = f"{out_path.stem}.onnx.data"
    with new_files(out_path) as folder:
        onnx.save(network, folder / out_path.name, save_as_external_data=is_outside, location=data)
        (folder / f"{out_path.stem}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        written = sorted(folder.iterdir(), key=lambda path: path.suffix != ".onnx")
    return [out_path.with_name(path.name) for path in written]


EXPORTERS = {"ort": Exporter(write, needs_model=True, suffixes=(".onnx",), beside=(".json", ".onnx.data"))}
