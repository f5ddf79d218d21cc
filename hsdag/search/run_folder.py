"""Run folders: what a search keeps on disk, so that killing it loses at most the evaluation in flight."""

from __future__ import annotations

import itertools
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, create_model, model_validator

from hsdag.ir.errors import FileFormatError, OutputError, SearchError
from hsdag.ir.files import FileLock, first_problem, read_text, write_atomically
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.graph_file import write_graph_file
from hsdag.ir.placement.placement import DeviceRecord, ModelRecord
from hsdag.runtime.measuring.profile import ModelProfile, write_profile
from hsdag.runtime.problem.plan import Plan
from hsdag.scoring.base import Score
from hsdag.scoring.policy_file import StateFile
from hsdag.scoring.recording import Event
from hsdag.search.options import recorded_options

if TYPE_CHECKING:
    import torch


RUN, GRAPH, PROFILE, RESULT, EVENTS = "run.json", "graph.json", "profile.json", "result.json", "events.jsonl"
"""Files of a run folder: what the search is about, its model, what was measured of it, how it ended, its events."""

_SAID = {
    "devices": "other --devices, or other properties of these",
    "placed": "other --devices",
    "changes": "other hyper-parameters",
    "data_shapes": "another --data-shape or --tokens",
    "memory_bytes": "another --memory",
    "pins": "other pins (--pin)",
    "num_units": "other placement units",
}
"""How a field of the record is called in a message, where its name does not say it."""

_SAYING = ("model_path", "arguments")
"""Fields that say how a search was begun, which another command can go on with."""

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
"""A placement is written as one character per unit; over more devices than this, as a list of numbers."""


class _RunRecord(BaseModel):
    """What a search is about. A resumed one must be about the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["hsdag-run"] = "hsdag-run"
    version: Literal[2] = 2
    model: ModelRecord
    devices: list[DeviceRecord]
    placed: list[str] = []
    """Names of the devices that are placed on; the others are rivals, such as the whole CPU."""
    num_units: int
    data_shapes: tuple[str, ...] = ()
    labels: dict[str, list[str]] | None = None
    """Of a workload, the columns of its ``OpLabels``."""
    model_path: str | None = None
    arguments: tuple[str, ...] | None = None
    """Words of the command line that began the search, without the model and the budget; None where none could."""

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
    """What a search is about, with the options that ``PlaceOptions`` has recorded."""


class PlanRecord(BaseModel):
    """A plan: the device of every placement unit, and perhaps its rank."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    placement: str | list[int]
    order: list[int] | None = None

    @staticmethod
    def of(plan: Plan, num_devices: int) -> PlanRecord:
        """The record of a plan; with few devices the placement is a text, one character per unit."""
        return PlanRecord(**_fields(plan, num_devices))

    def plan(self, num_units: int, num_devices: int, where: str) -> Plan:
        """The plan. Raises FileFormatError, which says ``where`` the record is, for one that does not fit."""
        written, order = self.placement, self.order
        devices = [_ALPHABET.find(c) for c in written] if isinstance(written, str) else written
        fits = len(devices) == num_units and 0 <= min(devices) <= max(devices) < num_devices
        if not fits or (order is not None and len(order) != len(devices)):
            raise FileFormatError(f"{where}: the placement does not fit the model")
        return Plan(np.asarray(devices), None if order is None else np.asarray(order))


class EventRecord(PlanRecord):
    """A plan that was evaluated: its value in the objective's unit, or why it has none.

    ``box`` is in files of earlier versions.
    """

    value: float | None = None
    failure: str | None = None
    elapsed_s: float
    box: str | None = None

    @model_validator(mode="after")
    def _has_a_score(self) -> EventRecord:
        if (self.value is None) == (self.failure is None):
            raise ValueError("an event has either a value or a failure")
        return self

    @property
    def score(self) -> Score:
        return Score(math.inf if self.value is None else self.value, self.failure)


_R = TypeVar("_R", bound=PlanRecord)


