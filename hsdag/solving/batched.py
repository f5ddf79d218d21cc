"""Problem files solved for a batch of inputs that devices share: DiviML's throughput (section V-C)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import Field, computed_field

from hsdag.ir.errors import OptionError, SearchError
from hsdag.methods.batched.problem import BatchedProblem, BatchSchedule, BatchTable
from hsdag.methods.batched.search import METHODS, BatchIncumbent, prepare, search
from hsdag.methods.incumbent import Status
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.search.driver import Watcher
from hsdag.search.options import check_budget, check_seed
from hsdag.solving.solution import InMemory, OpRun, Solution, relative_gap

MOST_INPUTS = 1_000_000
"""Of a batch: sums of this many times and bytes are still right to ten digits."""


@dataclass(frozen=True)
class BatchOptions:
    """Limits of a batched search, in which a batch of b takes t (fixed_share + (1 - fixed_share) b) without a table.

    Raises OptionError for a value out of range.
    """

    method: str
    num_inputs: int = 16
    fixed_share: float = 0.0
    budget_s: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise OptionError(f"method {self.method!r} has no batched form; choose one of {', '.join(METHODS)}")
        if self.num_inputs < 1:
            raise OptionError(f"--batch must be at least 1, not {self.num_inputs}")
        if self.num_inputs > MOST_INPUTS:
            raise OptionError(f"--batch must be at most {MOST_INPUTS:,}, not {self.num_inputs}")
        if not 0 <= self.fixed_share <= 1:
            raise OptionError(f"--fixed-share must be between 0 and 1, not {self.fixed_share:g}")
        check_budget(self.budget_s)
        check_seed(self.seed)


class BatchRun(OpRun):
    """When an op ran for which inputs."""

    inputs: list[int]


class BatchSolution(Solution):
    """The end of a batched search; ``value_s`` is the makespan of the whole batch.

    ``group`` inputs stay together, and ``assumption`` says what batches are taken to cost.
    """

    problem: InMemory[BatchedProblem]
    options: InMemory[BatchOptions]
    schedule: InMemory[BatchSchedule | None]
    method: str
    batch: int
    batch_sizes: tuple[int, ...]
    group: int
    assumption: str = Field(serialization_alias="assumed")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def inputs_per_s(self) -> float | None:
        """Throughput: inputs over the makespan of their batch; None where that is 0 or unknown."""
        return self.problem.batches.num_inputs / self.value_s if self.value_s else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def most_inputs_per_s(self) -> float | None:
        """What no schedule exceeds."""
        return self.problem.batches.num_inputs / self.lower_bound_s if self.lower_bound_s else None

    @computed_field(alias="schedule")  # type: ignore[prop-decorator]
    @property
    def batches(self) -> list[BatchRun]:
        """Op, device, inputs, start and end of every batch, by start."""
        if self.schedule is None:
            return []
        costs, table, found = self.problem.costs, self.problem.batches, []
        for v, row in enumerate(self.schedule.device.tolist()):
            for d in sorted(set(row)):
                begin = float(self.schedule.start_s[v, d])
                inputs = [g * table.group + k for g, e in enumerate(row) if e == d for k in range(table.group)]
                ends = begin + float(self.problem.group_time_s[v, d, row.count(d)])
                found.append((begin, ends, v, d, inputs))
        return [
            {"op": costs.op_names[v], "device": costs.device_names[d], "inputs": i, "start_s": begin, "end_s": ends}
            for begin, ends, v, d, i in sorted(found)
        ]


def solve_batched(
    costs: ScheduleProblem, options: BatchOptions, watcher: Watcher | None = None, table: BatchTable | None = None
) -> BatchSolution:
    """Divide a batch of inputs over devices, in quarters and with assumed times unless there is a ``table``.

    The bound is that of schedules in which the inputs of a group stay together. Raises SearchError when the method
    ended and found nothing that fits into memory, and OptionError where devices slow each other down.
    """
    if len(costs.excess):
        raise OptionError(
            f"problem {costs.name!r} has a slowdown, which schedules of batches do not know; leave it out"
        )
    watcher = watcher or Watcher()
    assumption = "batch times as given in a table"
    if table is None:
        table = BatchTable.quarters(costs, options.num_inputs, options.fixed_share)
        assumption = f"t(b) = t(1) ({options.fixed_share:g} + {1 - options.fixed_share:g} b)"
    problem = BatchedProblem.of(costs, table)
    most_shares = int((problem.divisions > 0).sum(axis=1).max())
    if most_shares < min(costs.num_devices, problem.num_groups):
        assumption += f"; ops divided over at most {most_shares} of {costs.num_devices} devices"
    prepare()
    watcher.on_phase("searching")
    incumbent = BatchIncumbent(problem, options.budget_s, watcher.should_stop, options.seed)
    search(incumbent, options.method)
    watcher.on_phase("done")
    return _concluded(incumbent, options, assumption, watcher.should_stop())


def _concluded(incumbent: BatchIncumbent, options: BatchOptions, assumption: str, interrupted: bool) -> BatchSolution:
    value_s = None if incumbent.best is None else incumbent.best_s
    if value_s is not None and relative_gap(value_s, incumbent.bound.value_s) == 0.0:
        status = Status.OPTIMAL
    elif np.isinf(incumbent.bound.value_s):
        status = Status.INFEASIBLE
    elif interrupted or incumbent.hit_limit or value_s is not None:
        is_late = value_s is None or (incumbent.hit_limit and not interrupted)
        status = Status.TIME_LIMIT if is_late else Status.FEASIBLE
    else:
        raise SearchError(
            f"method {options.method!r} found no schedule of batches that fits into memory; try another method"
        )
    return BatchSolution(
        problem=incumbent.problem,
        options=options,
        method=options.method,
        seed=options.seed,
        batch=options.num_inputs,
        batch_sizes=tuple(incumbent.problem.batches.sizes),
        group=incumbent.problem.batches.group,
        status=status,
        schedule=incumbent.best,
        value_s=value_s,
        bound=incumbent.bound if np.isfinite(incumbent.bound.value_s) else Bound(0.0, incumbent.bound.argument),
        elapsed_s=incumbent.elapsed_s,
        best_after_s=incumbent.best_after_s,
        num_evaluations=incumbent.num_considered,
        interrupted=interrupted,
        assumption=assumption,
    )
