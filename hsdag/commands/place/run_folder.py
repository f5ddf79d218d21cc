"""Run folder of a search, which keeps it on disk so that a kill loses at most the evaluation in progress.

Legend: N ops, U placement units.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shlex
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
from pydantic import Field, ValidationError, create_model, model_validator

from hsdag.base.errors import FileFormatError, OutputError, SearchError, option
from hsdag.base.files import FileLock, first_problem, parse_record, read_text, write_atomically
from hsdag.commands.place.loaded_model import PlacedModel
from hsdag.commands.place.records import PlanRecord
from hsdag.commands.place.result import RESULT_VERSION, PlaceResult
from hsdag.ir.device import DeviceIndex, DeviceSpec
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.graph_file import read_graph_file, write_graph_file
from hsdag.ir.placement.placement import ExecutorName, ModelRecord, Placement, Record, refuse_model
from hsdag.methods.policy_file import StateFile
from hsdag.methods.registry import find_preset
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.measuring.profile import ModelProfile, read_profile, write_profile
from hsdag.runtime.objectives import find_objective
from hsdag.runtime.problem.pins import parse_pins, pinned_devices
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import OpLabels
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.base import Score
from hsdag.search.evaluators.recording import Event
from hsdag.search.options import EXECUTION, executor_of, recorded_options

OPTIONS = "options"
"""File with the options of the command line, which ``hsdag place MODEL @FILE`` reads."""

RUN, GRAPH, PROFILE, RESULT, EVENTS = "run.json", "graph.json", "profile.json", "result.json", "events.jsonl"
"""Files of a run folder: the record of the search, its model, the profile, the result, and the events."""

_OF_THE_COMMAND = ("model_path", "arguments")
"""Fields that may differ in the command that resumes a search."""

_R = TypeVar("_R", bound=PlanRecord)


class _RunRecord(Record):
    """Record of the model, devices and units of a search; a resumed search must have the same."""

    format: Literal["hsdag-run"] = "hsdag-run"
    version: Literal[2] = 2
    model: ModelRecord
    devices: list[DeviceSpec]
    placed: list[str] = Field(default_factory=list)
    """Names of the devices to place on; the others are rivals, like the whole CPU."""
    defaults: dict[str, str] = Field(default_factory=dict)
    """Rivals that are devices without chosen settings, to the names of the same devices with them."""
    num_units: int
    data_shapes: tuple[str, ...] = ()
    labels: dict[str, list[str]] | None = None
    """Columns of the ``OpLabels`` of a workload; None for a model."""
    model_path: str | None = None
    arguments: tuple[str, ...] | None = None
    """Words of the command line that began the search, without the model; None if the API began it."""

    @model_validator(mode="after")
    def _placed_devices_are_listed(self) -> _RunRecord:
        names = [device.name for device in self.devices]
        if len({*names}) != len(names) or len({*self.placed}) != len(self.placed) or not {*self.placed} <= {*names}:
            raise ValueError("'devices' needs different names, and 'placed' may name each of them once")
        return self


_OPTIONS: dict[str, Any] = {
    name: (kind, "measured" if name == "reward" else default) for name, (kind, default) in recorded_options().items()
}

if TYPE_CHECKING:
    RunRecord: TypeAlias = Any
else:
    RunRecord = create_model("RunRecord", __base__=_RunRecord, **_OPTIONS)
    """Record of a search, with the options that ``PlaceOptions`` records."""


def _other(name: str) -> str:
    """Return words for a field of the record that differs."""
    words = {
        "devices": f"other {option('devices')}, or other properties of these",
        "placed": f"other {option('devices')}",
        "defaults": "other settings of devices",
        "changes": "other hyper-parameters",
        "data_shapes": f"another {option('data_shape')} or {option('tokens')}",
        "memory_bytes": f"another {option('memory')}",
        "pins": f"other pins ({option('pins')})",
        "num_units": "other placement units",
    }
    return words.get(name) or f"another {option(name)}"


class EventRecord(PlanRecord):
    """An evaluated plan, with its value in the objective's unit or the reason of its failure."""

    value: float | None = None
    failure: str | None = None
    elapsed_s: float

    @model_validator(mode="after")
    def _has_a_score(self) -> EventRecord:
        if (self.value is None) == (self.failure is None):
            raise ValueError("an event has either a value or a failure")
        return self