class RunFolder:
    """A folder with ``run.json``, ``events.jsonl``, ``candidates.jsonl`` and ``policy.safetensors``.

    The graph and the profile of the model lie beside them, and in the end ``result.json``; ``KeptRun`` reads all that.
    Events, and simulated plans that were among the best when they came, are appended and fsynced, one JSON object a
    line; a line cut short by a kill is dropped when the run is resumed. The last file has the placer's state. A lock
    keeps other searches out until the search ends: use the folder as a context manager.
    """

    def __init__(self, path: Path, record: RunRecord) -> None:
        self.path = path
        self.record = record
        self.events_path, self.candidates_path = path / EVENTS, path / "candidates.jsonl"
        self.policy_path = path / "policy.safetensors"
        self._state = StateFile(self.policy_path)
        self._lock = _lock(path)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @staticmethod
    def create(path: Path, record: RunRecord) -> RunFolder:
        """Start a run; an earlier run of that name is kept under the next free number.

        Raises OutputError when the folder cannot be made, or something else has its name; SearchError when
        another process searches in it.
        """
        try:
            if path.exists():
                if not (path / RUN).is_file():
                    raise OutputError(f"{path} exists and is not a run folder; name another one with --run")
                _lock(path).release()
                names = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
                path.rename(next(name for name in names if not name.exists()))
            begun = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
            begun.mkdir(parents=True)
            write_atomically(begun / RUN, (record.model_dump_json(indent=1) + "\n").encode())
            begun.rename(path)  # so that no kill leaves a folder without its record
        except OSError as error:
            raise OutputError(f"run folder {path} cannot be created: {error.strerror or error}") from error
        return RunFolder(path, record)

    @staticmethod
    def resume(path: Path, record: RunRecord) -> RunFolder:
        """Go on with a run. Raises SearchError when there is none, or it is about something else."""
        if not (path / RUN).exists():
            raise SearchError(f"nothing to resume: {path} holds no search; start it without --resume")
        found = read_run_record(path)
        names = sorted(RunRecord.model_fields, key=lambda name: name == "num_units")  # which follow from the others
        for name in (name for name in names if name not in _SAYING and getattr(found, name) != getattr(record, name)):
            what = _SAID.get(name) or f"another --{name.replace('_', '-')}"
            raise SearchError(
                f"{path} is a search with {what}; resume it with the settings it was "
                "started with, or start again without --resume"
            )
        folder = RunFolder(path, record)
        (path / RESULT).unlink(missing_ok=True)  # of the part before, whose end is not that of the search any more
        return folder

    def keep_model(self, graph: ComputationGraph, profile: ModelProfile | None) -> None:
        """Write what the search is about beside its record. Raises OutputError."""
        write_graph_file(graph, self.path / GRAPH)
        if profile is not None:
            write_profile(profile, self.path / PROFILE)

    def append(self, event: Event) -> None:
        """Write one event to the disk. Raises OutputError."""
        score = event.score
        record = EventRecord(
            **_fields(event.plan, len(self.record.devices)),
            value=score.value if score.failure is None else None,
            failure=score.failure,
            elapsed_s=event.elapsed_s,
        )
        _append(self.events_path, [record])

    def events(self) -> list[Event]:
        """All events. Raises FileFormatError."""
        return read_events(self.path, self.record, mends=True)

    def keep(self, plans: Sequence[Plan]) -> None:
        """Write simulated plans to the disk. Raises OutputError."""
        _append(self.candidates_path, [PlanRecord.of(plan, len(self.record.devices)) for plan in plans])

    def kept(self) -> list[Plan]:
        """The simulated plans that were kept, in order. Raises FileFormatError."""
        records = _records(self.candidates_path, PlanRecord, "not a plan of a search", mends=True)
        return [record.plan(self.record.num_units, len(self.record.devices), where) for where, record in records]

    def save(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Replace the placer's state, weights and the rest in one atomic file."""
        self._state.save(tensors, state)

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """The placer's state, or None before the first update. Raises FileFormatError."""
        return self._state.load()


def read_run_record(path: Path) -> RunRecord:
    """What the search in a run folder is about. Raises FileFormatError."""
    try:
        return RunRecord.model_validate_json(read_text(path / RUN))
    except ValidationError as error:
        raise FileFormatError(f"{path / RUN}: {first_problem(error)}") from error


def read_events(path: Path, record: RunRecord, *, mends: bool = False) -> list[Event]:
    """All events in a run folder; ``mends`` cuts a last line off that was never finished. Raises FileFormatError."""
    records = _records(path / EVENTS, EventRecord, "not an event of a search", mends=mends)
    return [
        Event(written.plan(record.num_units, len(record.devices), where), written.score, written.elapsed_s)
        for where, written in records
    ]


def _fields(plan: Plan, num_devices: int) -> dict[str, Any]:
    devices: list[int] = plan.placement.tolist()
    short = "".join(_ALPHABET[d] for d in devices) if num_devices <= len(_ALPHABET) else devices
    return {"placement": short, "order": None if plan.order is None else plan.order.tolist()}


def _append(path: Path, records: Sequence[BaseModel]) -> None:
    """Append a line each, durably."""
    try:
        with path.open("ab") as file:
            file.write(b"".join(record.model_dump_json(exclude_none=True).encode() + b"\n" for record in records))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


def _records(path: Path, kind: type[_R], otherwise: str, *, mends: bool) -> Iterator[tuple[str, _R]]:
    """Where every record of a file is, and the record, but for a last line that was never finished."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if mends and len(whole) < len(content):
        os.truncate(path, len(whole))
    for number, line in enumerate(whole.splitlines(), start=1):
        where = f"{path}, line {number}"
        try:
            yield where, kind.model_validate_json(line)
        except ValidationError as error:
            raise FileFormatError(f"{where}: {otherwise}") from error


def _lock(path: Path) -> FileLock:
    """What keeps other searches out of a run folder. Raises SearchError, OutputError."""
    return FileLock(path / "lock", f"another search is running in {path}; wait for it, or name another with --run")
