"""Describe how a search over simulated costs ended, as values, in JSON and as a placement file."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
from pydantic import ConfigDict, Field, GetCoreSchemaHandler, computed_field
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypedDict

from hsdag.base.errors import SearchError
from hsdag.base.version import __version__
from hsdag.drawing import Displayable
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
"""Relative gap that rounding may cause: a smaller one counts as 0, and the answer as optimal."""


class _AsItIs:
    """Annotation of a field that pydantic does not validate, as it holds an object of this process."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.any_schema()


_T = TypeVar("_T")
InMemory: TypeAlias = Annotated[_T, _AsItIs(), Field(exclude=True, repr=False)]
"""Type of a field that JSON answers leave out."""


class Simulated(Displayable, Record):
    """Base of answers with simulated figures: the problem, and the rules of the simulation.

    Args:
        semantics: Rules of the simulation, with the order that was used, never None.
        unit: Unit of the value and its bound.
    """

    model_config = ConfigDict(allow_inf_nan=True)

    simulated: Literal[True] = True
    seed: int
    problem: InMemory[ScheduleProblem]
    semantics: InMemory[Semantics]
    objective: InMemory[Objective]
    objective_name: str = Field(serialization_alias="objective")
    unit: str
    execution: str
    order: str
    links: str

    @staticmethod
    def about(problem: ScheduleProblem, objective: Objective, semantics: Semantics) -> dict[str, Any]:
        """Return the fields of this class, other than the seed, by name."""
        names = {"objective_name": objective.name, "unit": objective.unit, **semantics.named()}
        return {"problem": problem, "semantics": semantics, "objective": objective, **names}


class OpRun(TypedDict):
    """The device of an op, and when it starts and ends, in seconds from the start of the inference."""

    op: str
    device: str
    start_s: float
    end_s: float


class SolveResult(Simulated):
    """The answer of a search, and what is proven about it; all figures are simulated.

    Args:
        value: Value of the answer in the objective's unit: the makespan for latency, the period for throughput; None
            if no legal placement was found.
        best_after_s: Seconds into the search at which the answer was found.
        curve: Seconds into the search, and the best value from then on.
        lower_bound: Value that no legal placement is below.
        bound_by: Argument that proves the lower bound.
        gap: The part of the value above the lower bound, relative to the value; None without a value.
        num_evaluations: Number of plans evaluated.
        interrupted: Whether the caller stopped the search.
        plan: Plan over ops.
        run: One simulated inference.
        single_devices: Value of each single device that can run the problem.
        members: Turns of the methods, in order.
        note: Reason why the method gave up, or empty. The answer is then the best that was evaluated before.
        breaking: Single devices that break a pin: their values are for comparison, they cannot be answers.

    Examples:
        >>> import hsdag
        >>> from hsdag.runtime.problem.schedule_problem import ScheduleProblem
        >>> seconds = [[1.0, 2.0], [4.0, 1.0]]  # of two ops on two devices
        >>> problem = ScheduleProblem.from_arrays(seconds, [(0, 1)], op_names=("a", "b"), device_names=("gpu", "cpu"))
        >>> result = hsdag.solve(problem, "heft")
        >>> result.schedule[1]
        {'op': 'b', 'device': 'cpu', 'start_s': 1.0, 'end_s': 2.0}
        >>> result.single_devices, result.gap
        ({'gpu': 5.0, 'cpu': 3.0}, 0.0)
    """

    status: Status
    value: float | None
    best_after_s: float
    curve: tuple[tuple[float, float], ...]
    bound: InMemory[Bound]
    lower_bound: float
    bound_by: str
    gap: float | None
    method: str
    num_evaluations: int = Field(serialization_alias="evaluations")
    elapsed_s: float
    interrupted: bool
    options: InMemory[SolveOptions]
    plan: InMemory[Plan | None]
    run: InMemory[Simulation | None]
    single_devices: dict[str, float]
    members: tuple[Member, ...]
    note: str
    breaking: tuple[str, ...] = Field((), serialization_alias="breaking_pins")

    @computed_field(alias="placement", repr=False)  # type: ignore[prop-decorator]
    @property
    def affinity(self) -> dict[str, str] | None:
        """Return the device name of each op by its name; None without an answer."""
        if self.plan is None:
            return None
        names = self.problem.device_names
        return {op: names[d] for op, d in zip(self.problem.op_names, self.plan.placement.tolist(), strict=True)}

    @computed_field(repr=False)  # type: ignore[prop-decorator]
    @property
    def priority(self) -> dict[str, int] | None:
        """Return the rank of each op by its name, the smallest running first; None if the answer has no priorities."""
        if self.plan is None or self.plan.priority is None:
            return None
        return dict(zip(self.problem.op_names, self.plan.priority.tolist(), strict=True))

    @property
    def timeline(self) -> Timeline | None:
        """Return the timeline of ``run``; None without an answer."""
        return self.run.timeline if self.run is not None else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def schedule(self) -> list[OpRun]:
        """Return the device and times of each op in ``run``, sorted by start."""
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
        """Return a sentence with the value, the lower bound and the gap."""
        text = self.objective.text
        bound = f"{self.objective.bound_name} {text(self.lower_bound)} by {self.bound.argument}"
        if self.value is None or self.gap is None:
            return f"No placement; {bound}"
        return f"Simulated {self.objective.label} {text(self.value)}; {bound}, gap {100 * self.gap:.4g}%"

    @property
    def said(self) -> tuple[str, ...]:
        """Return the problem's name, the sentence, and how the search ended."""
        return (f"{self.problem.name}: {self.sentence}. {self.status.sentence}",)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the column titles and cells of a table with the values of single devices."""
        cells = [[f"all on {name}", self.objective.figure(single)] for name, single in self.single_devices.items()]
        return ["placement", ", ".join(filter(None, [self.objective.label, self.objective.shown_unit]))], cells

    @property
    def placement(self) -> Placement:
        """Return the answer as a placement to save. Raises SearchError if the search found none."""
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
    """Return (value - bound) / value, or 0 if rounding may account for the difference."""
    gap = (value - bound) / value if value > 0 else 0.0
    return gap if gap > ROUNDING else 0.0


def _record(seconds: float) -> LatencyRecord | None:
    """Return the record of a simulated latency; None for 0, which a record does not allow."""
    if seconds <= 0:
        return None
    return LatencyRecord(median_s=seconds, mean_s=seconds, p95_s=seconds, runs=1, measured=False)
