"""Formats parts and ovms: every part of a placed model as an IR, and how to join them.

The manifest ("hsdag-parts") says so to any program, ``config.json`` to OpenVINO Model Server.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import openvino as ov
from pydantic import Field

from hsdag.exports.base import Exporter, ModelSource, unplaced_clone
from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import OptionError
from hsdag.ir.files import new_folder, parse_record, read_text
from hsdag.ir.graph.build import graph_of, name_uniquely, ordered_ops
from hsdag.ir.graph.reader import input_name
from hsdag.ir.placement.divided import divided
from hsdag.ir.placement.placement import ModelRecord, Placement, Record
from hsdag.runtime.executor.cut import MODEL_INPUT, Cut, Tensor
from hsdag.runtime.executor.merging import plan_cut
from hsdag.runtime.executor.openvino_backend import Submodel, build_submodels
from hsdag.runtime.machine.devices import in_bf16
from hsdag.runtime.objectives import find_objective

MANIFEST, CONFIG = "manifest.json", "config.json"
REQUEST = "request"
"""The node of a pipeline whose data items are the pipeline's inputs."""

_FileName = Annotated[str, Field(pattern=r"^[^/\\\x00]*[^/\\\x00.][^/\\\x00]*$")]
"""Of a file in the same folder."""


class TensorRecord(Record):
    """A named tensor: its shape with null for a dynamic dimension, or null for a dynamic rank, and OpenVINO's type."""

    name: str
    shape: tuple[int | None, ...] | None
    type: str

    @staticmethod
    def of(port: Any, name: str) -> TensorRecord:
        """The record of a port of a model."""
        shape = port.get_partial_shape()
        sizes = None
        if shape.rank.is_static:
            sizes = tuple(None if size.is_dynamic else size.get_length() for size in shape)
        return TensorRecord(name=name, shape=sizes, type=port.get_element_type().get_type_name())


class TensorSource(Record):
    """Where a tensor comes from: output ``name`` of part number ``part``, or the model's input ``name``."""

    part: int | None
    """None where the caller gives it."""
    name: str


class PartInput(TensorRecord):
    """An input of a part and what it reads."""

    source: TensorSource


class PartRecord(Record):
    """A part: its files with their digests, its device, what it reads and hands out, and the ops that it computes.

    Files are plain names: they lie beside the manifest.
    """

    xml: _FileName
    bin: _FileName
    sha256: dict[_FileName, str]
    device: str
    plugin: str
    properties: dict[str, str]
    inputs: tuple[PartInput, ...]
    outputs: tuple[TensorRecord, ...]
    ops: tuple[str, ...]
    copies: tuple[str, ...]
    has_state: bool


class PartsManifest(Record):
    """Parts in an order in which they can run, and the placement that they were cut by."""

    format: Literal["hsdag-parts"] = "hsdag-parts"
    version: Literal[1] = 1
    model: ModelRecord
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[PartInput, ...]
    parts: tuple[PartRecord, ...] = Field(min_length=1)
    placement: Placement

    @staticmethod
    def load(path: str | Path) -> PartsManifest:
        """Read a manifest, or that of a folder. Raises FileFormatError when it is missing, or no manifest."""
        file = Path(path) / MANIFEST if Path(path).is_dir() else Path(path)
        return parse_record(PartsManifest, read_text(file), str(file))


@dataclass(frozen=True, eq=False)
class Part:
    """A convex piece of a model that runs on one device.

    Every input and output of ``model`` has one name; ``sources`` says by the name of an input what it reads. ``ops``
    are the ops placed on the device that the part computes, ``copies`` those placed elsewhere and computed here
    too, all by their friendly names. A part that ``has_state`` keeps variables between inferences.
    """

    model: ov.Model
    device: DeviceSpec
    sources: Mapping[str, TensorSource]
    ops: tuple[str, ...]
    copies: tuple[str, ...] = ()
    has_state: bool = False


@dataclass(frozen=True, eq=False)
class PlacedParts:
    """Parts in an order in which they can run; by name, the model's inputs that are read, and all its outputs.

    With every input and output comes its port in the whole model.
    """

    name: str
    parts: tuple[Part, ...]
    inputs: Mapping[str, ov.Output]
    outputs: Mapping[str, tuple[ov.Output, TensorSource]]


