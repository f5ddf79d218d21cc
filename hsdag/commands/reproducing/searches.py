"""SearchTable: a recipe whose figures are values, bounds or times of searches on one problem a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hsdag.commands.reproducing.base import Effort, Ours, Recipe
from hsdag.commands.runs import Run, runs_of
from hsdag.fleet.pool import Pool
from hsdag.ir.errors import HsdagError, ModelError
from hsdag.placers.incumbent import Status
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Semantics
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve


@dataclass(frozen=True)
class Search:
    """A method with its settings: the value it finds, or where ``shows_time`` the seconds that it searches.

    ``seed`` alone where it is given, ``semantics`` where they differ from the table's. ``note`` says what differs from
    the paper's method; ``counts_plans`` adds how many plans were evaluated.
    """

    method: str
    preset: str = "default"
    changes: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    shows_time: bool = False
    semantics: Semantics | None = None
    note: str = ""
    counts_plans: bool = False


@dataclass(frozen=True)
class Single:
    """All ops on one device."""

    device: str


@dataclass(frozen=True)
class LargestBound:
    """The largest lower bound that the searches of the row proved."""


@dataclass(frozen=True)
class Absent:
    """A column that cannot be had here, and why."""

    reason: str


Column = Search | Single | LargestBound | Absent

CONTROLS: Mapping[str, Column] = {
    "random draws": Search("random"),
    "hill climber": Search("ea"),
    "annealing": Search("sa"),
    "min-cut": Search("mincut"),
    "HEFT": Search("heft"),
    "auto": Search("auto"),
    "lower bound": LargestBound(),
}
"""Columns of tables of searches, beside those of their papers."""
SIMPLE_CONTROLS = ("random draws", "hill climber")


@dataclass(frozen=True)
class SearchTable(Recipe):
    """One problem a row, one search a column; ``shown`` converts seconds to the table's unit."""

    problem: Callable[[str], ScheduleProblem]
    settings: Mapping[str, Column]
    about: str
    shown: Callable[[float], float]
    objective: Objective = LATENCY
    semantics: Semantics = Semantics()  # noqa: RUF009 - frozen
    controls: tuple[str, ...] = tuple(CONTROLS)
    kind: str = "simulated"

    def row(self, name: str, columns: Sequence[str], effort: Effort, watcher: Watcher) -> Iterator[tuple[str, Ours]]:
        """Figures of a row; a method that fails has the reason as its note."""
        try:
            problem, bound_s = self.problem(name), 0.0
        except ModelError as error:
            yield from ((column, Ours(note=str(error))) for column in columns)
            return
        options = SolveOptions(
            objective=self.objective,
            budget_s=effort.budget_s,
            max_evaluations=effort.max_evaluations,
            semantics=self.semantics,
        )
        found = _Runs(self._searches(columns, options, effort.num_seeds), problem, effort.pool, watcher)
        for column in columns:
            watcher.on_phase(f"{name}: {column}")
            setting = self._column(column)
            if isinstance(setting, LargestBound):
                ours = Ours(self.shown(bound_s)) if bound_s > 0 else Ours(note="no search proved a bound")
            elif isinstance(setting, Absent):
                ours = Ours(note=setting.reason)
            elif isinstance(setting, Single):
                ours = self._single(setting.device, problem, options, watcher)
            else:
                runs = found.of(column)
                ours = summary(setting, runs, self.shown)
                if (setting.semantics or self.semantics) == self.semantics:
                    bound_s = max([bound_s, *(run.lower_bound_s for run in runs)])
            if watcher.should_stop():
                return
            yield column, ours

    def _column(self, name: str) -> Column:
        return {**CONTROLS, **self.settings}[name]

    def _searches(self, columns: Sequence[str], options: SolveOptions, num_seeds: int) -> dict[str, list[SolveOptions]]:
        """The searches of each column that has some."""
        searches: dict[str, list[SolveOptions]] = {}
        for column in columns:
            setting = self._column(column)
            if not isinstance(setting, Search):
                continue
            given = replace(
                options,
                method=setting.method,
                preset=setting.preset,
                changes=setting.changes,
                semantics=setting.semantics or self.semantics,
            )
            seeds = range(num_seeds) if setting.seed is None else [setting.seed]
            searches[column] = [replace(given, seed=seed) for seed in seeds]
        return searches

    def _single(self, device: str, problem: ScheduleProblem, options: SolveOptions, watcher: Watcher) -> Ours:
        try:
            quiet = Watcher(should_stop=watcher.should_stop)
            found = solve(problem, make_placer("best-device"), replace(options, method="best-device"), quiet)
        except HsdagError as error:
            return Ours(note=str(error))
        if device not in found.single_s:
            return Ours(note=f"the graph does not fit on {device} alone", elapsed_s=found.elapsed_s)
        return Ours(self.shown(found.single_s[device]), elapsed_s=found.elapsed_s)


class _Runs:
    """Runs of a row's columns, as far as they have ended; in this process each is searched once it is asked for."""

    def __init__(
        self, searches: Mapping[str, list[SolveOptions]], problem: ScheduleProblem, pool: Pool | None, watcher: Watcher
    ) -> None:
        columns = [column for column, each in searches.items() for _ in each]
        flat = [options for each in searches.values() for options in each]
        self._count = {column: len(each) for column, each in searches.items()}
        self._ended: dict[str, list[Run]] = {column: [] for column in searches}
        self._coming = ((columns[number], run) for number, run in runs_of(problem, flat, watcher, pool))

    def of(self, column: str) -> list[Run]:
        """The runs of a column in the order of their seeds; fewer where the watcher wanted no more."""
        while len(self._ended[column]) < self._count[column]:
            ended = next(self._coming, None)
            if ended is None:
                break
            self._ended[ended[0]].append(ended[1])
        return sorted(self._ended[column], key=lambda run: run.seed)


def summary(setting: Search, runs: Sequence[Run], shown: Callable[[float], float]) -> Ours:
    """Mean and deviation over the runs that found something."""
    elapsed_s = sum(run.elapsed_s for run in runs)
    failed = [run.failure for run in runs if run.failure is not None]
    done = [run for run in runs if run.value_s is not None]
    notes = [setting.note, f"{len(failed)} of {len(runs)} runs failed: {failed[0]}" if failed else ""]
    if setting.shows_time and any(run.status == Status.TIME_LIMIT.value for run in done):
        notes.append("the budget ended the search")
    if setting.counts_plans and done:
        notes.append(f"{sum(run.evaluations for run in done) / len(done):.0f} plans a search")
    note = "; ".join(filter(None, notes))
    return Ours.over(
        [run.elapsed_s if setting.shows_time else shown(run.value_s or 0.0) for run in done], note, elapsed_s
    )


def in_seconds(seconds: float) -> float:
    """For tables in s."""
    return seconds


def in_milliseconds(seconds: float) -> float:
    """For tables in ms."""
    return 1e3 * seconds


def per_second(seconds: float) -> float:
    """For tables of rates."""
    return 1.0 / seconds
