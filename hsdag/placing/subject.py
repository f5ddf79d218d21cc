"""Subject: what is placed, read once: a model, or a workload for the CUDA engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from hsdag.ir.errors import ModelError, OptionError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.coarsen import CoarseGraph
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.reader import Shapes, input_name, load_model
from hsdag.ir.graph.scenario import Scenario
from hsdag.ir.graph.sizing import sized
from hsdag.models import Workload
from hsdag.models.registry import names_workload, workload_called
from hsdag.runtime.problem.cost_model import CostModel, CostSource
from hsdag.runtime.problem.problem_file import read_problem, write_problem
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.units import graph_of_problem, problem_of


@dataclass(frozen=True, eq=False)
class Subject:
    """A graph, the file that the worker reads it from, its name where it has one, fixed shapes, and scenarios.

    ``units`` are what is placed, and ``labels`` what is known of each op, where that is not left to the graph.
    """

    graph: ComputationGraph
    path: Path
    name: str | None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    scenarios: tuple[Scenario, ...] = ()
    units: CoarseGraph | None = None
    labels: OpLabels | None = None

    @property
    def is_workload(self) -> bool:
        """Whether ops are given by expressions, not by a model."""
        return self.units is not None

    @property
    def reduces_precision(self) -> bool:
        """Whether an op that depends on data computes in less than single precision."""
        computes = ~floating_ops(self.graph)
        return bool(np.isin(np.array(self.graph.element_types), ("f16", "bf16"))[computes].any())


def read_model(
    source: Any, shapes: Shapes | None, spare: Shapes | None, folder: Path, scenarios: Sequence[Scenario] = ()
) -> Subject:
    """A model from its file, or an ``ov.Model`` or torch module, which is written to ``folder``.

    With ``scenarios`` inputs may stay dynamic, and the graph has their sizes. Raises ModelError as reading does.
    """
    if isinstance(source, str | Path):
        path, name = Path(source), Path(source).stem
    else:
        path, name = folder / "model.xml", None
        ov.serialize(load_model(source, shapes, spare=spare, dynamic=bool(scenarios)), path)
    model = load_model(path, shapes, spare=spare, dynamic=bool(scenarios))
    if shapes or spare:
        fixed = [port for port in model.inputs if port.get_partial_shape().is_static]
        shapes = {input_name(port): tuple(port.get_shape()) for port in fixed}
    of_model = tuple(scenario.of(model) for scenario in scenarios)
    graph = graph_of(model)
    return Subject(sized(graph, model, of_model) if of_model else graph, path, name, dict(shapes or {}), of_model)


def read_for_torch(
    source: Any, shapes: Shapes | None, spare: Shapes | None, folder: Path, scenarios: Sequence[Scenario], devices: int
) -> Subject:
    """A workload, by name or as an object, a problem file, or else a model, for so many devices of torch's.

    Raises OptionError for scenarios, and as reading does.
    """
    if scenarios:
        raise OptionError("the CUDA engine runs models of fixed shapes: fix them with --shape, without data shapes")
    is_text = isinstance(source, str | Path)
    if isinstance(source, Workload) or (is_text and (names_workload(str(source)) or str(source).endswith(".json"))):
        return read_workload(source, devices, folder)
    return read_model(source, shapes, spare, folder)


def read_workload(source: Any, num_devices: int, folder: Path) -> Subject:
    """A workload for so many devices where it does not say so itself, or a problem file whose ops have expressions.

    Raises ModelError for an op without an expression, and as finding a workload and reading a file do.
    """
    if isinstance(source, Workload):
        name, workload = source.graph.name, source
    elif names_workload(str(source)):
        name, workload = workload_called(str(source), num_devices)
    else:
        problem, path = read_problem(Path(source)), Path(source)
        return _checked(Subject(graph_of_problem(problem), path, problem.name), problem)
    problem, path = _as_problem(workload), folder / "workload.json"
    write_problem(problem, path)
    return _checked(Subject(workload.graph, path, name), problem)


def _as_problem(workload: Workload) -> ScheduleProblem:
    """A workload as a problem on one device whose times say nothing."""
    graph = workload.graph
    times, link = np.ones((graph.num_ops, 1)), np.zeros((1, 1))
    costs = CostModel(times, np.zeros(1), link, np.full((1, 1), np.inf), CostSource.ANALYTIC)
    nothing = ("",) * graph.num_ops
    labels = OpLabels(graph.op_types, nothing, workload.meta_ops, workload.roles, workload.expressions)
    return replace(ScheduleProblem.from_graph(graph, costs, ("any",)), labels=labels)


def _checked(subject: Subject, problem: ScheduleProblem) -> Subject:
    """A subject with the units and labels of its problem, whose ops must have expressions."""
    for op, text in zip(problem.op_names, problem.labels.expressions, strict=True):
        if not text:
            raise ModelError(
                f"op {op!r} of {subject.name!r} has no expression, so it cannot be run: the problem holds costs alone"
            )
    units = replace(problem_of(problem).units, fine=subject.graph)
    return replace(subject, units=units, labels=replace(problem.labels, canonical=subject.graph.canonical_names))
