"""The tables of the HSDAG, DOPPLER, DiviML and Placeto papers, each figure beside ours.

Figures of the papers are in paper_tables.json, with what differs here; Placeto's main text gives none. One of ours is
simulated, computed or measured, as its table says. All seconds are CPU seconds of one thread, so that every search has
the same whatever else the machine does. A learned method stands beside itself with a learning rate of 0, which draws
plans and learns nothing, and beside annealing and random draws. Ctrl-C ends with what there is, an incomplete table
with status 1.

Usage: python benchmarks/paper_tables.py [TABLE ...] [--budget-s 10] [--seeds 3] [--row ROW] [--column COLUMN]
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diviml_costs import SEED, Costs, network
from gpt3 import LAYERS, cluster, gpt3
from machine import options

from hsdag.base.errors import ModelError
from hsdag.commands.compare import Trial, run_once
from hsdag.commands.profile import colocated_by_unit, platform_costs
from hsdag.commands.sources import build_problem, find_family, with_devices, workload_problem
from hsdag.commands.train.train import UNSEEN
from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.coarsen import coarsen
from hsdag.ir.graph.colocation import colocate
from hsdag.methods.incumbent import Status
from hsdag.methods.learned.doppler.placer import DopplerPlacer
from hsdag.models import WORKLOADS, build_model
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.platforms.platform import load_platform
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

Figure = float | list[float] | str | None
"""A figure of a paper; one with its standard deviation; a word that stands in its place; or nothing."""
TABLES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""Of the papers: title, unit, columns, figures of every row; of ours: what they are, what differs, more columns."""


@dataclass(frozen=True)
class Effort:
    """What each search of a table may spend, and with how many seeds."""

    budget_s: float = 10.0
    num_seeds: int = 3

    def options(self, method: str, **settings: object) -> SolveOptions:
        """Options of a search."""
        how = {"budget_s": self.budget_s, "num_threads": 1, **settings}
        return SolveOptions(method, **how)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Ours:
    """Our figure in the table's unit, with its deviation over seeds; None where there is none, ``note`` says why."""

    value: float | None = None
    deviation: float | None = None
    note: str = ""
    elapsed_s: float = 0.0

    @staticmethod
    def over(values: Sequence[float], note: str = "", elapsed_s: float = 0.0) -> Ours:
        """The mean of the finite values, with their deviation; a note says how many are infinite."""
        finite = [value for value in values if np.isfinite(value)]
        if len(finite) < len(values):
            note = f"{note} no plan within memory in {len(values) - len(finite)} of {len(values)} cases".strip()
        deviation = float(np.std(finite, ddof=1)) if len(set(finite)) > 1 else None
        return Ours(float(np.mean(finite)) if finite else None, deviation, note, elapsed_s)


Cells = Iterator[tuple[str, Ours]]
Rows = Callable[[str, Sequence[str], Effort], Cells]
"""Figures of a row, by column, of the columns asked for."""


# ---- tables of searches: one problem a row, one search a column


@dataclass(frozen=True)
class Search:
    """A method with its settings. ``shows`` is the figure of a search: its value or its seconds.

    ``seed`` alone where it is given, ``semantics`` where they differ from the table's.
    """

    method: str
    preset: str = "default"
    changes: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    shows: str = "value_s"
    semantics: Semantics | None = None

    @property
    def without_learning(self) -> Search:
        """The same search whose policy stays as it begins."""
        return replace(self, changes={**self.changes, "learning_rate": "0", "last_learning_rate": "0"})

    def ours(self, runs: Sequence[Trial], unit: Callable[[float], float]) -> Ours:
        """Mean and deviation over the runs that found something."""
        failed, done = [r.failure for r in runs if r.failure is not None], [r for r in runs if r.value_s is not None]
        note = f"{len(failed)} of {len(runs)} runs failed: {failed[0]}" if failed else ""
        if self.shows != "value_s" and any(run.status == Status.TIME_LIMIT.value for run in done):
            note = f"{note} the budget ended the search".strip()
        values = [float(getattr(run, self.shows)) for run in done]
        shown = [unit(value) for value in values] if self.shows == "value_s" else values
        return Ours.over(shown, note, sum(run.elapsed_s for run in runs))


