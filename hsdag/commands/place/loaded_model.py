"""The model or workload to place, read once, and the placement problem that follows from it.

Legend: N ops, U placement units, D devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from hsdag.base.errors import DeviceError, ModelError, OptionError, check_seed, option
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.coarsen import DEFAULT_SHARE, CoarseGraph, placement_units
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray, IntArray
from hsdag.ir.graph.reader import GIVE_THE_FILE, Shapes, input_name, load_model, name_of_model, network_in, save_ir
from hsdag.ir.graph.scenario import Scenario
from hsdag.ir.graph.sizing import sized
from hsdag.ir.placement.placement import ExecutorName
from hsdag.ir.shards.regions import OpShapes
from hsdag.ir.shards.rewrite import shapes_of
from hsdag.models import Workload
from hsdag.models.registry import names_workload, workload_called
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.op_by_op_costs import OpByOpCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.objectives import LATENCY, Objective
from hsdag.runtime.problem.pins import with_pins
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.problem_file import read_problem, write_problem
from hsdag.runtime.problem.schedule_problem import CostSource, OpLabels, ScheduleProblem
from hsdag.runtime.problem.units import graph_of_problem, problem_of, unit_edges


@dataclass(frozen=True)
class ModelInputs:
    """Shapes and data of a model's inputs.

    Attributes:
        shapes: Shapes to fix, by input.
        spare: Shapes of inputs that would otherwise be dynamic.
        scenarios: Sizes of typical data, on which the model is profiled and measured; inputs may then stay dynamic.
        file: File with the data, ``.npz``; None for random data.
        seed: Seed of random data.
    """

    shapes: Shapes | None = None
    spare: Shapes | None = None
    scenarios: Sequence[Scenario] = ()
    file: Path | None = None
    seed: int = 0

    def check(self) -> None:
        """Raise OptionError for a seed out of range, or a file that is missing."""
        check_seed(self.seed)
        if self.file is not None and not self.file.is_file():
            takes = f"{option('inputs')} takes an .npz file with one array per input"
            raise OptionError(f"no such file: {self.file}; {takes}")


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model or workload that was read.

    Attributes:
        path: File that the worker reads it from.
        name: Name of the model; None if it was given in memory.
        model: The model itself; None for a workload.
        shapes: Fixed shapes of inputs, by name.
        scenarios: Sizes of typical data for inputs that stay dynamic.
        units: Placement units of a workload; None for a model.
        labels: Labels of a workload's ops; None for a model.
    """

    graph: ComputationGraph
    path: Path
    name: str | None
    model: ov.Model | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    scenarios: tuple[Scenario, ...] = ()
    units: CoarseGraph | None = None
    labels: OpLabels | None = None
    _op_shapes: list[OpShapes] = field(default_factory=list, init=False, repr=False)  # those of the last graph

    @property
    def ov_model(self) -> ov.Model:
        """Return the model as OpenVINO has it, which is not to be changed; a workload has none."""
        assert self.model is not None
        return self.model

    def op_shapes(self, graph: ComputationGraph) -> OpShapes:
        """Return the ops of the model as rules of division see them with a graph of it, made once for each graph."""
        if not self._op_shapes or self._op_shapes[0].graph is not graph:
            self._op_shapes[:] = [shapes_of(self.ov_model, graph)]
        return self._op_shapes[0]

    @property
    def is_workload(self) -> bool:
        """Return whether this is a workload, whose ops are expressions, and not a model."""
        return self.units is not None

    @property
    def reduces_precision(self) -> bool:
        """Return whether an op that depends on data computes in less than single precision."""
        return bool(np.isin(np.array(self.graph.element_types), ("f16", "bf16"))[~floating_ops(self.graph)].any())


