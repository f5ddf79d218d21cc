"""KeptRun: a run folder as reports and explanations read it, whether the search has ended or not.

Legend: N ops, U placement units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from hsdag.ir.errors import FileFormatError, SearchError
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.graph_file import read_graph_file
from hsdag.ir.placement.placement import ExecutorName, Placement
from hsdag.methods.registry import find_preset
from hsdag.placing.placed_model import PlacedModel
from hsdag.placing.result import PlaceResult, read_result
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.placement_costs import PlacementCosts
from hsdag.runtime.measuring.profile import ModelProfile, read_profile
from hsdag.runtime.objectives import find_objective
from hsdag.runtime.problem.pins import parse_pins, pinned_devices
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of, unit_ranks
from hsdag.scoring.recording import Event
from hsdag.search.options import EXECUTION, parse_executor
from hsdag.search.run_folder import GRAPH, PROFILE, RESULT, RUN, RunRecord, read_events, read_run_record


@dataclass(frozen=True, eq=False)
class KeptRun:
    """What a search left on disk; ``profile`` is None where nothing was profiled, ``result`` where it did not end."""

    path: Path
    record: RunRecord
    graph: ComputationGraph
    events: tuple[Event, ...]
    profile: ModelProfile | None = None
    result: PlaceResult | None = None

    @staticmethod
    def load(path: str | Path) -> KeptRun:
        """Read a run folder, of which nothing is changed; it may be one that a search is writing to.

        Raises SearchError where it holds no search, or one of an earlier version, FileFormatError for a damaged file.
        """
        folder = Path(path)
        if not (folder / RUN).is_file():
            raise SearchError(f"{folder} is no run folder: name the one that 'hsdag place' says it keeps the search in")
        record = read_run_record(folder)
        if not (folder / GRAPH).is_file():
            raise SearchError(f"{folder} has no {GRAPH}, so it cannot be shown: place the model again")
        profile = read_profile(folder / PROFILE) if (folder / PROFILE).is_file() else None
        result = read_result(folder / RESULT) if (folder / RESULT).is_file() else None
        graph = read_graph_file(folder / GRAPH)
        if profile is not None and any(len(times.time_s) != graph.num_ops for times in profile.times):
            raise FileFormatError(f"{folder / PROFILE}: the profile is of another model than {GRAPH}")
        if profile is not None and [spec.name for spec in profile.devices] != record.placed:
            raise FileFormatError(f"{folder / PROFILE}: the profile is of other devices than {RUN} says were placed on")
        return KeptRun(folder, record, graph, tuple(read_events(folder, record)), profile, result)

    @staticmethod
    def beside(placement: str | Path) -> KeptRun:
        """The run that a placement file came from: its own name with .run, as ``hsdag place`` calls it.

        A run folder is taken, too. Raises SearchError where there is none, else as ``load`` does.
        """
        path = Path(placement)
        if path.is_dir():
            return KeptRun.load(path)
        folder = path.with_suffix(".run")
        if not (folder / RUN).is_file():
            raise SearchError(f"no run folder {folder} lies beside {path}; name the one that the search was kept in")
        return KeptRun.load(folder)

    @property
    def executor(self) -> ExecutorName:
        """What runs the placed model."""
        return parse_executor(self.record.executor)

    @property
    def placement(self) -> Placement | None:
        """The answer; None where the search did not end."""
        return None if self.result is None else self.result.placement

    @cached_property
    def problem(self) -> Problem:
        """The problem that was searched over; ops without a time on a device are those that it does not run.

        Raises FileFormatError where it has other units than the record says.
        """
        nothing = np.zeros(0, dtype=np.int64)
        refused = [nothing] * len(self._model.devices)
        if self.profile is not None:
            refused = [np.flatnonzero(np.isnan(times.time_s)) for times in self.profile.times]
        share, limits = find_preset(self.record.method, self.record.preset).max_share, None
        if self.profile is not None:
            limits = self._model.memory_bytes(self.profile, self.record.memory_bytes)
        by_op = self.executor == "cuda"
        problem = self._model.problem(refused, self.profile, limits, max_share=share, by_op=by_op)
        if problem.num_units != self.record.num_units:
            raise FileFormatError(
                f"{self.path / GRAPH} has {problem.num_units} placement units, but {RUN} was about "
                f"{self.record.num_units}: the folder is of another version of hsdag; place the model again"
            )
        hetero = self.costs if isinstance(self.costs, HeteroCosts) else None
        return replace(problem, semantics=Semantics(execution=EXECUTION[self.executor]), hetero=hetero)

    @cached_property
    def costs(self) -> PlacementCosts | None:
        """What placements take, as the measurements of the search left it; None where nothing was profiled.

        Raises FileFormatError where these are of another model.
        """
        if self.profile is None:
            return None
        costs = self._model.costs(self.profile, self.executor)
        if self.result is None or self.result.costs is None:
            return costs
        try:
            return self.result.costs.applied(costs)
        except ValueError as error:
            raise FileFormatError(f"{self.path / RESULT}: {error}") from error

    def plan_of(self, placement: Placement) -> Plan | None:
        """A placement of this model as a plan over units; None where it parts a unit or has other devices.

        Raises PlacementError where it is for another model.
        """
        index, labels = {name: d for d, name in enumerate(self.problem.devices)}, self.problem.units.partition.labels
        devices = np.array([index.get(name, -1) for name in placement.devices_of(self.graph)], dtype=np.int64)
        units = np.full(self.problem.num_units, -1, dtype=np.int64)
        units[labels] = devices
        if (devices < 0).any() or (units[labels] != devices).any():
            return None
        ranks = placement.priority_of(self.graph)
        return Plan(units, None if ranks is None or None in ranks else unit_ranks(labels, np.asarray(ranks)))

    @cached_property
    def _model(self) -> PlacedModel:
        record, labels, units = self.record, None, None
        placed = [device.spec() for device in record.devices if device.name in record.placed]
        if record.labels is not None:
            labels = OpLabels(**{name: tuple(column) for name, column in record.labels.items()})
            if self.profile is not None:
                names = tuple(spec.name for spec in placed)
                by_op = ScheduleProblem.from_graph(self.graph, self.profile.op_by_op_costs(), names)
                units = replace(problem_of(replace(by_op, labels=labels)).units, fine=self.graph)
        devices, floats = [spec.name for spec in placed], floating_ops(self.graph)
        pinned = pinned_devices(self.graph.op_names, parse_pins(record.pins), devices, floats)
        return PlacedModel(self.graph, placed, find_objective(record.objective), units, labels, pinned)
