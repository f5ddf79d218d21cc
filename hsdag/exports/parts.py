"""Format parts: every part of a placed model as an IR, and a manifest that says how to join them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import final

import openvino as ov

from hsdag.exports.base import Exporter, ModelSource
from hsdag.ir.files import new_folder
from hsdag.ir.placement.parts import MANIFEST, Part, PartInput, PartRecord, PartsManifest, TensorRecord, TensorSource
from hsdag.ir.placement.placement import Placement


@final
class PartsExporter(Exporter):
    """A folder with ``manifest.json``, and ``part_000.xml``, ``part_000.bin`` and so on."""

    needs_model = True

    def write(self, placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
        """Write a new folder. Raises OutputError where there is one already."""
        placed = source.parts(placement)
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


EXPORTER = PartsExporter()
