"""Format cpp: a C++17 program that runs the placed model with OpenVINO's C++ API alone."""

from __future__ import annotations

from pathlib import Path
from typing import final

import openvino as ov

from hsdag.exports.base import ProgramExporter, added_library, deployed_map, used_specs
from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import OptionError
from hsdag.ir.placement.placement import Placement

PROGRAM = Path(__file__).with_name("program.cpp")
MARK = "// DATA: kDefaultModel, kDevices, kAffinity"
"""The line of the program in whose place a placement's data stands."""


@final
class CppExporter(ProgramExporter):
    """FILE.cpp; with the model at hand also FILE.xml and FILE.bin, the placed model that the program reads."""

    suffixes = (".cpp", ".cc", ".cxx")

    def program(self, placement: Placement, model: ov.Model | None, default: str) -> str:
        """The program. Raises OptionError for a placement that HETERO does not run."""
        if placement.executor != "hetero" and len(placement.used_devices) > 1:
            raise OptionError(
                f"only placements for HETERO can be exported to C++, and this one is for the {placement.executor} "
                "executor; use --format python"
            )
        specs = used_specs(placement)
        ids = {spec.openvino_name: d for d, spec in enumerate(specs)}
        data = [
            f"const char* const kDefaultModel = {literal(default)};",
            f"const std::vector<Device> kDevices = {{{', '.join(_device(spec) for spec in specs)}}};",
            "const Op kAffinity[] = {",
            *(f"    {{{literal(op)}, {ids[device]}}}," for op, device in deployed_map(placement, model).items()),
            "};",
        ]
        return PROGRAM.read_text(encoding="utf-8").replace(MARK, "\n".join(data))


def literal(text: str) -> str:
    """A C++ string literal with the UTF-8 bytes of ``text``; all but plain ASCII as three octal digits."""
    shown = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(shown) + '"'


def _device(spec: DeviceSpec) -> str:
    properties = ", ".join(
        f"{{{literal(key)}, std::string({literal(value)})}}" for key, value in spec.properties.items()
    )
    return f"{{{literal(spec.openvino_name)}, {literal(added_library(spec) or '')}, {{{properties}}}}}"


EXPORTER = CppExporter()
