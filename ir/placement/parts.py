"""A placed model in parts: models of one device each, and which output of which part feeds which input.

The manifest ("hsdag-parts") says so of parts that are files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from hsdag.ir.errors import FileFormatError
from hsdag.ir.files import first_problem, parse_document, read_text
from hsdag.ir.placement.placement import DeviceRecord, ModelRecord, Placement

if TYPE_CHECKING:
    import openvino as ov

FORMAT_NAME: Literal["hsdag-parts"] = "hsdag-parts"
FORMAT_VERSION: Literal[1] = 1
MANIFEST = "manifest.json"
"""The name of the file in its folder."""


def _plain(name: str) -> str:
    if name in ("", ".", "..") or any(c in name for c in "/\\\0"):
        raise ValueError(f"the name of a file in the same folder is expected, not {name!r}")
    return name


_FileName = Annotated[str, AfterValidator(_plain)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorRecord(_Record):
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


class TensorSource(_Record):
    """Where a tensor comes from: output ``name`` of part number ``part``, or the model's input ``name``."""

    part: int | None
    """None where the caller gives it."""
    name: str


class PartInput(TensorRecord):
    """An input of a part and what it reads."""

    source: TensorSource


class PartRecord(_Record):
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


class PartsManifest(_Record):
    """Parts in an order in which they can run, and the placement that they were cut by."""

    format: Literal["hsdag-parts"] = FORMAT_NAME
    version: Literal[1] = FORMAT_VERSION
    model: ModelRecord
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[PartInput, ...]
    parts: tuple[PartRecord, ...] = Field(min_length=1)
    placement: Placement

    @staticmethod
    def load(path: str | Path) -> PartsManifest:
        """Read a manifest, or that of a folder. Raises FileFormatError when it is missing, or no manifest."""
        file = Path(path) / MANIFEST if Path(path).is_dir() else Path(path)
        document = parse_document(read_text(file), str(file), FORMAT_NAME, (FORMAT_VERSION,))
        try:
            return PartsManifest.model_validate(document)
        except ValidationError as error:
            raise FileFormatError(f"{file}: {first_problem(error)}") from error


@dataclass(frozen=True, eq=False)
class Part:
    """A convex piece of a model that runs on one device.

    Every input and output of ``model`` has one name; ``sources`` says by the name of an input what it reads. ``ops``
    are the ops placed on the device that the part computes, ``copies`` those placed elsewhere and computed here
    too, all by their friendly names. A part that ``has_state`` keeps variables between inferences.
    """

    model: ov.Model
    device: DeviceRecord
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