BOUND = "the largest bound of the row"
Column = Search | str | None
"""A search; a device, on which all ops run, or BOUND; None for what needs devices that are not here."""
WITHOUT_LEARNING = ", learning rate 0"
"""After the name of a learned method: its control, which draws plans as it does and learns from none."""
CONTROLS: dict[str, Column] = {
    "random draws": Search("random"), "hill climber": Search("ea"), "annealing": Search("sa"),
    "min-cut": Search("mincut"), "HEFT": Search("heft"), "auto": Search("auto"), "lower bound": BOUND,
}  # fmt: skip
UNITS: dict[str, Callable[[float], float]] = {
    "s": lambda seconds: seconds,
    "ms": lambda seconds: 1e3 * seconds,
    "inputs/s": lambda seconds: 1.0 / seconds,
    "images/s": lambda seconds: BATCH / seconds,
}


@dataclass(frozen=True)
class Searches:
    """The row of a table of searches; seconds are converted to ``unit``, one of UNITS."""

    problem: Callable[[str], ScheduleProblem]
    settings: Mapping[str, Column]
    unit: str = "ms"
    objective: Objective = LATENCY
    semantics: Semantics = Semantics()  # noqa: RUF009 - frozen

    def __call__(self, name: str, columns: Sequence[str], effort: Effort) -> Cells:
        """Figures of a row; a method that fails has the reason as its note."""
        unit, bound_s = UNITS[self.unit], 0.0
        try:
            problem = self.problem(name)
        except ModelError as error:
            yield from ((column, Ours(note=str(error))) for column in columns)
            return
        for column in columns:
            setting = self.setting(column)
            if setting is None:
                yield column, Ours(note="it needs the real devices")
            elif setting == BOUND:
                yield column, Ours(unit(bound_s)) if bound_s > 0 else Ours(note="no search proved a bound")
            elif isinstance(setting, str):
                everything = np.full(problem.num_ops, problem.device_names.index(setting))
                (score,) = ScheduleEvaluator(problem, self.semantics, self.objective).evaluate([Plan(everything)])
                yield column, Ours.over([unit(score.value)])
            else:
                semantics = setting.semantics or self.semantics
                runs = self._runs(setting, problem, effort, semantics)
                if semantics == self.semantics:
                    bound_s = max([bound_s, *(run.lower_bound_s for run in runs)])
                yield column, setting.ours(runs, unit)

    def setting(self, column: str) -> Column:
        """What a column shows; that of a learned method WITHOUT_LEARNING follows from the method's."""
        name, is_off, _ = column.partition(WITHOUT_LEARNING)
        found = {**CONTROLS, **self.settings}[name]
        return found.without_learning if is_off and isinstance(found, Search) else found

    def _runs(self, setting: Search, problem: ScheduleProblem, effort: Effort, semantics: Semantics) -> list[Trial]:
        how = {"objective": self.objective, "preset": setting.preset, "changes": setting.changes}
        seeds = range(effort.num_seeds) if setting.seed is None else [setting.seed]
        options = effort.options(setting.method, **how, semantics=semantics)
        return [run_once(problem, replace(options, seed=seed)) for seed in seeds]


# ---- HSDAG: models of the zoo on the paper's machine

PLATFORM, CPU, GPU = "i9-12900k-uhd770-flex170", "CPU", "GPU.1"
SEQUENTIAL, WORK_CONSERVING = Semantics(Execution.SEQUENTIAL), Semantics(Execution.WORK_CONSERVING)
SIDE_BY_SIDE = {
    f"{name}, side by side": Search(method, semantics=WORK_CONSERVING)
    for name, method in (("HSDAG", "hsdag"), ("random draws", "random"), ("annealing", "sa"))
}
LEARNED = {"Placeto": "placeto", "RNN-based": "rnn", "HSDAG": "hsdag"}
WITHOUT = {"output shape": "output_shape", "node ID": "node_id", "graph structure": "structure"}


