"""Exports read back: the device of every op that an artefact of each format tells, and what its parts compute."""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from hsdag.ir.placement.placement import Placement
from hsdag.runtime.executor.cut import JOIN_TYPES

Place = Callable[[ov.Model, Callable[[int], str]], Placement]
Alternating = Callable[[ov.Model], Placement]
Devices = dict[str, str]
"""By the friendly name of an op: the name of its device."""

FLOATING = frozenset({"Constant", "Parameter", "Result", "Convert", "Multiply", "Subtract", "FakeQuantize"})
"""Types of ops that follow their readers, decompressions of weights among them."""

COPY = re.compile(r"(?P<op>.*)/hsdag-copy@(?P<reader>.*?)(?:#\d+)?", re.DOTALL)


def placed_by(placement: Placement) -> Devices:
    return {placement.name_of(op): device for op, device in placement.affinity.items()}


def read_back(kind: str, file: Path, placement: Placement) -> Devices:
    """The devices that ``file``, the first one of an export, tells; ``placement`` only gives OpenVINO's names."""
    return READERS[kind](file, {device.openvino_name: device.name for device in placement.devices})


def _json(file: Path, names: Devices) -> Devices:
    return placed_by(Placement.load(file))


def _ir(file: Path, names: Devices) -> Devices:
    return placed_by(Placement.from_model(ov.Core().read_model(file)))


def _csv(file: Path, names: Devices) -> Devices:
    with file.open(newline="", encoding="utf-8") as rows:
        return {row["op"]: row["device"] for row in csv.DictReader(rows)}


def _affinity(file: Path, names: Devices) -> Devices:
    return {op: names[device] for op, device in json.loads(file.read_text(encoding="utf-8")).items()}


def _without_copies(deployed: Mapping[str, str], names: Devices) -> Devices:
    """Of a map with copies of constants: ops that run; a copy is on the device of its reader."""
    found = {op: names[device] for op, device in deployed.items() if not COPY.fullmatch(op)}
    for name, device in deployed.items():
        match = COPY.fullmatch(name)
        assert match is None or found.get(match["reader"], names[device]) == names[device]
    return found


def _python(file: Path, names: Devices) -> Devices:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id == "AFFINITY":
                return _without_copies(ast.literal_eval(node.value), names)
            if node.targets[0].id == "PLACEMENT":
                return placed_by(Placement.model_validate(ast.literal_eval(node.value)))
    raise AssertionError("the script holds no placement")


def _cpp(file: Path, names: Devices) -> Devices:
    text = file.read_text(encoding="utf-8")
    devices = re.findall(r'\{("(?:[^"\\]|\\.)*"), "', text[text.index("kDevices = ") :].splitlines()[0])
    rows = re.findall(r'^    \{("(?:[^"\\]|\\.)*"), (\d+)\},$', text, re.MULTILINE)
    literal: Callable[[str], str] = lambda shown: ast.literal_eval("b" + shown).decode()  # noqa: E731
    return _without_copies({literal(op): literal(devices[int(d)]) for op, d in rows}, names)


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


def _parts(file: Path, names: Devices) -> Devices:
    """What the files hold must be what the manifest says."""
    manifest = json.loads(file.read_text(encoding="utf-8"))
    found: Devices = {}
    for part in manifest["parts"]:
        inside = {node.get_friendly_name() for node in ov.Core().read_model(file.parent / part["xml"]).get_ops()}
        assert {*part["ops"], *part["copies"]} <= inside
        found.update(dict.fromkeys(part["ops"], part["device"]))
    whole = placed_by(Placement.model_validate(manifest["placement"]))
    assert found.items() <= whole.items()
    return whole


def _ovms(file: Path, names: Devices) -> Devices:
    """An op must lie in a model whose device has the plugin and properties of the op's; joins are computed anywhere."""
    whole = Placement.load(file.parent / "placement.json")
    devices, placed = {device.name: device for device in whole.devices}, placed_by(whole)
    for entry in json.loads(file.read_text(encoding="utf-8"))["model_config_list"]:
        config = entry["config"]
        model = ov.Core().read_model(file.parent / config["base_path"] / "1" / "model.xml")
        for node in model.get_ops():
            name, is_own = node.get_friendly_name(), node.get_type_name() not in FLOATING | JOIN_TYPES
            if is_own and name in placed:
                device = devices[placed[name]]
                assert (config["target_device"], config.get("plugin_config", {})) == (device.plugin, device.properties)
    return placed


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


READERS = {
    "affinity": _affinity, "cpp": _cpp, "csv": _csv, "dot": _dot, "ir": _ir, "json": _json, "ort": _ort,
    "ovms": _ovms, "parts": _parts, "python": _python,
}  # fmt: skip


def random_inputs(model: ov.Model) -> dict[str, NDArray[np.float32]]:
    """By the names of a model's inputs."""
    rng = np.random.default_rng(0)
    return {port.get_any_name(): rng.standard_normal(port.get_shape()).astype(np.float32) for port in model.inputs}


def run_parts(manifest_file: Path, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """What the parts of a manifest compute, by plain OpenVINO, in the order of the model's outputs."""
    manifest, core = json.loads(manifest_file.read_text(encoding="utf-8")), ov.Core()
    tensors: dict[tuple[int | None, str], NDArray[Any]] = {(None, name): value for name, value in inputs.items()}
    for k, part in enumerate(manifest["parts"]):
        compiled = core.compile_model(manifest_file.parent / part["xml"], part["plugin"], part["properties"])
        results = compiled({port["name"]: _source(tensors, port) for port in part["inputs"]})
        tensors.update({(k, port["name"]): np.array(results[port["name"]]) for port in part["outputs"]})
    return [_source(tensors, port) for port in manifest["outputs"]]


def _source(tensors: Mapping[tuple[int | None, str], NDArray[Any]], port: Mapping[str, Any]) -> NDArray[Any]:
    return tensors[port["source"]["part"], port["source"]["name"]]


def are_equal(found: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]) -> bool:
    """Whether arrays are equal bit by bit."""
    pairs = zip(found, expected, strict=True)
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)
