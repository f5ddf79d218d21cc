"""Placements: a device for every op of one model, as a file format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from hsdag.base.errors import DeviceError, OptionError, PlacementError, in_callers_words
from hsdag.base.files import parse_record, read_text, write_atomically
from hsdag.ir.device import DeviceSpec, hetero_properties
from hsdag.ir.graph.colocation import check_colocation
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
"""What computes the outputs that a placement's outputs are compared with; NumPy only does for workloads."""
REFERENCES: tuple[ReferenceName, ...] = ("cpu", "op-by-op")
"""References that a user can choose."""

Words: TypeAlias = Annotated[str, AfterValidator(in_callers_words)]
"""A text of an answer, which names parameters in Python and options on the command line."""


class _Listed(_OfModels):
    """Lists what a class of ours has, and not what pydantic adds: ``help`` prints all that is listed."""

    def __dir__(self) -> list[str]:
        """Return the names of what classes of ours define, without those that begin as private ones or pydantic's."""
        ours = [each for each in self.__mro__ if issubclass(each, BaseModel) and each is not BaseModel]
        named = {name for each in ours for name in vars(each) if not name.startswith(("_", "model_"))}
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

        fixed = np.ones(graph.num_ops, dtype=np.bool_) if graph.is_dynamic is None else ~graph.is_dynamic
        parameters = (v for v, op_type in enumerate(graph.op_types) if op_type == "Parameter" and fixed[v])
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
    """A region that devices compute together (SHARDING section 3): ops in topological order, by canonical names.

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
    data_shapes: tuple[str, ...] | None = None
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

    @field_validator("data_shapes")
    @classmethod
    def _data_shapes_are_readable(cls, texts: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if texts:
            from hsdag.ir.graph.scenario import parse_scenarios

            try:
                parse_scenarios(texts, None)
            except OptionError as error:
                raise ValueError(str(error)) from error
        return texts

    @property
    def used_devices(self) -> tuple[str, ...]:
        """Return the devices that compute at least one op, in the order of ``devices``."""
        used = set(self.affinity.values()) | {name for region in self.shards or () for name in region.shares}
        used |= {name for copy in self.copies or () for name in copy.devices}
        return tuple(device.name for device in self.devices if device.name in used)

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

    def devices_of(self, graph: ComputationGraph) -> list[str]:
        """Return [N] the name of the device of each op of a graph.

        Raises PlacementError when the placement is not for the model of this graph, by its fingerprint and the names
        of its ops; and where it divides ops or copies the model.
        """
        keys = graph.canonical_names
        self.check_model(graph)
        if self.shards or self.copies:
            raise PlacementError(
                "the placement divides ops over devices, which HETERO does not run, or inferences: load it with "
                "hsdag.compile_model, or run what 'hsdag export --format openvino' makes of it"
            )
        if set(self.affinity) != set(keys):
            odd = sorted(set(self.affinity) ^ set(keys))
            raise PlacementError(f"the affinity map and the model disagree on {len(odd)} ops, the first is {odd[0]!r}")
        devices = [self.affinity[key] for key in keys]
        if self.executor != "cuda":  # it copies whatever is read on another device
            check_colocation(graph, devices)
        return devices

    def homes_of(self, graph: ComputationGraph) -> list[str]:
        """Return [N] devices as ``devices_of`` does; for an op on several devices their names, joined by ``+``."""
        if not (self.shards or self.copies):
            return self.devices_of(graph)
        self.check_model(graph)
        if self.copies:
            homes_of_copies = [
                [c.device] * graph.num_ops if c.device else self.pipeline(c).homes_of(graph) for c in self.copies
            ]
            return ["+".join(homes) for homes in zip(*homes_of_copies, strict=True)]
        homes = {**self.affinity, **{op: "+".join(region.shares) for region in self.shards or () for op in region.ops}}
        return [homes[op] for op in graph.canonical_names]

    def pipeline(self, copy: CopyRecord) -> Placement:
        """Return a pipeline among the copies as a placement of its own."""
        version = SPREAD_VERSION if copy.shards else FORMAT_VERSION
        fields = {"affinity": copy.affinity, "shards": copy.shards, "version": version, "copies": None}
        return self.model_copy(update=fields)

    def check_model(self, graph: ComputationGraph) -> None:
        """Raise PlacementError where the fingerprint says that the placement is for another model."""
        from hsdag.ir.graph.build import fingerprint

        if fingerprint(graph) != self.model.fingerprint:
            raise PlacementError(self._mismatch(graph))

    def priority_of(self, graph: ComputationGraph) -> list[int | None] | None:
        """Return [N] the rank of each op of a graph, None where it has none; None if no op has one."""
        return [self.priority.get(op) for op in graph.canonical_names] if self.priority else None

    def check_openvino(self) -> None:
        """Raise PlacementError if the devices are not OpenVINO's."""
        if self.executor == "cuda":
            raise PlacementError(
                "the placement is for the CUDA engine (executor 'cuda'), whose devices OpenVINO does not have; "
                "run it with 'hsdag bench MODEL --placement FILE', or place the model again for another executor"
            )

    def name_of(self, op: str) -> str:
        """Return the friendly name of an op of the affinity map."""
        return self.names.get(op, op)

    def _mismatch(self, graph: ComputationGraph) -> str:
        record = ModelRecord.of(graph)
        if set(self.names) == set(graph.canonical_names) and record.input_shapes != self.model.input_shapes:
            return (
                f"the placement is for model {self.model.name!r} with the input shapes {self.model.inputs_text}, and "
                f"this model has {record.inputs_text}: reshape the model (--shape) or place it again"
            )
        return (
            f"the placement is for model {self.model.name!r} and this is another model (named {graph.name!r}): "
            "their ops, shapes or edges differ; place this model again"
        )

    def apply(self, model: ov.Model) -> ov.Model:
        """Set the affinity of every op of ``model``, and return a copy of it that is prepared for HETERO.

        Compile the copy: in it, whatever is known before any data is a constant of the op that reads it, and inputs
        without a fixed shape have the shape in which the model was placed (``prepare``). Raises PlacementError when the
        model is another one or its ops and the map disagree.
        """
        from hsdag.ir.graph.build import corresponding_nodes
        from hsdag.ir.placement.prepared import prepare

        fixed, devices = self._openvino_devices(model)
        device_of = {node.get_name(): name for node, name in zip(fixed.get_ordered_ops(), devices, strict=True)}
        for node, counterpart in zip(model.get_ordered_ops(), corresponding_nodes(model, fixed), strict=True):
            node.get_rt_info()["affinity"] = device_of[counterpart.get_name()]
        return prepare(fixed).place(devices, self.devices)

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
        from hsdag.base.errors import last_line
        from hsdag.ir.graph.gates import with_gates_apart
        from hsdag.ir.placement.prepared import prepare

        if self.copies:
            under_hetero = lambda model, pipeline, *_: pipeline.compile(core, model, properties)  # noqa: E731
            return self._compile_copies(core, model, properties, beside or under_hetero)
        fixed, devices = self._openvino_devices(model)
        specs = [device for device in self.devices if device.name in self.used_devices]
        if len(specs) == 1:
            placed = with_gates_apart(fixed, specs[0])
            target = specs[0].openvino_name
            options = dict(properties or {})
        else:
            placed = prepare(fixed).place(devices, specs)
            target = "HETERO:" + ",".join(spec.openvino_name for spec in specs)
            options = hetero_properties(specs, properties)
        for spec in specs:
            spec.register(core)
        try:
            return core.compile_model(placed, target, options)
        except RuntimeError as error:
            raise DeviceError(f"{target} cannot compile the placed model: {last_line(error)}") from error

    def _compile_copies(self, core: Any, model: ov.Model, properties: Mapping[str, Any] | None, beside: Any) -> Any:
        from hsdag.ir.graph.build import graph_of
        from hsdag.ir.placement.copies import compile_copies

        fixed = self.fixed(model)
        specs = {device.name: device for device in self.devices}
        copies = []
        self.check_model(graph_of(fixed))
        for copy in self.copies or ():
            over = specs[copy.device] if copy.device else beside(fixed, self.pipeline(copy), core, properties)
            copies.append((over, copy.requests))
        return compile_copies(core, fixed, copies, properties)

    def _openvino_devices(self, model: ov.Model) -> tuple[ov.Model, list[str]]:
        """Return ``fixed(model)``, and OpenVINO's name of the device of each of its ops [N]."""
        from hsdag.ir.graph.build import graph_of

        self.check_openvino()
        fixed = self.fixed(model)
        names = {device.name: device.openvino_name for device in self.devices}
        return fixed, [names[device] for device in self.devices_of(graph_of(fixed))]

    def fixed(self, model: ov.Model) -> ov.Model:
        """Return a copy of ``model`` whose inputs without a fixed shape have the shape in which it was placed.

        Inputs for which it has no shape stay as they are. Raises ModelError where the model does not take a shape.
        """
        from hsdag.ir.graph.reader import fix_shapes

        clone = model.clone()
        fix_shapes(clone, {}, self.model.input_shapes, dynamic=True)
        return clone