def read_model(source: Any, inputs: ModelInputs, folder: Path) -> LoadedModel:
    """Read a model: a path, an ``ov.Model`` or a torch module. One in memory is written to ``folder``.

    Raises ModelError for a model that cannot be read.
    """
    shapes, spare, scenarios = inputs.shapes, inputs.spare, inputs.scenarios
    if isinstance(source, str | Path):
        path, name = network_in(Path(source)), name_of_model(Path(source))
        model = load_model(path, shapes, spare=spare, dynamic=bool(scenarios))
        model.set_friendly_name(name)
    else:
        path, name = folder / "model.xml", None
        in_memory = load_model(source, shapes, spare=spare, dynamic=bool(scenarios))
        model = save_ir(in_memory, path, GIVE_THE_FILE).clone()
        model.set_friendly_name(in_memory.get_friendly_name())
    if shapes or spare:
        fixed = [port for port in model.inputs if port.get_partial_shape().is_static]
        shapes = {input_name(port): tuple(port.get_shape()) for port in fixed}
    of_model = tuple(scenario.of(model) for scenario in scenarios)
    graph = graph_of(model)
    graph = sized(graph, model, of_model) if of_model else graph
    return LoadedModel(graph, path, name, model, dict(shapes or {}), of_model)


def read_for_torch(source: Any, inputs: ModelInputs, folder: Path, num_devices: int) -> LoadedModel:
    """Read a workload, by name or as an object, a problem file, or else a model, for this number of torch devices.

    Raises OptionError for scenarios, ModelError as ``read_model`` and ``read_workload`` do.
    """
    if inputs.scenarios:
        raise OptionError(
            f"the CUDA engine runs models of fixed shapes: fix them with {option('shape')}, without data shapes"
        )
    is_text = isinstance(source, str | Path)
    if isinstance(source, Workload) or (is_text and (names_workload(str(source)) or str(source).endswith(".json"))):
        return read_workload(source, num_devices, folder)
    return read_model(source, inputs, folder)


def read_workload(source: Any, num_devices: int, folder: Path) -> LoadedModel:
    """Read a workload or a problem file whose ops have expressions.

    Args:
        source: Workload, its name, or the path of a problem file.
        num_devices: Number of devices to build a named workload for, unless the name says it.
        folder: Folder that a workload is written to.

    Raises ModelError for an op without an expression.
    """
    if isinstance(source, Workload) or names_workload(str(source)):
        name, path = None, folder / "workload.json"
        if not isinstance(source, Workload):
            name, source = workload_called(str(source), num_devices)
        graph = source.graph
        labels = OpLabels(graph.op_types, ("",) * graph.num_ops, source.meta_ops, source.roles, source.expressions)
        time_s = np.ones((graph.num_ops, 1))  # placeholders, on one device
        problem = ScheduleProblem.from_graph(graph, time_s, ("any",), source=CostSource.ANALYTIC)
        problem = replace(problem, labels=labels)
        write_problem(problem, path)
        name = name or graph.name
    else:
        problem = read_problem(Path(source))
        path = Path(source)
        graph, name = graph_of_problem(problem), problem.name
    for op, text in zip(problem.op_names, problem.labels.expressions, strict=True):
        if not text:
            raise ModelError(
                f"op {op!r} of {name!r} has no expression, so it cannot be run: the problem holds costs alone"
            )
    labels = replace(problem.labels, canonical=graph.canonical_names)
    return LoadedModel(graph, path, name, units=replace(problem_of(problem).units, fine=graph), labels=labels)


