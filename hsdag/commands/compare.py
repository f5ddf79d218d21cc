"""Compare search methods on one problem, with equal budgets and several seeds; all figures are simulated."""

from __future__ import annotations

import csv
import hashlib
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from platform import node
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, computed_field

from hsdag.base.errors import ExecutionError, HsdagError, ModelError, OptionError, SearchError, option
from hsdag.base.files import parse_record, read_text, write_atomically
from hsdag.commands.sources import build_problem
from hsdag.drawing import Displayable
from hsdag.ir.placement.placement import Record
from hsdag.methods import method_names
from hsdag.methods.registry import find_method, make_placer
from hsdag.models import WORKLOADS
from hsdag.models.registry import names_workload
from hsdag.runtime.measuring.latency import half_width, paired_ratio
from hsdag.runtime.platforms.platform import load_platform
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.problem_file import problem_to_json, read_problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.search.solution import relative_gap
from hsdag.search.solve import solve
from hsdag.workers.option import pool_of
from hsdag.workers.pool import Exchange, Findings, Job, Pool

LEAST_FOR_INTERVAL = 3
"""Give a mean or a ratio an interval if it is of at least this many runs."""
CURVE_AT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of the budget at which the CSV table gives the best value so far."""
LOOK_EVERY_S = 0.25
"""Seconds between two checks whether a search should end."""


class Trial(Record):
    """The result of one search.

    Args:
        value_s: Value of the best plan in seconds; None if the search failed or found none.
        best_after_s: Seconds into the search at which the best plan was found.
        curve: Seconds into the search, and the best value from then on.
        failure: Reason why there is no value.
        host: Machine whose worker searched; None for the process that compares.
    """

    method: str
    seed: int
    value_s: float | None = None
    lower_bound_s: float = 0.0
    evaluations: int = 0
    elapsed_s: float
    best_after_s: float = 0.0
    curve: tuple[tuple[float, float], ...] = ()
    status: str = "failed"
    failure: str | None = None
    host: str | None = None

    def best_by(self, seconds: float) -> float | None:
        """Return the best value that the search had after ``seconds``; None if it had none."""
        return next((value for since_s, value in reversed(self.curve) if since_s <= seconds), None)


class Setup(Record):
    """The problem, the methods and the limits of a comparison, in which a resumed comparison must agree."""

    problem: str
    problem_sha256: str
    ops: int
    devices: list[str]
    costs: str
    objective: str
    execution: str
    order: str
    links: str
    budget_s: float
    max_evaluations: int | None
    methods: list[str]
    seeds: Annotated[int, Field(ge=1)]

    @staticmethod
    def of(problem: ScheduleProblem, search: SolveOptions, methods: Sequence[str], seeds: int) -> Setup:
        """Return the setup of searches with methods and seeds, each as ``search`` says."""
        how = search.semantics
        return Setup(
            problem=problem.name,
            problem_sha256=hashlib.sha256(problem_to_json(problem).encode()).hexdigest(),
            ops=problem.num_ops,
            devices=list(problem.device_names),
            costs=problem.source.value,
            objective=search.objective.name,
            execution=how.execution.value,
            order="priority, else fifo" if how.order is None else how.order.value,
            links=how.links.value,
            budget_s=search.budget_s,
            max_evaluations=search.max_evaluations,
            methods=list(methods),
            seeds=seeds,
        )

    def check_same(self, past: Setup) -> None:
        """Raise SearchError, which names the first difference, if a past comparison had another setup."""
        name = next((name for name in Setup.model_fields if getattr(past, name) != getattr(self, name)), None)
        if name is not None:
            what = "the problem or its costs" if name == "problem_sha256" else name.replace("_", " ")
            raise SearchError(
                f"the comparison to resume has another setup: {what} differs; "
                f"resume it with the settings it was started with, or start again without {option('resume')}"
            )


class MethodRow(Record):
    """The figures of a method over its runs.

    Args:
        runs: Number of runs that found a plan.
        deviation_s: Standard deviation of the values.
        ci95_s: Half the width of the mean's 95% interval; None if there are too few runs.
        elapsed_s: Mean seconds of a search.
        evaluations: Mean number of evaluations of a search.
        lower_bound_s: Largest lower bound that a run proved.
        gap: The part of the mean above the comparison's largest lower bound, relative to the mean.
    """

    method: str
    runs: int
    mean_s: float
    deviation_s: float
    ci95_s: float | None
    best_s: float
    elapsed_s: float
    evaluations: float
    lower_bound_s: float
    gap: float

    @staticmethod
    def of(method: str, runs: Sequence[Trial], largest_bound_s: float) -> MethodRow:
        """Return the row of a method from its runs, at least one of which has a value."""
        values_s = np.array([run.value_s for run in runs if run.value_s is not None])
        num, mean_s = len(values_s), float(values_s.mean())
        deviation_s = float(values_s.std(ddof=1)) if num > 1 else 0.0
        return MethodRow(
            method=method,
            runs=num,
            mean_s=mean_s,
            deviation_s=deviation_s,
            ci95_s=half_width(deviation_s, num) if num >= LEAST_FOR_INTERVAL else None,
            best_s=float(values_s.min()),
            elapsed_s=float(np.mean([run.elapsed_s for run in runs])),
            evaluations=float(np.mean([run.evaluations for run in runs])),
            lower_bound_s=max(run.lower_bound_s for run in runs),
            gap=relative_gap(mean_s, largest_bound_s),
        )


class MethodPair(Record):
    """The values of one method relative to those of another.

    Args:
        seeds: Number of seeds with which both methods found a plan.
        ratio: Geometric mean, over these seeds, of the value of ``versus`` divided by that of ``method``.
        ci95: Interval of the ratio; those of all pairs hold together with 95%. None if there are too few seeds.
    """

    method: str
    versus: str
    seeds: int
    ratio: float
    ci95: tuple[float, float] | None


class Comparison(Displayable, Record):
    """A comparison, finished or not, as in its file and in the JSON answer of ``hsdag compare``.

    Args:
        refused: Reason for each method that cannot search the problem.
        runs: Searches that have ended.

    Examples:
        >>> import hsdag
        >>> from hsdag.runtime.problem.schedule_problem import ScheduleProblem
        >>> problem = ScheduleProblem.from_arrays([[1.0, 2.0], [4.0, 1.0]], [(0, 1)])
        >>> comparison = hsdag.compare(problem, "heft,sa", seeds=2, budget="5s")
        >>> [(run.method, run.seed, run.value_s) for run in comparison.runs]
        [('heft', 0, 2.0), ('sa', 0, 2.0), ('heft', 1, 2.0), ('sa', 1, 2.0)]
    """

    format: Literal["hsdag-comparison"] = "hsdag-comparison"
    version: Literal[1] = 1
    simulated: Literal[True] = True
    setup: Setup
    refused: dict[str, str] = Field(default_factory=dict)
    runs: tuple[Trial, ...] = ()

    @staticmethod
    def load(path: Path) -> Comparison:
        """Return the comparison in a file. Raises FileFormatError, which names the path inside the file."""
        return parse_record(Comparison, read_text(path), str(path))

    def save(self, path: Path) -> None:
        """Write the file atomically, as CSV if its name ends in .csv. Raises OutputError if that fails."""
        text = self.csv_text() if path.suffix == ".csv" else self.model_dump_json(indent=1) + "\n"
        write_atomically(path, text.encode())

    def csv_text(self) -> str:
        """Return a table with a line for each run, and its best values after shares of the budget."""
        times_s = [share * self.setup.budget_s for share in CURVE_AT]
        fields = [name for name in Trial.model_fields if name != "curve"]
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow([*fields, *(f"best_s_by_{seconds:g}s" for seconds in times_s)])
        for run in self.runs:
            table.writerow([*(getattr(run, name) for name in fields), *(run.best_by(seconds) for seconds in times_s)])
        return text.getvalue()

    @property
    def is_complete(self) -> bool:
        """Return whether every method that can search the problem has run with every seed."""
        return len(self.runs) == (len(self.setup.methods) - len(self.refused)) * self.setup.seeds

    @property
    def lower_bound_s(self) -> float:
        """Return the largest lower bound that any run proved; it holds for all runs."""
        return max((run.lower_bound_s for run in self.runs), default=0.0)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def rows(self) -> list[MethodRow]:
        """Return the row of every method that found a plan, sorted by mean."""
        runs = {method: self._runs_of(method) for method in self.setup.methods}
        answered = [method for method in runs if any(run.value_s is not None for run in runs[method])]
        rows = [MethodRow.of(method, runs[method], self.lower_bound_s) for method in answered]
        return sorted(rows, key=lambda row: row.mean_s)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def pairs(self) -> list[MethodPair]:
        """Return every pair of methods that both found a plan with the same seed; the smaller mean is ``method``."""
        values_s = {
            row.method: {run.seed: run.value_s for run in self._runs_of(row.method) if run.value_s} for row in self.rows
        }
        both = list(combinations(values_s, 2))
        pairs = []
        for method, versus in both:
            if not (seeds := sorted(values_s[method].keys() & values_s[versus].keys())):
                continue
            own_s, other_s = (np.array([values_s[name][seed] for seed in seeds]) for name in (method, versus))
            ratio = paired_ratio(other_s, own_s, len(both))
            ci95 = (ratio.low, ratio.high) if len(seeds) >= LEAST_FOR_INTERVAL else None
            pairs.append(MethodPair(method=method, versus=versus, seeds=len(seeds), ratio=ratio.value, ci95=ci95))
        return pairs

    @computed_field  # type: ignore[prop-decorator]
    @property
    def failures(self) -> dict[str, str]:
        """Return the number of failed runs and the first reason, by method."""
        reasons: dict[str, str] = {}
        for method in self.setup.methods:
            runs = self._runs_of(method)
            if failed := [run.failure for run in runs if run.failure is not None]:
                reasons[method] = f"{len(failed)} of {len(runs)} runs: {failed[0]}"
        return reasons

    def title(self) -> str:
        """Return a line with the problem, the rules of the simulation and the budget of a run."""
        setup = self.setup
        most = "" if setup.max_evaluations is None else f", at most {setup.max_evaluations} evaluations"
        return (
            f"SIMULATED {setup.problem}: {setup.ops} ops on {len(setup.devices)} devices, {setup.costs} costs; "
            f"{setup.objective}, {setup.execution}, order {setup.order}, links {setup.links}; "
            f"{setup.budget_s:g} s a run{most}"
        )

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the column titles and cells of a table; values are in ms, the time of searches in seconds."""
        rows, best = self.rows, self.rows[0].method if self.rows else ""
        interval = any(row.ci95_s is not None for row in rows)
        columns = ["method", "runs", "mean ms", "deviation", *(["95% of mean"] if interval else [])]
        times = {pair.versus: _times(pair) for pair in self.pairs if pair.method == best}
        cells = []
        for row in rows:
            within = [] if not interval else ["-" if row.ci95_s is None else f"±{1e3 * row.ci95_s:.3g}"]
            figures = [str(row.runs), f"{1e3 * row.mean_s:.4g}", f"{1e3 * row.deviation_s:.3g}", *within]
            spent = [f"{row.elapsed_s:.2f}", f"{row.evaluations:.0f}"]
            bound = [f"{1e3 * row.lower_bound_s:.4g}", f"{100 * row.gap:.1f}%"]
            within = [times.get(row.method, "-")] if times else []
            cells.append([row.method, *figures, *within, f"{1e3 * row.best_s:.4g}", *spent, *bound])
        columns += [f"times {best}"] if times else []
        return [*columns, "best ms", "seconds", "evaluations", "lower bound ms", "gap"], cells

    def remarks(self) -> list[str]:
        """Return the lines below the table."""
        lines = [f"{method} failed in {reason}" for method, reason in self.failures.items()]
        lines += [f"{method} cannot search this: {reason}" for method, reason in self.refused.items()]
        bound = f"The gap is that of the mean to the largest lower bound, {1e3 * self.lower_bound_s:.4g} ms."
        unfinished = f"The comparison is not complete; {option('resume')} goes on with its file."
        return [bound, *lines, *([] if self.is_complete else [unfinished])]

    @property
    def said(self) -> list[str]:
        """Return the title and the lines below the table."""
        return [f"{self.title()}.", *self.remarks()]

    def _runs_of(self, method: str) -> list[Trial]:
        return [run for run in self.runs if run.method == method]


