"""Export format openvino: a folder with a model that any OpenVINO program runs as placed after loading a library.

For HETERO and for one device the model keeps its ops, with their affinities. Otherwise it is a single op that holds the
parts which the work-conserving executor would run, or the copies. The library supports both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import openvino as ov
from openvino import opset13

from hsdag.base.errors import OptionError, option
from hsdag.base.files import new_folder
from hsdag.exports.base import Exporter, ModelSource, unplaced_clone
from hsdag.exports.language import NO_EXTENSIONS, WHISPER, copy_folder, for_genai, is_in_folder, pipeline_of
from hsdag.exports.library import write_library
from hsdag.exports.parts import PortSource, placed_parts
from hsdag.exports.usage import Usage, write_usage
from hsdag.ir.device import DeviceSpec, hetero_properties
from hsdag.ir.graph.reader import export_otherwise, input_name, save_ir
from hsdag.ir.graph.scenario import Scenario
from hsdag.ir.placement.applied import with_shapes
from hsdag.ir.placement.placement import Placement

STORED_AFFINITY = "user_dataaffinity"
"""Key in an op's rt_info that OpenVINO saves to a model file and restores as ``affinity``."""

MODEL, WEIGHTS, PLAN = "model.xml", "model.bin", "plan.txt"


class HsdagPlaced(ov.Op):  # type: ignore[misc]
    """The single op of an exported placement, as the extension library defines it.

    Args:
        inputs: What the op reads.
        outputs: Outputs of the model, whose types and shapes the op's outputs get.
        attributes: ``parts``, the name of the folder of parts, which lies beside the library or else in the folder
            ``exported_to``.
    """

    def __init__(self, inputs: list[ov.Output], outputs: list[ov.Output], **attributes: str) -> None:
        super().__init__(self)
        self._ports = [(port.get_element_type(), port.get_partial_shape()) for port in outputs]
        self._attributes = attributes
        self.set_arguments(inputs)
        self.constructor_validate_and_infer_types()

    def validate_and_infer_types(self) -> None:
        """Set the types and shapes of the outputs."""
        self.set_output_size(len(self._ports))
        for k, (element_type, shape) in enumerate(self._ports):
            self.set_output_type(k, element_type, shape)

    def visit_attributes(self, visitor: Any) -> bool:
        """Let a visitor read the attributes."""
        visitor.on_attributes(self._attributes)
        return True


