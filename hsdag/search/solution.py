"""Solutions: how a search over costs ended, as values, in JSON and as a placement file. Legend: N ops."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
from pydantic import ConfigDict, Field, GetCoreSchemaHandler, computed_field
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypedDict

from hsdag import __version__
from hsdag.drawing import Displayable
from hsdag.ir.errors import SearchError
from hsdag.ir.graph.build import fingerprint
from hsdag.ir.placement.placement import LatencyRecord, ModelRecord, Placement, Record
from hsdag.methods.incumbent import Status
from hsdag.runtime.objectives import Objective
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.runtime.problem.units import graph_of_problem
from hsdag.runtime.simulator.simulation import Simulation
from hsdag.runtime.timeline import Timeline
from hsdag.search.driver import Member
from hsdag.search.options import SolveOptions

ROUNDING = 1e-9
"""A gap up to which there is none, and any answer is optimal. Exact methods that come to their end say theirs."""


class _AsItIs:
    """Marks a field that is an object of this process: nothing checks it."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.any_schema()


_T = TypeVar("_T")
InMemory: TypeAlias = Annotated[_T, _AsItIs(), Field(exclude=True, repr=False)]
"""The type of a field that JSON answers leave out."""


class Simulated(Displayable, Record):
    """An answer in the simulator's figures: what they are, and what was simulated, in the keys of its JSON form."""

    model_config = ConfigDict(allow_inf_nan=True)

    simulated: Literal[True] = True
    seed: int
    problem: InMemory[ScheduleProblem]
    semantics: InMemory[Semantics]  # with the order that was meant
    objective: InMemory[Objective]
    objective_name: str = Field(serialization_alias="objective")
    unit: str
    """Of the value and its bound."""
    execution: str
    order: str
    links: str

    @staticmethod
    def about(problem: ScheduleProblem, objective: Objective, semantics: Semantics) -> dict[str, Any]:
        """What was simulated, as fields."""
        names = {"objective_name": objective.name, "unit": objective.unit, **semantics.named()}
        return {"problem": problem, "semantics": semantics, "objective": objective, **names}


class OpRun(TypedDict):
    """When an op ran where, in seconds."""

    op: str
    device: str
    start_s: float
    end_s: float


class SolveResult(Simulated):
    """The end of a search; ``value`` is the makespan, the period for throughput, else in the objective's unit, None
    where nothing legal was found. All figures are simulated.

    ``note`` says why the method gave up, where it did; the answer is then one of those that every search begins with,
    or what the method had before. ``breaking`` are single devices that break a pin: figures to compare with, but no
    answers.
    """

    status: Status
    value: float | None
    best_after_s: float
    curve: tuple[tuple[float, float], ...]
    """Seconds into the search, and the best value from then on."""
    bound: InMemory[Bound]
    lower_bound: float
    """What no plan is below."""
    bound_by: str
    """What proves that."""
    gap: float | None
    """The share of the value that the lower bound leaves open."""
    method: str
    num_evaluations: int = Field(serialization_alias="evaluations")
    elapsed_s: float
    interrupted: bool
    options: InMemory[SolveOptions]
    plan: InMemory[Plan | None]  # of ops
    run: InMemory[Simulation | None]  # one inference
    single_devices: dict[str, float]
    members: tuple[Member, ...]
    note: str
    breaking: tuple[str, ...] = Field((), serialization_alias="breaking_pins")

    @computed_field(alias="placement", repr=False)  # type: ignore[prop-decorator]
    @property
    def affinity(self) -> dict[str, str] | None:
        """Device name by op name."""
        if self.plan is None:
            return None
        names = self.problem.device_names
        return {op: names[d] for op, d in zip(self.problem.op_names, self.plan.placement.tolist(), strict=True)}

    @computed_field(repr=False)  # type: ignore[prop-decorator]
    @property
    def priority(self) -> dict[str, int] | None:
        """Rank by op name, where the answer has priorities."""
        if self.plan is None or self.plan.priority is None:
            return None
        return dict(zip(self.problem.op_names, self.plan.priority.tolist(), strict=True))

    @property
    def timeline(self) -> Timeline | None:
        """That of ``run``."""
        return self.run.timeline if self.run is not None else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def schedule(self) -> list[OpRun]:
        """When each op of ``run`` is where, by start."""
        if self.run is None:
            return []
        names, ops = self.problem.device_names, self.problem.op_names
        begin, end, device = self.run.start_s.tolist(), self.run.end_s.tolist(), self.run.device.tolist()
        return [
            {"op": ops[v], "device": names[device[v]], "start_s": begin[v], "end_s": end[v]}
            for v in np.lexsort((self.run.end_s, self.run.start_s)).tolist()
        ]

    @property
    def sentence(self) -> str:
        """What was found, and what is proven of it."""
        text = self.objective.text
        bound = f"{self.objective.bound_name} {text(self.lower_bound)} by {self.bound.argument}"
        if self.value is None or self.gap is None:
            return f"No placement; {bound}"
        return f"Simulated {self.objective.label} {text(self.value)}; {bound}, gap {100 * self.gap:.4g}%"

    @property
    def said(self) -> tuple[str, ...]:
        """The same of the problem by its name, and how the search ended."""
        return (f"{self.problem.name}: {self.sentence}. {self.status.sentence}",)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """What single devices take."""
        cells = [[f"all on {name}", self.objective.figure(single)] for name, single in self.single_devices.items()]
        return ["placement", ", ".join(filter(None, [self.objective.label, self.objective.shown_unit]))], cells

    @property
    def placement(self) -> Placement:
        """The placement file of the answer. Raises SearchError where there is none."""
        affinity, priority = self.affinity, self.priority
        if affinity is None or self.value is None:
            raise SearchError("the search found no placement to write")
        problem, options = self.problem, self.options
        names = problem.canonical_names
        is_sequential = options.semantics.execution is Execution.SEQUENTIAL
        in_seconds = self.objective.unit == "s"
        singles = self.single_devices if in_seconds else {}
        return Placement(
            model=problem.model or ModelRecord(name=problem.name, fingerprint=fingerprint(graph_of_problem(problem))),
            devices=list(problem.device_records),
            affinity=dict(zip(names, affinity.values(), strict=True)),
            names=dict(zip(names, problem.op_names, strict=True)),
            method=options.method,
            seed=options.seed,
            objective=options.objective.name,
            executor="hetero" if is_sequential else "work-conserving",
            latency=_record(self.value if in_seconds or self.run is None else self.run.makespan_s),
            baselines={name: record for name, s in singles.items() if (record := _record(s)) is not None},
            priority=None if priority is None else dict(zip(names, priority.values(), strict=True)),
            created_with={"hsdag": __version__, "problem": problem.name},
        )


def relative_gap(value: float, bound: float) -> float:
    """(value - bound) / value, 0 where rounding may account for the difference."""
    gap = (value - bound) / value if value > 0 else 0.0
    return gap if gap > ROUNDING else 0.0


def _record(seconds: float) -> LatencyRecord | None:
    """A simulated figure; None for 0, which no latency can be."""
    if seconds <= 0:
        return None
    return LatencyRecord(median_s=seconds, mean_s=seconds, p95_s=seconds, runs=1, measured=False)
