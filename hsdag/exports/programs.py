"""Formats that deploy a placed model: ir, an IR that carries its placement; python and cpp, programs that run it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from pprint import pformat

import openvino as ov

from hsdag.exports.base import Exporter, ModelSource, openvino_names, unplaced_clone
from hsdag.ir.device import PLUGIN_LIBRARIES, DeviceSpec
from hsdag.ir.errors import OptionError
from hsdag.ir.files import write_atomically, write_ir
from hsdag.ir.graph.build import ordered_ops
from hsdag.ir.placement.placement import RT_INFO_PATH, Placement

SCRIPT, PROGRAM = (Path(__file__).with_name(name) for name in ("program.py.in", "program.cpp"))
"""The programs, with the line DATA in whose place a placement's data stands."""

UNDER_HSDAG = '''@cache
def compiled_model():
    """The placed model, whose devices work side by side."""
    return hsdag.compile_model(MODEL, hsdag.Placement.model_validate(PLACEMENT))
'''
"""In a script, in place of what it does for HETERO between two lines COMPILING."""


def write_placed_ir(placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
    """FILE.xml and FILE.bin: the model as it is, with the placement document in its rt_info.

    ``Placement.from_model(model).compile(core, model)`` compiles it as placed.
    """
    assert source.model is not None
    placed = unplaced_clone(placement, source.model)
    placed.set_rt_info(placement.to_json(), RT_INFO_PATH)
    return write_ir(placed, out_path)


def write_python(placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
    """FILE.py, a script and module that needs openvino and numpy alone, or hsdag where its executor runs the placement.

    With the model at hand also FILE.xml and FILE.bin, which the script reads: for HETERO the placed model, else the
    model as it is.
    """
    model = _placed(placement, source)
    head, for_hetero, tail = SCRIPT.read_text(encoding="utf-8").split("# COMPILING\n")
    if not _is_for_openvino(placement):
        text = head.replace("import openvino as ov", "import hsdag") + UNDER_HSDAG + tail
        data = f"PLACEMENT = {pformat(placement.model_dump(exclude_none=True), width=100, sort_dicts=False)}\n"
    else:
        text = head + for_hetero + tail
        devices = ((s.openvino_name, _added_library(s), dict(s.properties)) for s in _used_specs(placement))
        rows = (f"    {device!r},\n" for device in devices)
        map_ = (f"    {op!r}: {device!r},\n" for op, device in _deployed_map(placement, model).items())
        about = "# Name, plugin library of a device to be added, properties.\n"
        data = f"{about}DEVICES = [\n{''.join(rows)}]\nAFFINITY = {{\n{''.join(map_)}}}\n"
    name = _default_name(placement, model, out_path)
    data = f"MODEL = Path(__file__).with_name({name!r})\n{data}"
    return _written(text.replace("# DATA\n", data), model, out_path)


def write_cpp(placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
    """FILE.cpp, a C++17 program that needs OpenVINO's C++ API alone; with the model at hand FILE.xml and FILE.bin, too.

    For the work-conserving executor it runs parts in place of these, in the folder FILE.parts. Raises OptionError where
    the model for them is missing, and for a pipeline beside copies.
    """
    text = PROGRAM.read_text(encoding="utf-8")
    head, for_hetero, for_parts, for_copies, tail = re.split(r"// (?:HETERO|PARTS|COPIES|END)\n", text)
    specs = _used_specs(placement)
    model = folder = None
    if placement.copies:
        if any(copy.device is None for copy in placement.copies):
            raise OptionError("--format cpp cannot say that a pipeline is beside copies: use json, ir or python")
        program, model = for_copies, _placed(placement, source)
        names = [spec.name for spec in specs]
        rows = (f"{{{names.index(str(copy.device))}, {copy.requests}}}" for copy in placement.copies)
        data = [f"const std::vector<Copy> kCopies = {{{', '.join(rows)}}};"]
    elif _is_for_openvino(placement):
        program, model = for_hetero, _placed(placement, source)
        names = [spec.openvino_name for spec in specs]
        ops = _deployed_map(placement, model).items()
        data = [
            "const std::vector<Op> kAffinity = {",
            *(f"    {{{literal(op)}, {names.index(d)}}}," for op, d in ops),
            "};",
        ]
    else:
        program, folder = for_parts, out_path.with_suffix(".parts")
        data = _cpp_parts(placement, source, folder)
    default = _default_name(placement, model, out_path) if folder is None else folder.name
    text = "\n".join(
        [
            f"const char* const kDefaultModel = {literal(default)};",
            f"const std::vector<Device> kDevices = {{{', '.join(map(_cpp_device, specs))}}};",
            *data,
            "",
        ]
    )
    found = _written(head + program.replace("// DATA\n", text) + tail, model, out_path)
    return found if folder is None else [*found, folder]


def _cpp_parts(placement: Placement, source: ModelSource, folder: Path) -> list[str]:
    """Write the parts of a placement; tables of what they read, and of where outputs come from."""
    from hsdag.exports.parts import PartInput, PartsManifest, write_parts

    def table(tensors: Sequence[PartInput]) -> str:
        rows = ((literal(t.name), t.source.part, literal(t.source.name)) for t in tensors)
        return ", ".join(f"{{{name}, {-1 if part is None else part}, {given}}}" for name, part, given in rows)

    if source.model is None:
        raise OptionError("--format cpp needs the model that such a placement cuts into parts: name it with --model")
    write_parts(placement, source, folder)
    manifest = PartsManifest.load(folder)
    names = [spec.name for spec in _used_specs(placement)]
    parts = (f"    {{{literal(p.xml)}, {names.index(p.device)}, {{{table(p.inputs)}}}}}," for p in manifest.parts)
    outputs = f"const std::vector<Read> kOutputs = {{{table(manifest.outputs)}}};"
    return ["const std::vector<Part> kParts = {", *parts, "};", outputs]


def _is_for_openvino(placement: Placement) -> bool:
    """Whether OpenVINO runs the placement without hsdag: under HETERO, or on the one device that has all ops."""
    return not placement.copies and (placement.executor == "hetero" or len(placement.used_devices) == 1)


def _placed(placement: Placement, source: ModelSource) -> ov.Model | None:
    """The model that a program reads, where it is at hand. Raises PlacementError where the placement is for another."""
    if source.model is None:
        return None
    if _is_for_openvino(placement) and len(placement.used_devices) > 1:
        return placement.apply(source.model.clone())
    return unplaced_clone(placement, source.model)


def _default_name(placement: Placement, model: ov.Model | None, out_path: Path) -> str:
    """The file that a program reads where none is given."""
    return f"{placement.model.name}.xml" if model is None else out_path.with_suffix(".xml").name


def _written(text: str, model: ov.Model | None, out_path: Path) -> list[Path]:
    beside = [] if model is None else write_ir(model, out_path.with_suffix(".xml"))
    write_atomically(out_path, text.encode())
    return [out_path, *beside]


def _used_specs(placement: Placement) -> list[DeviceSpec]:
    return [device for device in placement.devices if device.name in placement.used_devices]


def _added_library(spec: DeviceSpec) -> str | None:
    """The plugin library of a device that has to be added to OpenVINO's own."""
    return PLUGIN_LIBRARIES[spec.plugin.partition(".")[0]] if spec.is_added else None


def _deployed_map(placement: Placement, placed: ov.Model | None) -> dict[str, str]:
    """OpenVINO's device name per op, none where all are on one device.

    Ops are those of the placed model where it is at hand, else of the affinity map.
    """
    if len(placement.used_devices) == 1:
        return {}
    if placed is not None:
        return {name: node.get_rt_info()["affinity"].astype(str) for name, node in ordered_ops(placed)}
    names = openvino_names(placement)
    return {placement.name_of(op): names[device] for op, device in placement.affinity.items()}


def literal(text: str) -> str:
    """A C++ string literal with the UTF-8 bytes of ``text``; all but plain ASCII as three octal digits."""
    shown = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(shown) + '"'


def _cpp_device(spec: DeviceSpec) -> str:
    pairs = (f"{{{literal(key)}, std::string({literal(value)})}}" for key, value in spec.properties.items())
    return f"{{{literal(spec.openvino_name)}, {literal(_added_library(spec) or '')}, {{{', '.join(pairs)}}}}}"


PROGRAM_FILES = (".xml", ".bin")
EXPORTERS = {
    "ir": Exporter(
        write_placed_ir, needs_model=True, for_openvino=True, takes_copies=True, suffixes=(".xml",), beside=(".bin",)
    ),
    "python": Exporter(write_python, for_openvino=True, takes_copies=True, suffixes=(".py",), beside=PROGRAM_FILES),
    "cpp": Exporter(
        write_cpp, for_openvino=True, takes_copies=True, suffixes=(".cpp", ".cc", ".cxx"), beside=PROGRAM_FILES
    ),
}