def write_folder(placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
    """Create a folder with the model, the extension library, and programs and a page that show how to use them.

    Raises OptionError for parts or copies of a model that keeps state, which a single op cannot hold.
    """
    assert source.model is not None
    with new_folder(out_path) as folder:
        if placement.copies or (placement.executor != "hetero" and len(placement.used_devices) > 1):
            usage = _write_op(placement, source.model, folder, out_path.absolute())
        else:
            usage = _write_affinities(placement, source, folder)
        note = write_library(folder)
        (folder / "placement.json").write_text(placement.to_json(), encoding="utf-8")
        write_usage(replace(usage, sizes=_sizes(placement, source.model)), folder, is_compiled=note is None)
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    if note is not None:
        source.tell(note)
    return [out_path / name for name in [usage.model, *(name for name in names if name != usage.model)]]


def _write_affinities(placement: Placement, source: ModelSource, folder: Path) -> Usage:
    """Write a model with affinities for HETERO, or without any for a placement on one device.

    If the model is a network of an OpenVINO GenAI folder, copy the other files of that folder and prepare the network
    so that GenAI adds no ops to it.
    """
    model, network = source.model, source.path if is_in_folder(source.path) else None
    assert model is not None
    name, pipeline = (MODEL, "") if network is None else (network.name, pipeline_of(model, network.name))
    specs = placement.used_specs
    if len(specs) == 1:
        placed, target, properties = unplaced_clone(placement, model), specs[0].openvino_name, dict(specs[0].properties)
    else:
        placed, properties = placement.apply(model.clone()), hetero_properties(specs)
        target = "HETERO:" + ",".join(spec.openvino_name for spec in specs)
        for node in placed.get_ordered_ops():
            info = node.get_rt_info()
            info[STORED_AFFINITY] = info["affinity"].astype(str)
        if pipeline == WHISPER:
            source.tell(f"in OpenVINO GenAI the placement has no effect: {NO_EXTENSIONS}")
        elif pipeline:
            for_genai(placed, STORED_AFFINITY)
    save_ir(placed, folder / name, export_otherwise())
    if network is not None:
        copy_folder(network.parent, folder, {name, Path(name).with_suffix(".bin").name})
    added = tuple(spec for spec in specs if spec.is_added)
    shown = "" if pipeline == WHISPER else pipeline
    return Usage(placement.model.name, name, target, properties, added, pipeline=shown, images=_images(placed))


def _sizes(placement: Placement, model: ov.Model) -> tuple[tuple[int, ...], ...]:
    """Return the shape of each input in the first inference of the first scenario that the model was placed with."""
    if not placement.data_shapes:
        return ()
    first = Scenario.parse(placement.data_shapes[0]).of(with_shapes(placement, model)).inferences[0]
    return tuple(first[input_name(port)] for port in model.inputs)


def _images(model: ov.Model) -> tuple[str, ...]:
    """Return the inputs with four axes as ``NAME:TYPE``, the form of benchmark_app's option ``-iop``."""
    ports = (port for port in model.inputs if port.get_names() and str(port.get_partial_shape()).count(",") == 3)
    return tuple(f"{port.get_any_name()}:{port.get_element_type().get_type_name()}" for port in ports)


def _write_op(placement: Placement, model: ov.Model, folder: Path, out_path: Path) -> Usage:
    """Write the parts or copies, and a model of one op that holds them."""
    whole = unplaced_clone(placement, model)
    if whole.get_sinks():
        raise OptionError(
            f"model {placement.model.name!r} keeps state between inferences, which a program could not reset in the "
            f"one op that {option('format')} openvino makes of such a placement: place the model with "
            f"{option('executor')} hetero"
        )
    plan = _ExtensionFiles(whole, folder / "parts")
    for copy in placement.copies or ():
        if copy.device is None:
            plan.add_parts(copy.pipeline(placement), copy.requests)
        else:
            plan.add_copy(next(spec for spec in placement.devices if spec.name == copy.device), copy.requests)
    if not placement.copies:
        plan.add_parts(placement, 0)
    name = plan.write()
    placed = HsdagPlaced([node.output(0) for node in whole.get_parameters()], whole.outputs, parts=name,
                         exported_to=str(out_path))  # fmt: skip
    results = []
    for k, result in enumerate(whole.get_results()):
        results.append(opset13.result(placed.output(k), name=result.get_friendly_name()))
        results[k].output(0).get_tensor().set_names(result.output(0).get_names())
    one_op = ov.Model(results, whole.get_parameters(), whole.get_friendly_name())
    ov.serialize(one_op, folder / MODEL, folder / WEIGHTS)  # unlike save_model, this does not copy the op
    num_requests = sum(copy.requests for copy in placement.copies or ())
    return Usage(placement.model.name, MODEL, "CPU", {}, inside=placement.used_devices, num_requests=num_requests)


@dataclass(eq=False)
class _ExtensionFiles:
    """The files of what the op runs, in a folder named after its content: models, and a text file ``plan.txt``."""

    model: ov.Model
    folder: Path
    devices: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    num_files: int = 0
    whole: str = ""
    """File of the whole model, shared by all copies of it."""

    def add_parts(self, placement: Placement, requests: int) -> None:
        """Add the parts that the work-conserving executor runs.

        ``requests`` is the number of inferences at a time; 0 means as many as a program asks for.
        """
        placed = placed_parts(self.model, placement)
        parts = (f"{self._saved(p.model)} {self._device(p.device)} {_sources(p.reads)}" for p in placed.parts)
        self.copies.append(f"{requests} {_many(parts)} {_sources(placed.outputs)}")

    def add_copy(self, spec: DeviceSpec, requests: int) -> None:
        """Add a copy of the whole model on a device, with ``requests`` inferences at a time."""
        device = self._device(spec, {"PERFORMANCE_HINT": "THROUGHPUT"})
        self.whole = self.whole or self._saved(self.model)
        part = f"{self.whole} {device} {_many(f'-1 {k}' for k in range(len(self.model.inputs)))}"
        self.copies.append(f"{requests} {_many([part])} {_many(f'0 {k}' for k in range(len(self.model.outputs)))}")

    def write(self) -> str:
        """Write the text file, rename the folder after the hash of its content, and return its new name."""
        ports = [_many(map(_port, which)) for which in (self.model.inputs, self.model.outputs)]
        text = "\n".join(['"hsdag-plan" 1', *ports, _many(self.devices), _many(self.copies)])
        (self.folder / PLAN).write_text(text + "\n", encoding="utf-8")
        digest = hashlib.sha256()
        for path in sorted(self.folder.iterdir()):
            digest.update(path.read_bytes())
        name = f"parts-{digest.hexdigest()[:12]}"
        self.folder.rename(self.folder.with_name(name))
        return name

    def _saved(self, model: ov.Model) -> str:
        """Save a model in the folder and return its file name, quoted."""
        self.folder.mkdir(exist_ok=True)
        name = f"part_{self.num_files:03d}.xml"
        save_ir(model, self.folder / name, export_otherwise())
        self.num_files += 1
        return _quoted(name)

    def _device(self, spec: DeviceSpec, properties: Mapping[str, str] | None = None) -> int:
        """Return the number of a device; its own properties override the given ones."""
        merged = {**(properties or {}), **spec.properties}
        words = _many(f"{_quoted(key)} {_quoted(value)}" for key, value in merged.items())
        text = f"{_quoted(spec.name)} {_quoted(spec.plugin)} {words}"
        if text not in self.devices:
            self.devices.append(text)
        return self.devices.index(text)


def _sources(sources: Iterable[PortSource]) -> str:
    return _many(f"{source.part} {source.port}" for source in sources)


def _port(port: ov.Output) -> str:
    """Return the type and shape of an input or output."""
    return f"{_quoted(port.get_element_type().get_type_name())} {_quoted(str(port.get_partial_shape()))}"


def _many(items: Iterable[str]) -> str:
    """Return the number of items followed by the items."""
    words = list(items)
    return " ".join([str(len(words)), *words])


def _quoted(text: str) -> str:
    """Return a quoted word of the plan file."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


EXPORTERS = {"openvino": Exporter(write_folder, needs_model=True, for_openvino=True, takes_copies=True)}