@dataclass(frozen=True, eq=False)
class PlacedModel:
    """A graph and the specs of the devices it is placed on, from which a profile makes problems and costs.

    No device is opened.

    Attributes:
        units: Those of the ``LoadedModel``.
        labels: Those of the ``LoadedModel``.
        pinned: Device of each pinned op, as ``pinned_devices`` returns them [N].
    """

    graph: ComputationGraph
    devices: Sequence[DeviceSpec]
    objective: Objective = LATENCY
    units: CoarseGraph | None = None
    labels: OpLabels | None = None
    pinned: IntArray | None = None

    def problem(
        self,
        refused: Sequence[IntArray],
        together: Sequence[Sequence[int]] = (),
        *,
        max_share: float | None = None,
    ) -> Problem:
        """Return the placement problem without costs. A unit with a pinned op may only run on its device.

        Args:
            refused: Ops that each device does not run.
            together: Ops to keep together, because a device computes them as one.
            max_share: Largest share of the work in one unit; by default DEFAULT_SHARE.

        Raises DeviceError for an op that no device runs, OptionError for conflicting pins.
        """
        share = DEFAULT_SHARE if max_share is None else max_share
        units = self.units or placement_units(self.graph, max_share=share, together=together, pinned=self.pinned)
        names = tuple(spec.name for spec in self.devices)
        supported = np.ones((units.graph.num_ops, len(names)), dtype=np.bool_)
        works = ~floating_ops(self.graph) & ~np.isin(self.graph.op_types, ["Parameter", "Result"])
        for d, ops in enumerate(refused):
            supported[units.partition.labels[ops[works[ops]]], d] = False
        nowhere = np.flatnonzero(~supported.any(axis=1))
        if len(nowhere):
            what = f"op {units.graph.op_names[nowhere[0]]!r} and the ops tied to it"
            raise DeviceError(f"{what} run on none of {', '.join(names)}; add a device that runs it")
        problem = Problem(units, names, supported, self.objective)
        return problem if self.pinned is None else with_pins(problem, self.pinned)

    def priced(
        self, problem: Problem, profile: ModelProfile, limits: Mapping[str, float], *, by_op: bool = False
    ) -> Problem:
        """Return the placement problem with the costs of a profile.

        Args:
            problem: The problem without costs; that of a workload is made anew, with the costs of its ops.
            limits: Bytes of memory by device; others have what the profile says.
            by_op: Whether the executor starts every op by itself.
        """
        of_profile = zip(self.devices, profile.memory_bytes.tolist(), strict=True)
        memory_bytes = np.array([limits.get(spec.name, size) for spec, size in of_profile])
        costs = profile.costs(self.graph, by_op=by_op or self.labels is not None)
        if self.labels is None:
            return with_costs(problem, costs, memory_bytes)
        problem = problem_of(replace(costs, labels=self.labels, memory_bytes=memory_bytes), self.objective)
        return problem if self.pinned is None else with_pins(problem, self.pinned)

    def of_units(self, problem: Problem, devices: Sequence[int] | IntArray) -> IntArray | None:
        """Convert devices of ops to a placement of units [U]; None if that is not legal.

        The op with the most FLOPs decides for its unit.

        Args:
            devices: Index of the device of each op [N], -1 if that is not known; empty if none is.
        """
        placement = np.full(problem.num_units, -1, dtype=np.int64)
        if len(devices):
            home = np.asarray(devices, dtype=np.int64)
            rising = np.argsort(self.graph.flops, kind="stable")
            placed = rising[home[rising] >= 0]
            placement[problem.units.partition.labels[placed]] = home[placed]  # the heaviest op decides, as the last
        return placement if (placement >= 0).all() and problem.is_legal(placement) else None

    def costs(self, profile: ModelProfile, executor: ExecutorName) -> PlacementCosts:
        """Return the costs of placements under an executor."""
        if executor == "cuda":
            return OpByOpCosts.of(self.graph, profile.costs(self.graph, by_op=True))
        if executor == "work-conserving":
            return WorkConservingCosts.of(self.graph, profile.costs(self.graph), profile.links.syncs)
        return HeteroCosts.of(self.graph, profile.costs(self.graph))


def with_costs(problem: Problem, costs: ScheduleProblem, memory_bytes: FloatArray) -> Problem:
    """Add the costs of ops to a problem, summed by unit.

    Units exchange what HETERO sends: each tensor once, but none to or from floating ops.

    Args:
        memory_bytes: Memory of each device [D].
    """
    fine, units, labels = problem.units.fine, problem.units.graph, problem.units.partition.labels
    columns = [np.bincount(labels, np.nan_to_num(column)) for column in costs.time_s.T]
    time_s = np.stack(columns, axis=1).astype(np.float64)
    time_s[~problem.supported] = np.nan
    by_unit = ScheduleProblem.from_graph(
        units,
        time_s,
        problem.devices,
        launch_s=costs.launch_s,
        link_latency_s=costs.link_latency_s,
        link_bandwidth_bytes_per_s=costs.link_bandwidth_bytes_per_s,
        memory_bytes=memory_bytes,
        source=costs.source,
        slowdown=costs.slowdown,
    )
    floats = floating_ops(fine)
    tensors = (fine.edge_src, fine.edge_dst, fine.edge_src_port, fine.edge_bytes)
    edges, edge_bytes, edge_port = unit_edges(*tensors, labels, ~floats[fine.edge_src] & ~floats[fine.edge_dst])
    src, dst = edges.T.copy()
    by_unit = replace(by_unit, edge_src=src, edge_dst=dst, edge_bytes=edge_bytes, edge_port=edge_port)
    return replace(problem, costs=by_unit)
