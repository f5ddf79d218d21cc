"""PlaceResult: how ``hsdag place`` ended: its Python object, its JSON answer and ``result.json`` of its run folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationError, model_validator

from hsdag.drawing import Shown, html_summary, shortened
from hsdag.ir.errors import FileFormatError, OptionError
from hsdag.ir.files import first_problem, parse_document, read_text
from hsdag.ir.host import command_line
from hsdag.ir.placement.placement import Placement, Record, ReferenceName
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.measuring.latency import Comparison, Ratio, Samples
from hsdag.runtime.measuring.profile import Figure, Table, figures, numbers
from hsdag.runtime.objectives import find_objective
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import CostSource
from hsdag.runtime.timeline import Timeline
from hsdag.scoring.recording import Event
from hsdag.search.driver import Member

SHOWN_REASONS = 3
"""Number of reasons that a count of failures names; the run folder has all."""

LONGEST_REASON = 160

IN_FILE = {"samples", "costs", "timeline"}
"""Fields that the run folder alone keeps: a JSON answer of thousands of figures helps nobody."""

RUNNERS = {"hetero": "by HETERO", "work-conserving": "by hsdag's executor", "cuda": "by the torch engine"}

OF_HETERO = {"time_s": (), "launch_s": (), "link_latency_s": (), "link_bandwidth_bytes_per_s": (np.inf,)}
"""Figures of HETERO's costs, and what stands for one that is missing."""

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
"""A placement is written as one character per unit; over more devices than this, as a list of numbers."""


class PlanRecord(Record):
    """A plan: the device of every placement unit, and perhaps its rank."""

    placement: str | list[int]
    order: list[int] | None = None

    @staticmethod
    def of(plan: Plan, num_devices: int) -> PlanRecord:
        """The record of a plan; with few devices the placement is a text, one character per unit."""
        devices: list[int] = plan.placement.tolist()
        short = "".join(_ALPHABET[d] for d in devices) if num_devices <= len(_ALPHABET) else devices
        return PlanRecord(placement=short, order=None if plan.priority is None else plan.priority.tolist())

    def plan(self, num_units: int, num_devices: int, where: str) -> Plan:
        """The plan. Raises FileFormatError, which says ``where`` the record is, for one that does not fit."""
        written, order = self.placement, self.order
        devices = [_ALPHABET.find(c) for c in written] if isinstance(written, str) else written
        fits = len(devices) == num_units and 0 <= min(devices) <= max(devices) < num_devices
        if not fits or (order is not None and len(order) != len(devices)):
            raise FileFormatError(f"{where}: the placement does not fit the model")
        return Plan(np.asarray(devices), None if order is None else np.asarray(order))


class CostsRecord(Record):
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
            return CostsRecord(**{name: figures(getattr(costs.costs, name)) for name in OF_HETERO})
        return CostsRecord(parameters=costs.parameters.tolist()) if isinstance(costs, WorkConservingCosts) else None

    def applied(self, costs: PlacementCosts) -> PlacementCosts:
        """The profile's costs with the figures of the record. Raises ValueError where these do not fit."""
        if isinstance(costs, HeteroCosts) and self.time_s is not None:
            known: dict[str, Any] = {name: numbers(getattr(self, name), *ends) for name, ends in OF_HETERO.items()}
            return HeteroCosts(costs.collector, replace(costs.costs, **known, source=CostSource.CALIBRATED))
        if isinstance(costs, WorkConservingCosts) and self.parameters is not None:
            if len(self.parameters) != len(costs.parameters):
                raise ValueError("the costs are for other devices")
            return WorkConservingCosts(costs.table, np.array(self.parameters), CostSource.CALIBRATED, costs.slowdown)
        raise ValueError("the costs are for another executor")


class Row(Record):
    """A measured candidate: values in the objective's unit, the ratio to the best single device, ops by device.

    ``ci95`` is the interval of the ratio, without ends where too few ``rounds`` were run.
    """

    name: str
    median: float
    p95: float
    runs: int
    ratio: float
    ci95: tuple[float | None, float | None]
    rounds: int
    submodels: int
    ops: dict[str, int]
    is_answer: bool

    @property
    def interval_text(self) -> str:
        """The interval as tables have it, or that there were too few rounds."""
        low, high = self.ci95
        return Ratio(self.ratio, low or 0.0, np.inf if high is None else high, self.rounds).interval_text