def _times(pair: MethodPair) -> str:
    """Return a pair's ratio and interval as a cell of the table."""
    within = "" if pair.ci95 is None else f" ({pair.ci95[0]:.3f}..{pair.ci95[1]:.3f})"
    return f"{pair.ratio:.3f}{within}"


def compare(
    problem: ScheduleProblem,
    search: SolveOptions,
    methods: Sequence[str] = (),
    seeds: int = 5,
    *,
    watcher: Watcher | None = None,
    past: Comparison | None = None,
    output: Path | None = None,
) -> Comparison:
    """Search with methods, all that there are where none is named, and with seeds 0, 1, ..., each as ``search`` says.

    Seeds are the outer loop, so that an interrupted comparison has something of every method; the run that was
    interrupted is left out. The comparison so far goes to ``output`` after every run. Methods that fail have their
    reason in the table. Raises OptionError for a value out of range and where the objective does not know the
    semantics, SearchError where ``past`` is a comparison with another setup.
    """
    watcher = watcher or Watcher()
    methods = tuple(methods) or method_names()
    if seeds < 1:
        raise OptionError(f"{option('seeds')} must be at least 1, not {seeds}")
    if len(set(methods)) < len(methods):
        raise OptionError(f"{option('methods')} names a method twice")
    for name in methods:
        find_method(name)
    setup = Setup.of(problem, search, methods, seeds)
    search.semantics.check(search.objective)
    if search.objective.unit != "s":
        raise OptionError(
            f"hsdag compare takes {option('objective')} latency or throughput, not {search.objective.name}"
        )
    if past is not None:
        setup.check_same(past.setup)
    refused = _refusals(methods, problem_of(problem, search.objective, search.semantics))
    able = [method for method in methods if method not in refused]
    comparison = Comparison(setup=setup, refused=refused, runs=past.runs if past is not None else ())
    done = {(run.method, run.seed) for run in comparison.runs}
    wanted = [(method, seed) for seed in range(seeds) for method in able if (method, seed) not in done]
    searches = [replace(search, method=method, seed=seed) for method, seed in wanted]
    with pool_of(search.workers, watcher.note) as pool:
        for run in runs_of(problem, searches, watcher, pool):
            comparison = comparison.model_copy(update={"runs": (*comparison.runs, run)})
            if output is not None:
                comparison.save(output)
    if output is not None:
        comparison.save(output)
    return comparison


