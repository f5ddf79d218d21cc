"""Placements: a device for every op of one model, as a file format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from hsdag.base.errors import OptionError, SearchError
from hsdag.base.files import MODEL_SUFFIXES, parse_record, read_text, write_atomically
from hsdag.base.host import command_line
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.computation_graph import ComputationGraph

if TYPE_CHECKING:  # modules that load OpenVINO are imported where they are used: simulators read placements too
    import openvino as ov
    from pydantic._internal._model_construction import ModelMetaclass as _OfModels
else:
    _OfModels = type(BaseModel)

FORMAT_NAME: Literal["hsdag-placement"] = "hsdag-placement"
FORMAT_VERSION: Literal[2] = 2
SPREAD_VERSION: Literal[3] = 3
"""Version of files whose placement divides ops or copies the model; earlier versions cannot express that."""

ExecutorName: TypeAlias = Literal["hetero", "work-conserving", "cuda"]
"""Executor of a placed model.

OpenVINO's HETERO, one submodel after another; hsdag's own executor, with submodels side by side; or that executor with
ops on CUDA GPUs.
"""
ExecutorChoice: TypeAlias = Literal["auto", ExecutorName]
"""Executors that ``hsdag place`` searches for; ``auto`` compares hsdag's own executor with HETERO."""

ReferenceName: TypeAlias = Literal["cpu", "op-by-op", "numpy"]
"""What computes the outputs that a placement's outputs are compared with; NumPy for workloads alone."""
REFERENCES: tuple[ReferenceName, ...] = ("cpu", "op-by-op")
"""References that a user can choose."""


class _Listed(_OfModels):
    """Lists what a class of ours has, and not what pydantic adds: ``help`` prints all that is listed."""

    def __dir__(self) -> list[str]:
        """Return the names of what classes of ours define, without those that begin as private ones or pydantic's."""
        ours = [kind for kind in self.__mro__ if issubclass(kind, BaseModel) and kind is not BaseModel]
        named = {name for kind in ours for name in vars(kind) if not name.startswith(("_", "model_"))}
        return sorted({*named, "__doc__"})


class Record(BaseModel, metaclass=_Listed):
    """Base of records in files and answers: validated when read, and immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelRecord(Record):
    """The model that a placement is for, and the shapes that its inputs had."""

    name: str
    fingerprint: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    input_shapes: dict[str, tuple[int, ...]] = {}

    @staticmethod
    def of(graph: ComputationGraph, name: str | None = None) -> ModelRecord:
        """Return the record of a graph's model."""
        from hsdag.ir.graph.build import fingerprint

        dynamic = graph.is_dynamic.tolist()
        parameters = (v for v, op_type in enumerate(graph.op_types) if op_type == "Parameter" and not dynamic[v])
        inputs = {graph.op_names[v]: graph.shape_of(v) for v in parameters}
        return ModelRecord(name=name or graph.name, fingerprint=fingerprint(graph), input_shapes=inputs)

    @property
    def inputs_text(self) -> str:
        """Return the inputs in the form of ``--shape``."""
        return ",".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in self.input_shapes.items())


class LatencyRecord(Record):
    """Seconds per inference; ``measured`` is false for simulated figures."""

    median_s: float = Field(gt=0)
    mean_s: float = Field(gt=0)
    p95_s: float = Field(gt=0)
    runs: int = Field(ge=1)
    measured: bool


class SpeedupRecord(Record):
    """The best single device's latency over the placement's, with its 95% interval, which needs more than one round."""

    versus: str
    ratio: float = Field(gt=0)
    ci95: tuple[float | None, float | None]


class ShardRecord(Record):
    """A region that devices compute together (docs/shards.md): ops in topological order, by canonical names.

    ``axis`` has the axis of each op along which its result is divided. The last op of ``hidden`` and ``heads``, and of
    ``channels`` where it has none, sums over its share; ``replicated`` ops have none at all. ``shares`` are the ranges,
    by device, of what the last op divides or sums over.
    """

    scheme: Literal["rows", "hidden", "heads", "channels", "columns", "replicated"]
    ops: tuple[str, ...] = Field(min_length=1)
    axis: dict[str, int] = {}
    shares: dict[str, tuple[int, int]] = Field(min_length=1)


