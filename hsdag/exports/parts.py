"""Formats parts and ovms: every part of a placed model as an IR, and how to join them.

The manifest ("hsdag-parts") says so to any program, ``config.json`` to OpenVINO Model Server.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import openvino as ov
from pydantic import AfterValidator, Field

from hsdag.exports.base import Exporter, ModelSource
from hsdag.ir.errors import OptionError
from hsdag.ir.files import new_folder, parse_record, read_text
from hsdag.ir.placement.placement import ModelRecord, Placement, Record
from hsdag.runtime.executor.placed_parts import Part, PlacedParts, TensorSource, placed_parts
from hsdag.runtime.objectives import find_objective

MANIFEST = "manifest.json"
"""The name of the file in its folder."""
CONFIG = "config.json"
REQUEST = "request"
"""The node of a pipeline whose data items are the pipeline's inputs."""


def _plain(name: str) -> str:
    if name in ("", ".", "..") or any(c in name for c in "/\\\0"):
        raise ValueError(f"the name of a file in the same folder is expected, not {name!r}")
    return name


_FileName = Annotated[str, AfterValidator(_plain)]


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
    files = (out_path / name for record in records for name in (record.xml, record.bin))
    return [out_path / MANIFEST, *files]


def _placed(placement: Placement, source: ModelSource) -> PlacedParts:
    assert source.model is not None
    return placed_parts(source.model, placement, by_load=find_objective(placement.objective).is_steady)


def _written(part: Part, xml: Path) -> PartRecord:
    """Write the files of a part; its record."""
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

    ``ovms --config_path FOLDER/config.json`` serves the parts, joined by a DAG pipeline, under the model's name. Raises
    OptionError for a model that no pipeline of Model Server can run.
    """
    placed = _placed(placement, source)
    check_pipeline(placed)
    name = re.sub(r"[^\w.-]", "_", placement.model.name, flags=re.ASCII) or "model"
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
    with new_folder(out_path, "ovms") as folder:
        for part, part_name in named:
            version = folder / part_name / "1"
            version.mkdir(parents=True)
            ov.save_model(part.model, version / "model.xml", compress_to_fp16=False)
        (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        (folder / "placement.json").write_text(placement.to_json(), encoding="utf-8")
    files = (out_path / part_name / "1" / f"model.{kind}" for part_name in names for kind in ("xml", "bin"))
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


EXPORTERS = {"parts": Exporter(write_parts, needs_model=True), "ovms": Exporter(write_pipeline, needs_model=True)}