def on_paper_machine(model: str) -> ScheduleProblem:
    """A model of the zoo on the paper's CPU and discrete GPU, each of which takes what Table 2 says for all of it.

    The platform's costs say how this time divides among the ops.
    """
    platform = with_devices(load_platform(PLATFORM), (CPU, GPU))
    problem = platform_costs(build_model(model), platform)
    measured_s = np.array([float(str(published("hsdag-2", model, f"{name}-only"))) for name in ("CPU", "GPU")])
    return replace(problem, time_s=problem.time_s * (measured_s - problem.launch_s) / problem.time_s.sum(axis=0))


def in_sets(model: str) -> ScheduleProblem:
    """The same with co-location sets as units: all that a placement may part."""
    graph = read_graph(build_model(model))
    constraints = colocate(graph)
    return colocated_by_unit(on_paper_machine(model), coarsen(graph, constraints.sets, constraints.edge_kept))


def graph_statistics(name: str, columns: Sequence[str], _: Effort) -> Cells:
    """HSDAG, Table 1."""
    graph = read_graph(build_model(name))
    counted = {"nodes": graph.num_ops, "edges": graph.num_edges, "mean degree": graph.mean_degree}
    yield from ((column, Ours(float(counted[column]))) for column in columns)


def of_hsdag(settings: Mapping[str, Column], problem: Callable[[str], ScheduleProblem] = in_sets) -> Searches:
    """A table of searches on the paper's machine."""
    return Searches(problem, {"CPU-only": CPU, "GPU-only": GPU, **settings}, "s", semantics=SEQUENTIAL)


HSDAG: dict[str, Rows] = {
    "hsdag-1": graph_statistics,
    "hsdag-2": of_hsdag({
        "OpenVINO-CPU": None, "OpenVINO-GPU": None, **SIDE_BY_SIDE,
        **{name: Search(method) for name, method in LEARNED.items()},
    }),
    "hsdag-3": of_hsdag({
        "HSDAG": Search("hsdag"),
        **{f"without {what}": Search("hsdag", changes={option: "false"}) for what, option in WITHOUT.items()},
    }),
    "hsdag-5": of_hsdag({name: Search(m, "paper", shows="elapsed_s") for name, m in LEARNED.items()}, on_paper_machine),
}  # fmt: skip

# ---- DOPPLER: its sharded workloads on simulated P100 and V100

DOPPLER_ONLY = Search("doppler")
RIVALS: dict[str, Column] = {
    "CRITICAL PATH": Search("critical-path"), "PLACETO": Search("placeto"), "GDP": Search("gdp"),
    "ENUMERATIVEOPTIMIZER": Search("enumerative"), "DOPPLER-SIM": DOPPLER_ONLY, "DOPPLER-SYS": DOPPLER_ONLY,
    "DOPPLER-SEL": Search("doppler", changes={"learns_devices": "false"}),
    "DOPPLER-PLC": Search("doppler", changes={"learns_order": "false"}),
    "PLACETO-pretrain": Search("placeto", changes={"teacher_updates": "100"}), "1 GPU": "gpu0",
    **{f"seed {seed}": Search("doppler", seed=seed) for seed in range(5)},
}  # fmt: skip
MOVABLE = {"own_scores": "false"}
"""Scores of single ops would stay behind."""
Weights = dict[str, Any]
UNTRAINED = "untrained"
"""The control of zero-shot: what the policy would do before it has learned anything."""
SHOTS = {UNTRAINED: 0, "zero-shot": 0, "2k-shot": 2000, "4k-shot": 4000}
"""Episodes on the problem that the policy is moved to."""
SOURCE_EPISODES = 4000
"""Episodes on the problem that it is trained on (section 6.1, ChainMM and FFNN)."""