class Tally(Record):
    """How many placements a search ran, or tried to, and simulated; ``failures`` counts those that failed by reason."""

    tried: int = 0
    failures: dict[str, int] = Field(default_factory=dict)
    simulated: int = 0

    @staticmethod
    def of(events: Sequence[Event], simulated: int = 0) -> Tally:
        """Of a search's events."""
        failed = Counter(e.score.failure for e in events if e.score.failure is not None)
        return Tally(tried=len(events), failures=dict(failed.most_common()), simulated=simulated)

    @property
    def num_failed(self) -> int:
        """Placements that were tried and have no figure."""
        return sum(self.failures.values())

    @property
    def words(self) -> str:
        """The count in words; failed placements are not called measured."""
        simulated = f", {self.simulated:,} simulated" if self.simulated else ""
        if not self.failures:
            return f"{placements_were(self.tried)} measured{simulated}"
        known = list(dict.fromkeys(shortened(reason, LONGEST_REASON) for reason in self.failures))
        reasons = "; ".join([*known[:SHOWN_REASONS], *["..."] * (len(known) > SHOWN_REASONS)])
        measured = self.tried - self.num_failed
        left = f"{measured} measured" if measured else "none was measured"
        return f"{placements_were(self.tried)} tried; {self.num_failed} failed ({reasons}), {left}{simulated}"


@dataclass(frozen=True)
class Verdict:
    """How the outputs of a candidate compare with those of ``versus``; ``reason`` why it is rejected, if it is.

    ``difference`` has their distances by name, None where one is not finite; it is None where they were not compared.
    """

    versus: ReferenceName
    tolerance: float
    difference: Mapping[str, float | None] | None = None
    reason: str | None = None
    ran: bool = True  # whether the candidate ran at all