class RunFolder(AbstractContextManager["RunFolder"]):
    """Folder that keeps a search, while it runs and after it has ended.

    It holds the record, the graph and the profile of the model, and at the end the result. Events, and simulated plans
    that were among the best when found, are appended and synced to disk, one JSON object per line; a line cut short by
    a kill is dropped when the search is resumed. A folder that is created or resumed is locked against other searches
    until its context is left.
    """

    def __init__(self, path: Path, record: RunRecord, lock: FileLock | None = None) -> None:
        self.path = path
        self.record = record
        self._lock = lock
        self.events_path, self.candidates_path = path / EVENTS, path / "candidates.jsonl"
        self.state = StateFile(path / "policy.safetensors")  # of the placer

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.release()

    @staticmethod
    def create(path: Path, record: RunRecord) -> RunFolder:
        """Create and lock a run folder; rename an earlier one of the same name to the next free number.

        Raises OutputError if the folder cannot be made or the path is something else, SearchError if another process
        is searching in it.
        """
        try:
            if path.exists():
                if not (path / RUN).is_file():
                    raise OutputError(
                        f"{path} exists and is not a run folder; name another one with {option('run_folder')}"
                    )
                _lock(path).release()
                names = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
                path.rename(next(name for name in names if not name.exists()))
            begun = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
            begun.mkdir(parents=True)
            write_atomically(begun / RUN, (record.model_dump_json(indent=1) + "\n").encode())
            words = shlex.join(record.arguments or ()).replace(" --", "\n--")
            write_atomically(begun / OPTIONS, f"{words}\n".encode())
            begun.rename(path)  # a kill before this leaves no folder without its record
        except OSError as error:
            raise OutputError(f"run folder {path} cannot be created: {error.strerror or error}") from error
        return RunFolder(path, record, _lock(path))

    @staticmethod
    def resume(path: Path, record: RunRecord) -> RunFolder:
        """Lock a run folder to continue its search. Raises SearchError if its record differs from ``record``."""
        kept = read_record(path)
        names = sorted(RunRecord.model_fields, key=lambda name: name == "num_units")  # depends on the others
        for name in names:
            if name not in _OF_THE_COMMAND and getattr(kept, name) != getattr(record, name):
                what = _other(name)
                raise SearchError(
                    f"{path} is a search with {what}; resume it with the settings it was "
                    f"started with, or start again without {option('resume')}"
                )
        folder = RunFolder(path, record, _lock(path))
        (path / RESULT).unlink(missing_ok=True)  # the search is no longer finished
        return folder

    @staticmethod
    def load(path: str | Path | PlaceResult) -> RunFolder:
        """Return a run folder to read, while a search may still write to it.

        Args:
            path: The folder, its result, or the placement file beside it.

        Raises SearchError if there is no run folder, or one of an earlier version, FileFormatError for a damaged
        record. Properties of the folder raise FileFormatError for damaged files as well.
        """
        if isinstance(path, PlaceResult):
            if path.run_folder is None:
                raise SearchError("the search was kept in no folder: place with run_folder, over several devices")
            path = path.run_folder
        refuse_model(path)
        folder = Path(path) if Path(path).is_dir() else Path(path).with_suffix(".run")
        if Path(path).is_file() and not folder.exists():
            none = "a search over one device keeps none, and 'hsdag explain' takes --model in its place"
            raise SearchError(f"there is no run folder {folder} beside {path}: {none}")
        if not (folder / RUN).is_file():
            raise SearchError(f"{folder} is no run folder: name the one that 'hsdag place' says it keeps the search in")
        if not (folder / GRAPH).is_file():
            raise SearchError(f"{folder} has no {GRAPH}, so it cannot be shown: place the model again")
        return RunFolder(folder, read_record(folder))

    def keep_model(self, graph: ComputationGraph, profile: ModelProfile | None) -> None:
        """Write the graph and the profile of the model. Raises OutputError."""
        write_graph_file(graph, self.path / GRAPH)
        if profile is not None:
            write_profile(profile, self.path / PROFILE)

    def append(self, event: Event) -> None:
        """Append one event. Raises OutputError."""
        plan = PlanRecord.of(event.plan, len(self.record.devices))
        value = event.score.value if event.score.failure is None else None
        _append(
            self.events_path,
            [EventRecord(**dict(plan), value=value, failure=event.score.failure, elapsed_s=event.elapsed_s)],
        )

    @property
    def events(self) -> list[Event]:
        """Return all events, in order. Raises FileFormatError."""
        return [
            Event(plan, Score(np.inf if written.value is None else written.value, written.failure), written.elapsed_s)
            for written, plan in self._plans(self.events_path, EventRecord, "not an event of a search")
        ]

    def keep(self, plans: Sequence[Plan]) -> None:
        """Append simulated plans. Raises OutputError."""
        _append(self.candidates_path, [PlanRecord.of(plan, len(self.record.devices)) for plan in plans])

    @property
    def kept(self) -> list[Plan]:
        """Return the simulated plans that were kept, in order. Raises FileFormatError."""
        return [plan for _, plan in self._plans(self.candidates_path, PlanRecord, "not a plan of a search")]

    def _plans(self, path: Path, kind: type[_R], otherwise: str) -> Iterator[tuple[_R, Plan]]:
        """Yield each record of a file with its plan; in a locked folder, truncate an unfinished last line."""
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if self._lock is not None and len(whole) < len(content):
            os.truncate(path, len(whole))
        for number, line in enumerate(whole.splitlines(), start=1):
            where = f"{path}, line {number}"
            try:
                record = kind.model_validate_json(line)
            except ValidationError as error:
                raise FileFormatError(f"{where}: {otherwise}") from error
            yield record, record.plan(self.record.num_units, len(self.record.devices), where)

    @property
    def executor(self) -> ExecutorName:
        """Return the executor of the answer if that is a split, else the one that the search is for."""
        if self.placement is not None and len(self.placement.used_devices) > 1:
            return self.placement.executor
        return executor_of(self.record.executor)

    @cached_property
    def graph(self) -> ComputationGraph:
        """Return the graph of the model."""
        return read_graph_file(self.path / GRAPH)

    @cached_property
    def profile(self) -> ModelProfile | None:
        """Return the profile of the model from before the search; None if there is none."""
        if not (self.path / PROFILE).is_file():
            return None
        profile = read_profile(self.path / PROFILE)
        if any(len(times.time_s) != self.graph.num_ops for times in profile.times):
            raise FileFormatError(f"{self.path / PROFILE}: the profile is of another model than {GRAPH}")
        if [spec.name for spec in profile.devices] != self.record.placed:
            raise FileFormatError(
                f"{self.path / PROFILE}: the profile is of other devices than {RUN} says were placed on"
            )
        return profile

    @cached_property
    def result(self) -> PlaceResult | None:
        """Return the result of the search; None if it has not ended."""
        path = self.path / RESULT
        return parse_record(PlaceResult, read_text(path), str(path), (RESULT_VERSION,)) if path.is_file() else None

    @property
    def placement(self) -> Placement | None:
        """Return the placement of the answer; None if the search has not ended."""
        return None if self.result is None else self.result.placement

    @cached_property
    def problem(self) -> Problem:
        """Return the problem of the search; ops without a time on a device count as not supported there.

        Raises FileFormatError if its number of units differs from the record's.
        """
        model, profile = self._model, self.profile
        refused = [np.zeros(0, dtype=np.int64)] * len(model.devices)
        if profile is not None:
            refused = [np.flatnonzero(np.isnan(times.time_s)) for times in profile.times]
        share = find_preset(self.record.method, self.record.preset).max_share
        problem = model.problem(refused, () if profile is None else profile.fused, max_share=share)
        if profile is not None:
            problem = model.priced(problem, profile, self.record.memory_bytes, by_op=self.executor == "cuda")
        if problem.num_units != self.record.num_units:
            raise FileFormatError(
                f"{self.path / GRAPH} has {problem.num_units} placement units, but {RUN} was about "
                f"{self.record.num_units}: the folder is of another version of hsdag; place the model again"
            )
        hetero = self.costs if isinstance(self.costs, HeteroCosts) else None
        return replace(problem, semantics=Semantics(execution=EXECUTION[self.executor]), ops=hetero)

    @cached_property
    def costs(self) -> PlacementCosts | None:
        """Return the costs of placements as calibrated by the search; None without a profile.

        Raises FileFormatError if the calibration is for another model.
        """
        if self.profile is None:
            return None
        costs = self._model.costs(self.profile, self.executor)
        is_searched = self.executor == executor_of(self.record.executor)
        if self.result is None or self.result.costs is None or not is_searched:
            return costs
        try:
            return self.result.costs.applied(costs)
        except ValueError as error:
            raise FileFormatError(f"{self.path / RESULT}: {error}") from error

    @cached_property
    def _model(self) -> PlacedModel:
        record = self.record
        labels = units = None
        placed = [device for device in record.devices if device.name in record.placed]
        names = DeviceIndex.of(placed).names
        if record.labels is not None:
            labels = OpLabels(**{name: tuple(column) for name, column in record.labels.items()})
            if self.profile is not None:
                by_op = self.profile.costs(self.graph, by_op=True)
                units = replace(problem_of(replace(by_op, labels=labels)).units, fine=self.graph)
        pinned = pinned_devices(self.graph.op_names, parse_pins(record.pins), names, floating_ops(self.graph))
        return PlacedModel(self.graph, placed, find_objective(record.objective), units, labels, pinned)


def read_record(path: Path) -> RunRecord:
    """Read the record of a run folder. Raises FileFormatError."""
    try:
        return RunRecord.model_validate_json(read_text(path / RUN))
    except ValidationError as error:
        raise FileFormatError(f"{path / RUN}: {first_problem(error)}") from error


def _append(path: Path, records: Sequence[Record]) -> None:
    try:
        with path.open("ab") as file:
            file.write(b"".join(record.model_dump_json(exclude_none=True).encode() + b"\n" for record in records))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


def _lock(path: Path) -> FileLock:
    """Lock a run folder. Raises SearchError if another search holds the lock, OutputError if it cannot be written."""
    running = f"another search is running in {path}; wait for it, or name another with {option('run_folder')}"
    return FileLock(path / "lock", running)