@dataclass(frozen=True)
class Transfers:
    """Rows with columns of SHOTS: a policy trained on the row's ``source`` and moved to the problem of the others."""

    source: Callable[[str], ScheduleProblem]
    others: Searches

    def __call__(self, name: str, columns: Sequence[str], effort: Effort) -> Cells:
        """Figures of a row: transfers first, then the other searches."""
        problem, seeds = self.others.problem(name), range(effort.num_seeds)
        shots = [column for column in columns if column in SHOTS]
        learned: list[Weights] = [{} for _ in seeds]
        for seed in seeds if set(shots) - {UNTRAINED} else ():
            options = effort.options("doppler", max_evaluations=SOURCE_EPISODES, seed=seed, changes=MOVABLE)
            placer = options.placer()
            solve(self.source(name), placer, options)
            reusable = placer.trainer.policy.reusable  # type: ignore[attr-defined]
            learned[seed] = {name: each.detach().numpy() for name, each in reusable.items()}
        for column in shots:
            if SHOTS[column] == 0:
                own = learned if column != UNTRAINED else [{}] * len(learned)
                yield column, Ours.over([1e3 * zero_shot_s(problem, own[seed], seed) for seed in seeds])
                continue
            runs = []
            for seed, weights in enumerate(learned):
                options = effort.options("doppler", max_evaluations=SHOTS[column], seed=seed, changes=MOVABLE)
                runs.append(solve(problem, begun_with(options, weights), options))
            values = [np.inf if run.value_s is None else 1e3 * run.value_s for run in runs]
            yield column, Ours.over(values, elapsed_s=sum(run.elapsed_s for run in runs))
        yield from self.others(name, [column for column in columns if column not in SHOTS], effort)


def begun_with(options: SolveOptions, weights: Weights) -> DopplerPlacer:
    """DOPPLER, whose networks begin with the weights that were learned on another problem, its plans first."""
    placer: DopplerPlacer = options.placer()  # type: ignore[assignment]
    placer.initial = weights
    return placer


def zero_shot_s(problem: ScheduleProblem, weights: Weights, seed: int) -> float:
    """Simulated seconds of the most probable plan under learned weights; infinite where it exceeds a memory."""
    generator, units = torch.Generator().manual_seed(seed), problem_of(problem)
    plan = begun_with(SolveOptions("doppler", changes=MOVABLE), weights).begun(units, generator).best(generator).plan
    return ScheduleEvaluator.of(units).evaluate([plan])[0].value


def on(platform: str) -> Callable[[str], ScheduleProblem]:
    """A workload on a platform."""
    return partial(build_problem, platform=platform)


def on_half_the_memory(workload: str) -> ScheduleProblem:
    """A workload on four P100 that are restricted to 8 GB each."""
    problem = build_problem(workload, "p100x4")
    return replace(problem, memory_bytes=problem.memory_bytes / 2)


DOPPLER: dict[str, Rows] = {
    **{f"doppler-{number}": Searches(on("p100x4"), RIVALS) for number in (2, 3, 5, 7)},
    "doppler-4": Transfers(
        lambda row: build_problem(row.partition(" ")[0], "p100x4"),
        Searches(lambda row: build_problem(row.rpartition(" ")[2], "p100x4"), RIVALS),
    ),
    "doppler-8": Searches(on_half_the_memory, RIVALS),
    "doppler-9": Searches(on("v100x8"), RIVALS),
    "doppler-11": Transfers(on("p100x4"), Searches(on("v100x8"), RIVALS)),
}

# ---- DiviML: randomly wired networks with simulated costs, and GPT-3 on a cluster

BATCH, SERVERS = 16, 6
METHODS = {
    "best device": "best-device", "MET": "met", "Greedy": "greedy", "HEFT": "heft", "(1+1) EA": "ea", "SA": "sa",
    "MILP": "cpsat", "MILP-SPLIT": "milp-split",
}  # fmt: skip