class CopyRecord(Record):
    """A copy of the whole model with its number of requests: on a device, or as a pipeline over several devices.

    A pipeline has ``affinity`` and ``shards`` as a placement has them.
    """

    device: str | None = None
    requests: int = Field(ge=1)
    affinity: dict[str, str] | None = None
    shards: tuple[ShardRecord, ...] | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the names of the devices that run it."""
        shares = (name for region in self.shards or () for name in region.shares)
        return tuple(dict.fromkeys(filter(None, [self.device, *(self.affinity or {}).values(), *shares])))

    def pipeline(self, placement: Placement) -> Placement:
        """Return this pipeline, one of the copies of a placement, as a placement of its own."""
        version = SPREAD_VERSION if self.shards else FORMAT_VERSION
        fields = {"affinity": self.affinity, "shards": self.shards, "version": version, "copies": None}
        return placement.model_copy(update=fields)


def _readable(data_shapes: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return scenarios as they are. Raises ValueError if one cannot be read."""
    if data_shapes:
        from hsdag.ir.graph.scenario import parse_scenarios

        try:
            parse_scenarios(data_shapes, None)
        except OptionError as error:
            raise ValueError(str(error)) from error
    return data_shapes


class Placement(Record):
    """A device for each op of one model.

    Args:
        data_shapes: The scenarios on which a model with dynamic shapes was measured, in the form of ``--data-shape``.
        affinity: The device of each op by its name in ``ComputationGraph.canonical_names``. Ops of ``shards``
            have none, as several devices compute them; no op has one where there are ``copies`` of the whole model.
        names: The friendly name of each op.
        priority: The rank of each op; of the ready ops of a device the one of the smallest rank runs first.

    Raises FileFormatError (``load``) or a pydantic error when an affinity names a device that ``devices`` lacks.
    """

    format: Literal["hsdag-placement"] = FORMAT_NAME
    version: Literal[2, 3] = FORMAT_VERSION
    model: ModelRecord
    devices: list[DeviceSpec] = Field(min_length=1)
    affinity: dict[str, str] = Field(default={}, repr=False)
    names: dict[str, str] = Field(default={}, repr=False)
    method: str
    seed: int
    objective: str = Field(min_length=1)
    executor: ExecutorName
    latency: LatencyRecord | None = None
    baselines: dict[str, LatencyRecord] = {}
    speedup: SpeedupRecord | None = None
    priority: dict[str, int] | None = Field(default=None, repr=False)
    created_with: dict[str, str] = {}
    data_shapes: Annotated[tuple[str, ...] | None, AfterValidator(_readable)] = None
    shards: tuple[ShardRecord, ...] | None = None
    copies: tuple[CopyRecord, ...] | None = None

    @model_validator(mode="after")
    def _devices_are_listed(self) -> Placement:
        names = [device.name for device in self.devices]
        if len(set(names)) != len(names):
            raise ValueError("two devices have the same name")
        for op, device in self.affinity.items():
            if device not in names:
                raise ValueError(f"affinity of op {op!r} names device {device!r}, which 'devices' does not list")
        for region in self.shards or ():
            unlisted = sorted(set(region.shares) - set(names))
            if unlisted:
                raise ValueError(f"a share of {region.ops[-1]!r} is for device {unlisted[0]!r}, not in 'devices'")
        copied = [name for copy in self.copies or () for name in copy.devices]
        if not set(copied) <= set(names) or len(set(copied)) < len(copied):
            raise ValueError("'copies' need devices of their own, of those in 'devices'")
        if any((copy.device is None) != (copy.affinity is not None) for copy in self.copies or ()):
            raise ValueError("each of the 'copies' needs a device, or an affinity")
        if (bool(self.affinity) or bool(self.shards)) == bool(self.copies):
            raise ValueError("affinity: it names no op, and there are no 'shards', or there are 'copies' as well")
        if (self.shards or self.copies) and (self.version != SPREAD_VERSION or self.executor == "hetero"):
            raise ValueError("'shards' and 'copies' need version 3, and an executor that runs devices side by side")
        return self

    @property
    def used_specs(self) -> tuple[DeviceSpec, ...]:
        """Return the devices that compute at least one op, in the order of ``devices``."""
        used = set(self.affinity.values()) | {name for region in self.shards or () for name in region.shares}
        used |= {name for copy in self.copies or () for name in copy.devices}
        return tuple(spec for spec in self.devices if spec.name in used)

    @property
    def used_devices(self) -> tuple[str, ...]:
        """Return the names of the devices that compute at least one op, in the order of ``devices``."""
        return tuple(spec.name for spec in self.used_specs)

    def to_json(self) -> str:
        """Return the placement as a JSON document."""
        return self.model_dump_json(indent=1, exclude_none=True) + "\n"

    @staticmethod
    def from_json(text: str, origin: str = "placement") -> Placement:
        """Parse a document. Raises FileFormatError that names ``origin`` and the path inside the document.

        >>> import hsdag
        >>> placement = hsdag.Placement.from_json('''{
        ...   "format": "hsdag-placement", "version": 2, "method": "m", "seed": 0, "objective": "latency",
        ...   "executor": "hetero", "devices": [{"name": "CPU", "plugin": "CPU"}], "affinity": {"Result:0": "CPU"},
        ...   "model": {"name": "net", "fingerprint": "sha256:%064d"}}''' % 0)
        >>> placement.used_devices
        ('CPU',)
        """
        return parse_record(Placement, text, origin, (FORMAT_VERSION, SPREAD_VERSION))

    def save(self, path: str | Path) -> None:
        """Write the file atomically. Raises OutputError."""
        write_atomically(Path(path), self.to_json().encode())

    @staticmethod
    def load(path: str | Path) -> Placement:
        """Read a file. Raises FileFormatError when it is missing or not a placement."""
        return Placement.from_json(read_text(Path(path)), str(path))

    def apply(self, model: ov.Model) -> ov.Model:
        """Set the affinity of every op of ``model``, and return a copy of it that is prepared for HETERO.

        Compile the copy: in it, whatever is known before any data is a constant of the op that reads it, and inputs
        without a fixed shape have the shape in which the model was placed (``prepare``). Raises PlacementError when the
        model is another one or its ops and the map disagree.
        """
        from hsdag.ir.placement.applied import applied

        return applied(self, model)

    def compile(
        self, core: Any, model: ov.Model, properties: Mapping[str, Any] | None = None, beside: Any = None
    ) -> Any:
        """Compile ``model`` with this placement: for HETERO, or for the device alone where one has all ops.

        If the placement copies the model, returns a ``CopiedModel``, which runs all copies; pipelines among them are
        for HETERO too, unless ``beside`` compiles them, as in ``hsdag.compile_work_conserving``.

        ``model`` is left as it is; inputs without a fixed shape get the shape in which it was placed. Devices that
        OpenVINO does not have by itself are registered on ``core``. Raises PlacementError as ``apply`` does, ModelError
        where the model does not take that shape, and DeviceError when a device is absent or fails to load.
        """
        from hsdag.ir.placement.applied import compiled

        return compiled(self, core, model, properties, beside)


def refuse_model(source: str | Path) -> None:
    """Raise SearchError if the file is a model and not a placement."""
    if Path(source).suffix in MODEL_SUFFIXES and Path(source).is_file():
        raise SearchError(
            f"{source} is a model, and a placement file is expected, or a run folder; this writes one: "
            + command_line(["hsdag", "place", str(source)])
        )