class PlaceResult(Shown, Record):
    """A finished search, which can be used like its placement; every value is in ``unit``, that of the objective.

    ``value`` is the answer's median; ``rows`` have every candidate of the final comparison, the fastest first;
    ``failures`` say why others are missing, ``no_single`` why all single devices are, and ``turned_down`` why faster
    ones are not the answer. ``verdict`` is on the answer's outputs, ``weight_bytes`` its weights and state by device,
    and ``placement_file`` where it was written. ``finalists`` are the plans of the search that were compared, by name.
    ``samples`` are the values of every inference of the comparison, by candidate and round; ``costs`` what the
    measurements made of the profile, ``timeline`` a measured run of the answer, where there was time for one;
    ``bound`` says what could be gained at most, ``lines`` are the answer for people; ``environment`` the versions and
    the hardware by their names, and ``finished`` the time in UTC (ISO 8601).
    """

    format: Literal["hsdag-result"] = "hsdag-result"
    version: Literal[2] = 2
    sentence: str
    objective: str
    unit: str
    value: float
    placement: Placement
    placement_file: str | None = None
    rows: tuple[Row, ...]
    failures: dict[str, str] = Field(default_factory=dict)
    no_single: str = ""
    turned_down: dict[str, str] = Field(default_factory=dict)
    verdict: Verdict
    finalists: dict[str, PlanRecord] = Field(default_factory=dict)
    tally: Tally = Tally()
    members: tuple[Member, ...] = ()
    search_s: float = 0.0
    budget_s: float
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    bound: str = ""
    lines: tuple[str, ...] = ()
    weight_bytes: dict[str, float] = Field(default_factory=dict)
    run_folder: Path | None = None
    model_path: str | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    finished: str
    samples: dict[str, list[list[float]]] = Field(default_factory=dict)
    costs: CostsRecord | None = None
    timeline: Timeline | None = None

    @model_validator(mode="after")
    def _has_one_answer(self) -> PlaceResult:
        if sum(row.is_answer for row in self.rows) != 1:
            raise ValueError("one of the 'rows' has to be the answer")
        return self

    def __getattr__(self, name: str) -> Any:
        """All other attributes are the placement's: ``affinity``, ``save``, ``apply``, ``compile``, ..."""
        if name.startswith("_") or "placement" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.placement, name)

    @property
    def answer(self) -> Row:
        """The row of the candidate that is the answer."""
        return next(row for row in self.rows if row.is_answer)

    @property
    def comparison(self) -> Comparison:
        """The final comparison, of the candidates that ran."""
        rounds = {name: tuple(map(tuple, each)) for name, each in self.samples.items()}
        return Comparison({name: Samples(each) for name, each in rounds.items()}, {})

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Columns and cells of the comparison, the fastest candidate first."""
        objective = find_objective(self.objective)
        unit = objective.shown_unit
        columns = ["candidate", f"median {unit}", f"p95 {unit}", "x best device", "95% interval", "submodels"]
        cells = [
            [
                f"{row.name} *" if row.is_answer else row.name,
                objective.figure(row.median),
                objective.figure(row.p95),
                f"{row.ratio:.3f}",
                row.interval_text,
                str(row.submodels),
                " ".join(f"{device}:{count}" for device, count in row.ops.items() if count) or "-",
            ]
            for row in self.rows
        ]
        return [*columns, "ops per device"], cells

    def with_lines(self, following: str | None = None) -> PlaceResult:
        """With the answer in lines: its summary, where it is, and the command to run next, its own or the given one."""
        used = [f"{count} ops on {device}" for device, count in self.answer.ops.items() if count]
        run = f"Run the model on {self.answer.name} as it is."
        if self.placement.shards:
            over = " and ".join(device for device, count in self.answer.ops.items() if count)
            run = f"Run {self.answer.name}: {len(self.placement.shards)} regions divided over {over}."
        elif len(used) > 1:
            runner = RUNNERS[self.placement.executor]
            run = f"Run {self.answer.name}: {' and '.join(used)}, {runner}."
        written = f"The placement is in {self.placement_file}" if self.placement_file else ""
        if self.run_folder is not None:
            written += f"{'; the search' if written else 'The search is'} in {self.run_folder}"
        following = following or self.next_command
        lines = tuple(filter(None, [run, *self.summary, written and f"{written}.", following and f"Next: {following}"]))
        return self.model_copy(update={"lines": lines})

    @property
    def summary(self) -> tuple[str, ...]:
        """What to run, what that gains, warnings, and what more could be gained."""
        warned = (f"Warning: {warning}." for warning in self.warnings)
        return tuple(filter(None, [*self.lines[:1], self.sentence, *warned, self.bound]))

    @property
    def next_command(self) -> str | None:
        """The command to run next: see a split on the machine that will serve, or why there is none."""
        if len(self.placement.used_devices) > 1 and self.model_path is not None and self.placement_file is not None:
            return command_line(["hsdag", "bench", self.model_path, "--placement", self.placement_file])
        return None if self.run_folder is None else command_line(["hsdag", "explain", str(self.run_folder)])

    @property
    def said(self) -> tuple[str, ...]:
        """The answer in lines."""
        return self.lines or (self.sentence,)

    def _repr_html_(self) -> str:
        return html_summary(str(self), *self.table(), next(i for i, row in enumerate(self.rows) if row.is_answer))


def read_result(path: Path) -> PlaceResult:
    """Read the document, also of version 1. Raises FileFormatError when it is missing, or is none."""
    document = parse_document(read_text(path), str(path), "hsdag-result", (1, 2))
    try:
        return PlaceResult.model_validate(_of_version_1(document) if document["version"] == 1 else document)
    except (KeyError, TypeError, AttributeError, OptionError) as error:
        raise FileFormatError(f"{path}: answer: not that of a search, or figures are missing: {error}") from error
    except ValidationError as error:
        raise FileFormatError(f"{path}: {first_problem(error)}") from error


def _of_version_1(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document whose answer had the unit in its names, as one of today. Raises KeyError, TypeError."""
    old = document["answer"]
    objective = find_objective(str(old["objective"]))
    rows = [
        {
            **{name: row[name] for name in ("name", "runs", "ci95", "rounds", "submodels", "ops")},
            "median": row[f"median_{objective.suffix}"],
            "p95": row[f"p95_{objective.suffix}"],
            "ratio": row["ratio_to_best_single"],
            "is_answer": row["answer"],
        }
        for row in old["rows"]
    ]
    same = ("sentence", "failures", "turned_down", "members", "search_s", "interrupted", "warnings", "run_folder")
    verdict = {"versus": old["reference"], "reason": old["objection"]}
    verdict |= {name: old[name] for name in ("tolerance", "difference")}
    tally = {"tried": old["evaluations"], "failures": old["evaluation_failures"]}
    kept = ("placement", "model_path", "costs", "timeline", "environment", "budget_s", "finished")
    return {
        "objective": objective.name,
        "unit": objective.unit,
        "value": next((row["median"] for row in rows if row["is_answer"]), None),
        "rows": rows,
        "verdict": verdict,
        "tally": {**tally, "simulated": old["simulated_evaluations"]},
        "weight_bytes": old["held_bytes"],
        "samples": document["samples_s"],
        **{name: old[name] for name in same if name in old},
        **{name: document[name] for name in kept if name in document},
    }


def placements_were(count: int) -> str:
    """So many placements as the subject of a sentence."""
    return "1 placement was" if count == 1 else f"{count} placements were"