def _refusals(methods: Sequence[str], problem: Problem) -> dict[str, str]:
    """Return the reason for each method that cannot search a problem."""
    reasons = dict[str, str]()
    for method in methods:
        try:
            make_placer(method, is_cheap=True).check(problem)
        except OptionError as error:
            reasons[method] = str(error)
    return reasons


def run_once(problem: ScheduleProblem, options: SolveOptions, watcher: Watcher | None = None) -> Trial:
    """Run one search, and return its result, also of one that fails; the watcher gets its phases as steps."""
    watcher = watcher or Watcher()
    begin_s = time.monotonic()
    try:
        result = solve(problem, options.placer(), options, replace(watcher, on_phase=watcher.on_step, on_note=None))
    except (HsdagError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):  # torch has no class for it on a CPU
            raise
        reason = str(error) if isinstance(error, HsdagError) else "out of memory"
        return Trial(method=options.method, seed=options.seed, elapsed_s=time.monotonic() - begin_s, failure=reason)
    nothing = "" if result.value is not None else f"no placement found. {result.status.sentence}"
    failure = result.note or nothing or None  # the answer of a method that gave up is a first plan, not its own
    return Trial(
        method=options.method,
        seed=options.seed,
        value_s=result.value if failure is None else None,
        curve=result.curve if failure is None else (),
        lower_bound_s=result.lower_bound,
        evaluations=result.num_evaluations,
        elapsed_s=result.elapsed_s,
        best_after_s=result.best_after_s,
        status=result.status.value,
        failure=failure,
    )


