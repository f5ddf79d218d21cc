"""Format cpp: a C++17 program that runs the placed model with OpenVINO's C++ API alone."""

from __future__ import annotations

from pathlib import Path
from typing import final

from hsdag.ir.device import PLUGIN_LIBRARIES, DeviceSpec
from hsdag.ir.errors import OptionError
from hsdag.ir.export.base import Exporter, ModelSource, deployed_map, write_ir
from hsdag.ir.placement import Placement, write_atomically

SUFFIXES = (".cpp", ".cc", ".cxx")
PROGRAM = Path(__file__).with_name("program.cpp")
MARK = "// DATA: kDefaultModel, kDevices, kAffinity"
"""The line of the program in whose place a placement's data stands."""


@final
class CppExporter(Exporter):
    """FILE.cpp; with the model at hand also FILE.xml and FILE.bin, the placed model that the program reads."""

    beside = (".xml", ".bin")

    def write(self, placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
        """Write the program and, where the model is at hand, the IR beside it."""
        model = source.model
        if out_path.suffix not in SUFFIXES:
            raise OptionError(f"--format cpp writes a C++ file: end the output's name in .cpp, not {out_path}")
        placement.check_openvino()
        if placement.executor != "hetero" and len(placement.used_devices) > 1:
            raise OptionError(
                f"only placements for HETERO can be exported to C++, and this one is for the {placement.executor} "
                "executor; use --format python"
            )
        placed = None if model is None else placement.apply(model.clone())
        default = f"{placement.model.name}.xml" if placed is None else out_path.with_suffix(".xml").name
        specs = [device.spec() for device in placement.devices if device.name in placement.used_devices]
        ids = {spec.openvino_name: d for d, spec in enumerate(specs)}
        affinity = deployed_map(placement, placed)
        data = [
            f"const char* const kDefaultModel = {literal(default)};",
            f"const std::vector<Device> kDevices = {{{', '.join(_device(spec) for spec in specs)}}};",
            "const Op kAffinity[] = {",
            *(f"    {{{literal(op)}, {ids[device]}}}," for op, device in affinity.items()),
            "};",
        ]
        text = PROGRAM.read_text(encoding="utf-8").replace(MARK, "\n".join(data))
        beside = [] if placed is None else write_ir(placed, out_path.with_suffix(".xml"))
        write_atomically(out_path, text.encode())
        return [out_path, *beside]


def literal(text: str) -> str:
    """A C++ string literal with the UTF-8 bytes of ``text``; all but plain ASCII as three octal digits."""
    shown = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(shown) + '"'


def _device(spec: DeviceSpec) -> str:
    library = PLUGIN_LIBRARIES[spec.plugin.partition(".")[0]] if spec.is_added else ""
    properties = ", ".join(
        f"{{{literal(key)}, std::string({literal(value)})}}" for key, value in spec.properties.items()
    )
    return f"{{{literal(spec.openvino_name)}, {literal(library)}, {{{properties}}}}}"


EXPORTER = CppExporter()
