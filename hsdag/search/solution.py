"""SolveResult: the result of a search over a problem file, with a lower bound.

Legend: N ops, D devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hsdag.ir.build import fingerprint
from hsdag.ir.errors import OptionError, SearchError
from hsdag.ir.graph import IntArray
from hsdag.ir.placement import LatencyRecord, ModelRecord, Placement
from hsdag.placers.base import Placer
from hsdag.placers.incumbent import Status
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import graph_of_problem
from hsdag.runtime.simulator import Execution, Order, Semantics, Simulation
from hsdag.runtime.timeline.timeline import Timeline
from hsdag.version import __version__

PROVEN_GAP = 1e-9
"""A gap up to which any answer counts as optimal: rounding. Exact methods that come to their end say theirs."""


@dataclass(frozen=True)
class SolveOptions:
    """What a search may spend and how its placements are judged. Raises OptionError for a value out of range."""

    method: str
    objective: Objective = LATENCY
    semantics: Semantics = field(default_factory=Semantics)
    budget_s: float = 10.0
    max_evaluations: int | None = None
    seed: int = 0
    preset: str = "default"
    changes: Mapping[str, str] = field(default_factory=dict)

    def placer(self) -> Placer[Any]:
        """The method with its hyper-parameters. Raises OptionError for names and values that it does not know."""
        return make_placer(self.method, self.preset, self.changes, is_cheap=True)

    def __post_init__(self) -> None:
        if not self.budget_s > 0:
            raise OptionError(f"the budget must be more than zero, not {self.budget_s:g} s")
        if self.max_evaluations is not None and self.max_evaluations < 1:
            raise OptionError(f"--max-evaluations must be at least 1, not {self.max_evaluations}")
        if not 0 <= self.seed < 2**63:
            raise OptionError(f"the seed must be between 0 and 2^63 - 1, not {self.seed}")
        if self.semantics.noise_sigma:
            raise OptionError("a search cannot have noise: its answer is compared with a bound")


@dataclass(frozen=True, eq=False)
class SolveResult:
    """The end of a search; ``device``, ``value_s`` and ``run`` are None where no legal placement was found.

    ``value_s`` is the makespan, or the period for throughput, and was known after ``best_after_s``; ``run`` is one
    inference of the answer. All figures are simulated.
    """

    problem: ScheduleProblem
    options: SolveOptions
    status: Status
    lower_bound_s: float
    device: IntArray | None  # [N]
    priority: IntArray | None  # [N]
    value_s: float | None
    run: Simulation | None
    single_s: dict[str, float]
    num_evaluations: int
    elapsed_s: float
    interrupted: bool
    best_after_s: float = 0.0

    @property
    def gap(self) -> float | None:
        """The share of the value that the lower bound leaves open."""
        return None if self.value_s is None else relative_gap(self.value_s, self.lower_bound_s)

    @property
    def semantics(self) -> Semantics:
        """The semantics of the answer, with the order that was meant."""
        given = self.options.semantics
        return replace(given, order=given.order or (Order.FIFO if self.priority is None else Order.PRIORITY))

    @property
    def affinity(self) -> dict[str, str] | None:
        """Device name by op name."""
        if self.device is None:
            return None
        names = self.problem.device_names
        return {op: names[d] for op, d in zip(self.problem.op_names, self.device.tolist(), strict=True)}

    @property
    def ranks(self) -> dict[str, int] | None:
        """Rank by op name, where the answer has priorities."""
        if self.priority is None:
            return None
        return dict(zip(self.problem.op_names, self.priority.tolist(), strict=True))

    @property
    def timeline(self) -> Timeline | None:
        """The timeline of ``run``."""
        return Timeline.of(self.run, self.problem) if self.run is not None else None

    @property
    def schedule(self) -> list[dict[str, str | float]]:
        """When each op of ``run`` is where, by start."""
        if self.run is None:
            return []
        names, ops = self.problem.device_names, self.problem.op_names
        begin, end, device = self.run.start_s.tolist(), self.run.end_s.tolist(), self.run.device.tolist()
        return [
            {"op": ops[v], "device": names[device[v]], "start_s": begin[v], "end_s": end[v]}
            for v in np.lexsort((self.run.end_s, self.run.start_s)).tolist()
        ]

    def document(self) -> dict[str, object]:
        """The JSON answer of ``hsdag solve``."""
        document: dict[str, object] = {
            "method": self.options.method,
            "placement": self.affinity,
            self.options.objective.value_name: self.value_s,
            "lower_bound_s": self.lower_bound_s,
            "gap": self.gap,
            "status": self.status.value,
            "schedule": self.schedule,
            "elapsed_s": self.elapsed_s,
            "evaluations": self.num_evaluations,
            "interrupted": self.interrupted,
            "single_devices_s": self.single_s,
            **semantics_document(self.semantics, self.options.objective),
            "seed": self.options.seed,
            "simulated": True,
        }
        return document | ({"priority": self.ranks} if self.ranks is not None else {})

    def placement(self) -> Placement:
        """The placement file of the answer. Raises SearchError where there is none."""
        if self.affinity is None or self.value_s is None:
            raise SearchError("the search found no placement to write")
        problem, options = self.problem, self.options
        canonical = dict(zip(problem.op_names, problem.canonical_names, strict=True))
        sequential = options.semantics.execution is Execution.SEQUENTIAL
        return Placement(
            model=problem.model or ModelRecord(name=problem.name, fingerprint=fingerprint(graph_of_problem(problem))),
            devices=list(problem.device_records),
            affinity={canonical[op]: device for op, device in self.affinity.items()},
            names={canonical[op]: op for op in self.affinity},
            method=options.method,
            seed=options.seed,
            objective=options.objective.name,
            executor="hetero" if sequential else "work-conserving",
            latency=_record(self.value_s),
            baselines={name: record for name, s in self.single_s.items() if (record := _record(s)) is not None},
            priority={canonical[op]: rank for op, rank in self.ranks.items()} if self.ranks else None,
            created_with={"hsdag": __version__, "problem": problem.name},
        )


def semantics_document(semantics: Semantics, objective: Objective) -> dict[str, object]:
    """The semantics of an answer, as options."""
    return {
        "execution": semantics.execution.value,
        "order": (semantics.order or Order.FIFO).value,
        "links": semantics.links.value,
        "objective": objective.name,
    }


def relative_gap(value_s: float, bound_s: float) -> float:
    """(value - bound) / value, 0 where rounding puts the value below the bound."""
    return max(value_s - bound_s, 0.0) / value_s if value_s > 0 else 0.0


def _record(seconds: float) -> LatencyRecord | None:
    """A simulated figure; None for 0, which no latency can be."""
    if seconds <= 0:
        return None
    return LatencyRecord(median_s=seconds, mean_s=seconds, p95_s=seconds, runs=1, measured=False)