@dataclass(frozen=True, eq=False)
class SearchJob(Job[Trial]):
    """A search that a worker runs."""

    problem: ScheduleProblem
    options: SolveOptions

    def run(self, exchange: Exchange) -> Trial:
        """Return the result of the search, with the name of the machine."""
        asked_s = time.monotonic()
        is_over = False

        def should_stop() -> bool:
            nonlocal asked_s, is_over
            if time.monotonic() - asked_s > LOOK_EVERY_S:
                asked_s = time.monotonic()
                is_over = exchange(Findings()).is_over
            return is_over

        trial = run_once(self.problem, self.options, Watcher(should_stop=should_stop))
        return trial.model_copy(update={"host": node()})


def runs_of(
    problem: ScheduleProblem, searches: Sequence[SolveOptions], watcher: Watcher, pool: Pool | None
) -> Iterator[Trial]:
    """Yield the result of each search when it has ended, until the watcher stops the comparison.

    An interrupted search has no result. Without a pool, searches run one after another in this process; with a pool,
    each has one thread of a worker.
    """
    if pool is None:
        for number, options in enumerate(searches, start=1):
            watcher.on_phase(f"{options.method}, seed {options.seed}: run {number} of {len(searches)}")
            run = run_once(problem, options, watcher)
            if watcher.should_stop():
                return
            yield run
        return
    pool.begin()
    running: dict[Future[Trial], SolveOptions] = {}
    for options in searches:
        running[pool.submit(SearchJob(problem, replace(options, workers=None, num_threads=1)))] = options
    try:
        while running:
            watcher.on_phase(f"{len(searches) - len(running)} of {len(searches)} runs on {pool.num_workers} workers")
            for future in wait(running, LOOK_EVERY_S, FIRST_COMPLETED).done:
                lost = running.pop(future)
                try:
                    yield future.result()
                except ExecutionError as error:  # the search cost several workers
                    yield Trial(method=lost.method, seed=lost.seed, elapsed_s=0.0, failure=str(error))
            if watcher.should_stop():
                return
    finally:
        pool.exchange(Findings(is_over=True))
        for future in running:
            future.cancel()