def placed_parts(model: ov.Model, placement: Placement, *, by_load: bool = False) -> PlacedParts:
    """The parts of a placed model, cut as ``compile_placed`` cuts it; ``model`` is not changed.

    What goes from an input of the model straight to an output is no part: the input feeds that output. Raises
    PlacementError when the placement is for another model, or has too many parts.
    """
    placement.check_openvino()
    model, placement = divided(placement.fixed(model), placement)
    graph = graph_of(model)
    devices = [device for device in placement.devices if device.name in placement.used_devices]
    index = {device.name: d for d, device in enumerate(devices)}
    home = np.asarray([index[name] for name in placement.devices_of(graph)], dtype=np.int64)
    cut = plan_cut(graph, home, len(devices), by_load=by_load).cut
    names = _Names(model, cut)
    fed = dict(names.inputs)
    parts: list[Part] = []
    for subgraph, submodel in zip(cut.subgraphs, build_submodels(model, cut, in_bf16(devices)), strict=True):
        sources = names.give(submodel, fed, len(parts))
        if not submodel.model.outputs and not submodel.has_state:
            continue
        own = {graph.op_names[v]: bool(home[v] == subgraph.device) for v in subgraph.ops}
        names.restore(submodel.model, set(own))
        inside = {node.get_friendly_name() for node in submodel.model.get_ordered_ops()}
        ops, copies = (tuple(op for op in own if own[op] is is_own and op in inside) for is_own in (True, False))
        parts.append(Part(submodel.model, devices[subgraph.device], sources, ops, copies, submodel.has_state))
    outputs = {name: (port, fed[tensor]) for name, (port, tensor) in names.outputs.items()}
    every = [origin for _, origin in outputs.values()] + [each for part in parts for each in part.sources.values()]
    read = {each.name for each in every if each.part is None}
    ports = zip(names.inputs.values(), model.inputs, strict=True)
    inputs = {origin.name: port for origin, port in ports if origin.name in read}
    return PlacedParts(graph.name, tuple(parts), inputs, outputs)


class _Names:
    """Names of the tensors of a cut: those of the model for its inputs and outputs, ``OP:PORT`` for all others."""

    def __init__(self, model: ov.Model, cut: Cut) -> None:
        self._graph = cut.graph
        op = {node.get_name(): v for v, (_, node) in enumerate(ordered_ops(model))}
        given = _unique(input_name(port) for port in model.inputs)
        self.inputs = {
            Tensor(MODEL_INPUT, op[node], 0): TensorSource(part=None, name=name)
            for node, name in zip((port.get_node().get_name() for port in model.inputs), given, strict=True)
        }
        tensor_of = dict(cut.results)
        self.outputs = {
            name: (port, tensor_of[op[port.get_node().get_name()]])
            for port, name in zip(model.outputs, _unique(input_name(port) for port in model.outputs), strict=True)
        }

    def give(self, submodel: Submodel, fed: dict[Tensor, TensorSource], part: int) -> dict[str, TensorSource]:
        """Name the inputs and outputs of a submodel, which is number ``part``; what feeds its inputs, by name.

        Adds what it hands out to ``fed``. Takes away the constant that only the executor needs, and outputs that
        repeat an input or another output.
        """
        model = submodel.model
        model.remove_result(model.get_results()[-1])
        sources: dict[str, TensorSource] = {}
        for parameter, tensor in zip(model.get_parameters(), submodel.inputs, strict=True):
            origin = fed[tensor]
            name = origin.name if origin.name not in sources else f"{origin.name}#{len(sources)}"
            sources[name] = origin
            parameter.output(0).get_tensor().set_names({name})
            parameter.set_friendly_name(name)
        given = {port.get_node().get_name() for port in model.inputs}
        for node in model.get_ordered_ops():
            if node.get_name() not in given:
                for port in node.outputs():  # a plugin may pass the name of a tensor inside on to an output
                    port.get_tensor().set_names(set())
        handed: dict[tuple[str, int], TensorSource] = {}
        for result, tensor in zip(model.get_results(), submodel.outputs, strict=True):
            source = result.input_value(0)
            passed = _passed_on(source)
            key = (source.get_node().get_name(), source.get_index())
            if passed.get_node().get_type_name() == "Parameter":
                fed[tensor] = sources[passed.get_any_name()]
                model.remove_result(result)
            elif key in handed:
                fed[tensor] = handed[key]
                model.remove_result(result)
            else:
                name = f"{self._graph.op_names[tensor.op]}:{tensor.port}"
                fed[tensor] = handed[key] = TensorSource(part=part, name=name)
                for port in (source, result.output(0)):  # which share their names unless the source had none
                    port.get_tensor().set_names({fed[tensor].name})
                result.set_friendly_name(f"{fed[tensor].name}/result")
        ports = (port for node in model.get_ordered_ops() for port in node.inputs())
        read = {port.get_source_output().get_node().get_name() for port in ports}
        for parameter in model.get_parameters():
            if parameter.get_name() not in read:
                del sources[parameter.get_friendly_name()]
                model.remove_parameter(parameter)
        return sources

    def restore(self, model: ov.Model, own: set[str]) -> None:
        """Name constants, which bear the numbers of their ops, after the ops; all names are unique then."""
        for node in model.get_ordered_ops():
            number = node.get_friendly_name().partition(".")[0]
            if number.isdecimal() and node.get_friendly_name() not in own:
                node.set_friendly_name(self._graph.op_names[int(number)])
        name_uniquely(model)