def of_modules(row: str) -> ScheduleProblem:
    """The network of 'KIND, NUMBER modules', which has two channels."""
    kind, number, _ = row.replace(",", "").split()
    return network(f"{kind}-2", int(number))


def of_batches(name: str) -> ScheduleProblem:
    """A network whose ops take all inputs of a batch at once, with one launch for the batch."""
    problem = network(name)
    launch_s = np.minimum(np.array(Costs().launch_s), problem.time_s)
    sizes = {each: BATCH * getattr(problem, each) for each in ("edge_bytes", "output_bytes")}
    return replace(problem, time_s=launch_s + (problem.time_s - launch_s) * BATCH, **sizes)


def gpt3_on(row: str) -> ScheduleProblem:
    """All of GPT-3 on six servers, or a sixth of its layers on one, which the other servers repeat."""
    servers = 1 if row.startswith("one server") else SERVERS
    return workload_problem(gpt3(LAYERS * servers // SERVERS), cluster(load_platform("t4-a100"), servers))


def gpt3_throughput(name: str, _: Sequence[str], effort: Effort) -> Cells:
    """DiviML, Table V: the rows are methods; inputs a second."""
    if "symmetries" in name and "by time" not in name:
        yield "throughput", Ours(note="milp-split has one form, in the row 'symmetries by time'")
        return
    search = Search("cpsat" if name == "one server, MILP" else "milp-split", seed=SEED)
    searches = Searches(gpt3_on, {"throughput": search, "bound": BOUND}, "inputs/s", THROUGHPUT)
    cells = dict(searches(name, ("throughput", "bound"), effort))
    yield "throughput", cells["bound" if name == "UBound" else "throughput"]


DIVIML: dict[str, Rows] = {
    "diviml-1": Searches(network, {**{name: Search(method) for name, method in METHODS.items()}, "LBound": BOUND}),
    "diviml-3": Searches(
        of_modules, {name: Search(METHODS[name], shows="best_after_s") for name in ("MILP", "MILP-SPLIT")}
    ),
    "diviml-4": Searches(
        of_batches,
        {**{name: Search(method, seed=SEED) for name, method in METHODS.items()}, "UBound": BOUND},
        "images/s",
    ),
    "diviml-5": gpt3_throughput,
}

# ---- Placeto: its comparisons, and policies judged on graphs of a family that they were not trained on

TESTED = 5
"""Graphs of a family that methods are judged on."""
UNSEEN_SEARCHES = {
    "Placeto": Search("placeto"), f"Placeto{WITHOUT_LEARNING}": Search("placeto").without_learning,
    "learned rules": Search("rules"), "HEFT": Search("heft"), "random draws": Search("random"),
    "hill climber": Search("ea"), "auto": Search("auto"),
}  # fmt: skip


def on_four_gpus(name: str) -> ScheduleProblem:
    """A workload or a model of the zoo on four P100."""
    if name in WORKLOADS:
        return build_problem(name, "p100x4")
    return platform_costs(build_model(name), load_platform("p100x4"))


def unseen_graphs(name: str, columns: Sequence[str], effort: Effort) -> Cells:
    """Placeto's generalisation: rows are families, figures ratios to annealing in the same budget."""
    tests = [find_family(name).problem(UNSEEN + number) for number in range(TESTED)]

    def found_s(search: Search) -> list[float]:
        options = effort.options(search.method, changes=search.changes)
        values = [run_once(test, options).value_s for test in tests]
        return [np.inf if value is None else value for value in values]

    least_s = found_s(Search("sa"))
    for column in columns:
        begin_s = time.monotonic()
        pairs = zip(found_s(UNSEEN_SEARCHES[column]), least_s, strict=True)
        ratios = [value / least if np.isfinite(least) else np.inf for value, least in pairs]
        yield column, Ours.over(ratios, elapsed_s=time.monotonic() - begin_s)


PLACETO: dict[str, Rows] = {
    "placeto-1": Searches(
        on_four_gpus,
        {"Placeto": Search("placeto"), "RNN-based": Search("rnn"), "best device": Search("best-device")},
        semantics=Semantics(links=LinkSharing.EGRESS),
    ),
    "placeto-2": unseen_graphs,
}
RECIPES = {**HSDAG, **DOPPLER, **DIVIML, **PLACETO}


# ---- printing


def published(table: str, row: str, column: str) -> Figure:
    """The figure of a paper, None where the table has none."""
    columns, rows = TABLES[table]["columns"], TABLES[table]["rows"]
    figure: Figure = rows[row][columns.index(column)] if column in columns else None
    return figure


def shown(figure: Figure, deviation: float | None = None) -> str:
    """A figure as text, with its deviation where it has one."""
    if isinstance(figure, list):
        figure, deviation = figure
    if figure is None or isinstance(figure, str):
        return figure or "-"
    return f"{figure:.4g}" + (f"±{deviation:.2g}" if deviation else "")


def markdown(name: str, cells: Mapping[tuple[str, str], Ours], took_s: float) -> str:
    """The table with a line for each column, our figures by (row, column), and remarks."""
    table = TABLES[name]
    rows, columns = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    unit = f", in {table['unit']}" if table["unit"] else ""
    head = f"### {table['paper']}, {table['number']}: {table['title']}{unit}; ours are {table['ours'].upper()}"
    heads = [text for row in rows for text in (f"{row}: paper", "ours")]
    lines = [head, "", f"| | {' | '.join(heads)} | CPU s |", "| --- |" + " ---: |" * (len(heads) + 1)]
    for column in columns:
        own = [cells.get((row, column), Ours()) for row in rows]
        texts = []
        for row, ours in zip(rows, own, strict=True):
            texts += [shown(published(name, row, column)), shown(ours.value, ours.deviation)]
        lines.append(f"| {column} | {' | '.join(texts)} | {sum(ours.elapsed_s for ours in own):.1f} |")
    rows_of: dict[str, list[str]] = {}
    for (row, column), ours in cells.items():
        if ours.note:
            rows_of.setdefault(f"{column}: {ours.note}", []).append(row)
    notes = [note if len(own) == len(rows) else f"{note} ({', '.join(own)})" for note, own in rows_of.items()]
    took = f"It took {took_s:.0f} CPU s."
    return "\n".join([*lines, "", *(f"- {line}" for line in (table["about"], *notes, took)), ""])


def reproduce(name: str, effort: Effort, rows: Sequence[str], columns: Sequence[str]) -> bool:
    """Print a table, or the named rows and columns of it; whether it is complete."""
    table, begin_s = TABLES[name], time.monotonic()
    cells: dict[tuple[str, str], Ours] = {}
    is_complete = False
    with contextlib.suppress(KeyboardInterrupt):
        wanted = [column for column in (*table["columns"], *table["controls"]) if not columns or column in columns]
        for row in (row for row in table["rows"] if not rows or row in rows):
            for column, ours in RECIPES[name](row, wanted, effort):
                cells[row, column] = ours
                print(f"{name}, {row}, {column}: {shown(ours.value, ours.deviation)}", file=sys.stderr)
        is_complete = True
    print(markdown(name, cells, time.monotonic() - begin_s), flush=True)
    return is_complete


def main() -> int:
    only = list[str](), "only these; repeatable"
    budget_s, seeds = (10.0, "CPU seconds of each search"), (3, "searches of each figure")
    given = options(__doc__, RECIPES, budget_s=budget_s, seeds=seeds, row=only, column=only)
    known = {row for t in TABLES.values() for row in t["rows"]}
    known |= {column for t in TABLES.values() for column in (*t["columns"], *t["controls"])}
    if unknown := {*given.row, *given.column} - known:
        sys.exit(f"no row or column is called {unknown.pop()!r}")
    effort = Effort(given.budget_s, max(1, given.seeds))
    time.monotonic = time.process_time  # by which searches know their budgets
    done = [reproduce(name, effort, given.row, given.column) for name in given.parts]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