def problem_called(
    name: str,
    platform: str | None = None,
    *,
    devices: str | None = None,
    partition_cpu: int | None = None,
    shape: str | Mapping[str, Sequence[int]] | None = None,
    data_shape: str | Sequence[str] = (),
    tokens: str | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> ScheduleProblem:
    """Return the problem of a problem file, a workload or a model file.

    A model without a ``platform`` is profiled on this machine's devices. Raises OptionError for an argument that does
    not apply to the source, and ModelError if neither a file nor a workload has the name.
    """
    path = Path(name)
    if not names_workload(name) and not path.exists():
        raise ModelError(f"{name!r} is no file, and no workload; workloads are {', '.join(WORKLOADS)}")
    kind, taken = "a model", {"devices", "partition_cpu", "shape", "data_shape", "platform"}
    if names_workload(name):
        kind, taken = "a workload", {"platform"}
    elif path.suffix == ".json":
        kind, taken = "a problem file", set()
    elif platform is not None:
        kind, taken = f"{option('platform')}, which brings its own devices", {"platform", "shape", "data_shape"}
    arguments = {"platform": platform, "devices": devices, "partition_cpu": partition_cpu, "shape": shape}
    for parameter, value in {**arguments, "data_shape": data_shape or tokens}.items():
        if value and parameter not in taken:
            raise OptionError(f"{option(parameter)} does not go with {kind}; leave it out")
    if names_workload(name):
        return build_problem(name, platform)
    if path.suffix == ".json":
        return read_problem(path)

    from hsdag.commands.profile import platform_costs, profile
    from hsdag.ir.graph.reader import input_shapes
    from hsdag.ir.graph.scenario import parse_scenarios

    if platform is not None:
        return platform_costs(path, load_platform(platform), input_shapes(shape), parse_scenarios(data_shape, tokens))
    of_model: dict[str, Any] = {"shape": shape, "data_shape": data_shape, "tokens": tokens, "on_step": on_step}
    return profile(path, devices, partition_cpu=partition_cpu, **of_model).schedule