def _passed_on(value: ov.Output) -> ov.Output:
    """A value without Converts to the type that they read: for nothing else the CPU plugin may give zeros."""
    node = value.get_node()
    if node.get_type_name() == "Convert" and node.get_input_element_type(0) == node.get_output_element_type(0):
        return _passed_on(node.input_value(0))
    return value


def _unique(names: Iterable[str]) -> list[str]:
    """Every name, and where one occurs again, ``NAME#1`` and so on."""
    found: list[str] = []
    for name in names:
        numbered = (f"{name}#{k}" for k in itertools.count(1))
        found.append(next(free for free in itertools.chain([name], numbered) if free not in found))
    return found


def write_parts(placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
    """A new folder with ``manifest.json``, and ``part_000.xml``, ``part_000.bin`` and so on."""
    placed = _placed(placement, source)
    with new_folder(out_path, "parts") as folder:
        records = tuple(_written(part, folder / f"part_{k:03d}.xml") for k, part in enumerate(placed.parts))
        manifest = PartsManifest(
            model=placement.model,
            inputs=tuple(TensorRecord.of(port, name) for name, port in placed.inputs.items()),
            outputs=tuple(_fed(port, name, origin) for name, (port, origin) in placed.outputs.items()),
            parts=records,
            placement=placement,
        )
        (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return [out_path / MANIFEST, *(out_path / name for record in records for name in (record.xml, record.bin))]


def _placed(placement: Placement, source: ModelSource) -> PlacedParts:
    assert source.model is not None
    return placed_parts(source.model, placement, by_load=find_objective(placement.objective).is_steady)


def _written(part: Part, xml: Path) -> PartRecord:
    ov.save_model(part.model, xml, compress_to_fp16=False)
    weights = xml.with_suffix(".bin")
    return PartRecord(
        xml=xml.name,
        bin=weights.name,
        sha256={file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (xml, weights)},
        device=part.device.name,
        plugin=part.device.plugin,
        properties=part.device.properties,
        inputs=tuple(_fed(port, port.get_any_name(), part.sources[port.get_any_name()]) for port in part.model.inputs),
        outputs=tuple(TensorRecord.of(port, port.get_any_name()) for port in part.model.outputs),
        ops=part.ops,
        copies=part.copies,
        has_state=part.has_state,
    )


def _fed(port: ov.Output, name: str, source: TensorSource) -> PartInput:
    return PartInput(**TensorRecord.of(port, name).model_dump(), source=source)


def write_pipeline(placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
    """A new folder with ``config.json``, ``MODEL_part_000/1/model.xml`` and so on, and the placement itself.

    ``ovms --config_path FOLDER/config.json`` serves the parts, joined by a DAG pipeline, under the model's name; copies
    of a whole model are served under a name each. Raises OptionError for a model that no pipeline of Model Server can
    run.
    """
    name = re.sub(r"[^\w.-]", "_", placement.model.name, flags=re.ASCII) or "model"
    if placement.copies:
        return _write_copies(placement, source, out_path, name)
    placed = _placed(placement, source)
    check_pipeline(placed)
    names = [f"{name}_part_{k:03d}" for k in range(len(placed.parts))]
    named = list(zip(placed.parts, names, strict=True))
    config = {
        "model_config_list": [{"config": _model_config(part, part_name)} for part, part_name in named],
        "pipeline_config_list": [
            {
                "name": name,
                "inputs": list(placed.inputs),
                "nodes": [_node(part, part_name, names) for part, part_name in named],
                "outputs": [{output: _data_item(origin, names)} for output, (_, origin) in placed.outputs.items()],
            }
        ],
    }
    return _write_repository(placement, out_path, config, {part_name: part.model for part, part_name in named})


def _write_copies(placement: Placement, source: ModelSource, out_path: Path, name: str) -> list[Path]:
    """The model once, and in ``config.json`` a served model for each copy, NAME_DEVICE, over the same files."""
    assert source.model is not None
    model = unplaced_clone(placement, source.model)
    specs = {device.name: device for device in placement.devices}
    entries = []
    for copy in placement.copies or ():
        if copy.device is None:
            raise OptionError("--format ovms cannot say that a pipeline is beside copies: use json, ir or python")
        device = specs[copy.device]
        given = {"name": f"{name}_{copy.device}", "base_path": name, "target_device": device.plugin}
        properties = {"PERFORMANCE_HINT": "THROUGHPUT", **device.properties}
        entries.append({"config": {**given, "nireq": copy.requests, "plugin_config": properties}})
    return _write_repository(placement, out_path, {"model_config_list": entries}, {name: model})


def _write_repository(
    placement: Placement, out_path: Path, config: Mapping[str, Any], models: Mapping[str, ov.Model]
) -> list[Path]:
    with new_folder(out_path, "ovms") as folder:
        for name, model in models.items():
            (folder / name / "1").mkdir(parents=True)
            ov.save_model(model, folder / name / "1" / "model.xml", compress_to_fp16=False)
        (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        (folder / "placement.json").write_text(placement.to_json(), encoding="utf-8")
    files = (out_path / name / "1" / f"model.{kind}" for name in models for kind in ("xml", "bin"))
    return [out_path / CONFIG, *files, out_path / "placement.json"]


def check_pipeline(placed: PlacedParts) -> None:
    """Raise OptionError for a model that no pipeline of Model Server can run."""
    if any(part.has_state for part in placed.parts):
        raise OptionError(
            f"model {placed.name!r} keeps state between inferences, and Model Server's pipelines do not: "
            "use --format parts or python"
        )
    if not placed.inputs:
        raise OptionError(f"model {placed.name!r} reads no input, and Model Server's pipelines begin with a request")
    for part in placed.parts:
        for port in (*part.model.inputs, *part.model.outputs):
            if port.get_partial_shape().rank.is_dynamic:
                raise OptionError(
                    f"tensor {port.get_any_name()!r} between parts has a dynamic rank, and Model Server takes none: "
                    "fix the shapes of the model, or use --format parts"
                )


def _model_config(part: Part, name: str) -> dict[str, Any]:
    """The entry of a part: its folder, which is relative to the configuration, and its device."""
    config = {"name": name, "base_path": name, "target_device": part.device.plugin}
    return {**config, "plugin_config": dict(part.device.properties)} if part.device.properties else config


def _node(part: Part, name: str, names: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "model_name": name,
        "type": "DL model",
        "inputs": [{port: _data_item(source, names)} for port, source in part.sources.items()],
        "outputs": [{"data_item": port.get_any_name(), "alias": port.get_any_name()} for port in part.model.outputs],
    }


def _data_item(source: TensorSource, names: list[str]) -> dict[str, str]:
    return {"node_name": REQUEST if source.part is None else names[source.part], "data_item": source.name}


EXPORTERS = {
    "parts": Exporter(write_parts, needs_model=True),
    "ovms": Exporter(write_pipeline, needs_model=True, takes_copies=True),
}
