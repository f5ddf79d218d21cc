"""Format ovms: the parts of a placed model in OpenVINO Model Server's repository layout, joined by a DAG pipeline."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, final

import openvino as ov

from hsdag.exports.base import Exporter, ModelSource
from hsdag.ir.errors import OptionError
from hsdag.ir.files import new_folder
from hsdag.ir.placement.parts import Part, PlacedParts, TensorSource
from hsdag.ir.placement.placement import Placement

CONFIG = "config.json"
REQUEST = "request"
"""The node of a pipeline whose data items are the pipeline's inputs."""


@final
class OvmsExporter(Exporter):
    """A folder with ``config.json``, ``MODEL_part_000/1/model.xml`` and so on, and the placement itself.

    ``ovms --config_path FOLDER/config.json`` serves the pipeline under the model's name.
    """

    needs_model = True

    def write(self, placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
        """Write a new folder. Raises OptionError for a model that no pipeline of Model Server can run."""
        placed = source.parts(placement)
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


EXPORTER = OvmsExporter()
