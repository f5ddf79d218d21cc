"""ResultRecord: how a search ended, as the document ``result.json`` of its run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hsdag.ir.errors import FileFormatError
from hsdag.ir.placement import Placement, first_problem, parse_document, read_text, write_atomically
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.placement_costs import PlacementCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.measuring.latency import Comparison, Samples
from hsdag.runtime.measuring.profile import LARGEST, Figure, Table, figures, numbers
from hsdag.runtime.problems.cost_model import CostModel, CostSource
from hsdag.runtime.timeline.timeline import OpIntervals, Timeline, TransferIntervals

FORMAT_NAME: Literal["hsdag-result"] = "hsdag-result"
FORMAT_VERSION: Literal[1] = 1


_Index = Annotated[int, Field(ge=-1, lt=2**31)]
_Entry = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class CostsRecord(_Record):
    """What measurements made of the profile's costs: of HETERO all figures by op and link, else ``parameters``."""

    time_s: Table | None = None
    launch_s: list[Figure] | None = None
    link_latency_s: Table | None = None
    link_bandwidth_bytes_per_s: Table | None = None
    parameters: list[float] | None = None

    @staticmethod
    def of(costs: PlacementCosts | None) -> CostsRecord | None:
        """The record of calibrated costs; None where the executor's costs are those of the profile."""
        if isinstance(costs, HeteroCosts):
            names = ("time_s", "launch_s", "link_latency_s", "link_bandwidth_bytes_per_s")
            return CostsRecord(**{name: figures(getattr(costs.costs, name)) for name in names})
        if isinstance(costs, WorkConservingCosts):
            return CostsRecord(parameters=costs.parameters.tolist())
        return None

    def applied(self, costs: PlacementCosts) -> PlacementCosts:
        """The profile's costs with the figures of the record. Raises ValueError where these do not fit."""
        if isinstance(costs, HeteroCosts) and self.time_s is not None:
            links = numbers(self.link_latency_s), numbers(self.link_bandwidth_bytes_per_s, np.inf)
            found = numbers(self.time_s), numbers(self.launch_s), *links
            if found[0].shape != costs.costs.time_s.shape:
                raise ValueError("the costs are for another model, or for other devices")
            return HeteroCosts(costs.collector, CostModel(*found, CostSource.CALIBRATED, costs.costs.slowdown))
        if isinstance(costs, WorkConservingCosts) and self.parameters is not None:
            if len(self.parameters) != len(costs.parameters):
                raise ValueError("the costs are for other devices")
            return WorkConservingCosts(costs.table, np.array(self.parameters), CostSource.CALIBRATED, costs.slowdown)
        raise ValueError("the costs are for another executor")


class TimelineRecord(_Record):
    """A ``Timeline``; of ``ops`` the columns op, device, start_s and end_s, of ``transfers`` those of its intervals."""

    name: str
    op_names: list[str]
    op_types: list[str]
    device_names: list[str]
    ops: dict[str, list[_Entry]]
    transfers: dict[str, list[_Entry]]
    edges: list[tuple[_Index, _Index]]
    simulated: bool

    @staticmethod
    def of(timeline: Timeline) -> TimelineRecord:
        """The record of a timeline."""
        return TimelineRecord(
            name=timeline.name,
            op_names=list(timeline.op_names),
            op_types=list(timeline.op_types),
            device_names=list(timeline.device_names),
            ops={name: column.tolist() for name, column in vars(timeline.ops).items()},
            transfers={name: column.tolist() for name, column in vars(timeline.transfers).items()},
            edges=timeline.edges.tolist(),
            simulated=timeline.simulated,
        )

    def timeline(self) -> Timeline:
        """The timeline. Raises ValueError where its columns do not fit together."""
        return Timeline(
            name=self.name,
            op_names=tuple(self.op_names),
            op_types=tuple(self.op_types),
            device_names=tuple(self.device_names),
            ops=OpIntervals(**_columns(self.ops, OpIntervals)),
            transfers=TransferIntervals(**_columns(self.transfers, TransferIntervals)),
            edges=np.array(self.edges, dtype=np.int64).reshape(-1, 2),
            simulated=self.simulated,
        )


class ResultRecord(_Record):
    """How a search ended.

    ``answer`` is the JSON answer of ``hsdag place``. ``samples_s`` are the seconds of every inference of the final
    comparison, by candidate and round; ``costs`` what the measurements made of the profile; ``timeline`` a measured run
    of the answer, where there was time for one; ``environment`` the versions and the hardware by their names; and
    ``finished`` the time in UTC (ISO 8601).
    """

    format: Literal["hsdag-result"] = FORMAT_NAME
    version: Literal[1] = FORMAT_VERSION
    answer: dict[str, Any]
    placement: Placement
    model_path: str | None
    samples_s: dict[str, list[list[float]]]
    costs: CostsRecord | None = None
    timeline: TimelineRecord | None = None
    environment: dict[str, str]
    budget_s: float
    finished: str

    @property
    def comparison(self) -> Comparison:
        """The final comparison, of the candidates that ran."""
        rounds = {name: tuple(map(tuple, each)) for name, each in self.samples_s.items()}
        return Comparison({name: Samples(each) for name, each in rounds.items()}, {})


def write_result(record: ResultRecord, path: Path) -> None:
    """Write the document atomically. Raises OutputError."""
    write_atomically(path, (record.model_dump_json() + "\n").encode())


def read_result(path: Path) -> ResultRecord:
    """Read the document. Raises FileFormatError when it is missing, or is none."""
    document = parse_document(read_text(path), str(path), FORMAT_NAME, (FORMAT_VERSION,))
    try:
        return ResultRecord.model_validate(document)
    except ValidationError as error:
        raise FileFormatError(f"{path}: {first_problem(error)}") from error


def _columns(written: Mapping[str, list[float]], kind: type[OpIntervals | TransferIntervals]) -> dict[str, Any]:
    """The columns of intervals by name: seconds and bytes are floats, all others indices. Raises ValueError."""
    names = {each.name for each in fields(kind)}
    if set(written) != names:
        raise ValueError(f"intervals need the columns {', '.join(sorted(names))}")
    floats = ("_s", "_bytes")
    try:
        return {
            name: np.array(column, dtype=np.float64 if name.endswith(floats) else np.int64)
            for name, column in written.items()
        }
    except OverflowError as error:
        raise ValueError("an index of the intervals is beyond 64 bits") from error
