"""The tables of the HSDAG, DOPPLER, DiviML and Placeto papers, each figure beside ours.

Figures of the papers are in paper_tables.json; Placeto's main text gives none that could be there. A figure of ours is
simulated, computed or measured, as the title of each table says. Ctrl-C prints what there is by then. Exit status 1
when a table is incomplete.

Usage: python benchmarks/paper_tables.py [TABLE ...] [--budget-s 10] [--seeds 3] [--row ROW] [--column COLUMN] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from diviml_costs import SEED, Costs, network
from machine import machine

from hsdag.benchmarking.profile import assumed_costs
from hsdag.ir.errors import ModelError
from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.coarsen import CoarseGraph, coarsen, placement_units
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import ComputationGraph, IntArray
from hsdag.methods.exact.batches import BatchTable
from hsdag.methods.incumbent import Status
from hsdag.methods.learned.policy import first_plans
from hsdag.methods.registry import make_placer
from hsdag.models import build_model, is_workload
from hsdag.models.diviml import GptSizes, gpt3
from hsdag.runtime.objectives import Objective
from hsdag.runtime.objectives.latency import LATENCY
from hsdag.runtime.objectives.throughput import THROUGHPUT
from hsdag.runtime.platforms import load_platform
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator import Execution, Links, Semantics, simulate
from hsdag.scoring.recording import RecordingEvaluator
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.solving.batched import BatchOptions, solve_batched
from hsdag.solving.runs import Run, run_once
from hsdag.solving.solve import solve
from hsdag.sources.families import find_family
from hsdag.sources.workload import build_problem, cluster, with_devices, workload_problem
from hsdag.training.train import UNSEEN, TrainOptions, run_train

if TYPE_CHECKING:
    from hsdag.methods.learned.doppler.placer import DopplerPlacer

Figure = float | list[float] | str | None
"""A figure; one with its standard deviation; a word that stands in its place; or nothing."""


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper. ``unit`` is that of all its figures, empty where columns or rows say it themselves."""

    paper: str
    number: str
    title: str
    unit: str
    columns: list[str]
    rows: dict[str, list[Figure]]

    def figure(self, row: str, column: str) -> Figure:
        """The published figure, None where the table has none."""
        return self.rows[row][self.columns.index(column)] if row in self.rows and column in self.columns else None


PAPER_TABLES = {
    name: PaperTable(**table)
    for name, table in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")).items()
}


@dataclass(frozen=True)
class Effort:
    """What each search of a table may spend, and with how many seeds."""

    budget_s: float = 10.0
    max_evaluations: int | None = None
    num_seeds: int = 3

    def options(self, method: str, **settings: object) -> SolveOptions:
        """Options of a search."""
        return SolveOptions(method, budget_s=self.budget_s, max_evaluations=self.max_evaluations, **settings)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Ours:
    """Our figure in the table's unit, with its deviation over seeds; None where there is none, ``note`` says why."""

    value: float | None = None
    deviation: float | None = None
    note: str = ""
    elapsed_s: float = 0.0

    @staticmethod
    def over(values: Sequence[float], note: str = "", elapsed_s: float = 0.0, of: str = "seeds") -> Ours:
        """The mean of the finite values, with their deviation; a note says of how many ``of`` the value is infinite."""
        finite = [value for value in values if np.isfinite(value)]
        lacking = f"no plan within memory for {len(values) - len(finite)} of {len(values)} {of}"
        note = "; ".join(filter(None, [note, lacking if len(finite) < len(values) else ""]))
        if not finite:
            return Ours(note=note, elapsed_s=elapsed_s)
        deviation = float(np.std(finite, ddof=1)) if len(finite) > 1 else None
        return Ours(float(np.mean(finite)), deviation, note, elapsed_s)


TIMED = "measured seconds of simulated searches"
Row = Callable[[str, Sequence[str], Effort], Iterator[tuple[str, Ours]]]
"""Figures of a row, by column, of the columns asked for."""


@dataclass(frozen=True)
class Recipe:
    """How a table is reproduced; ``about`` says what differs from the paper, ``kind`` what our figures are.

    ``controls`` are columns that the paper does not have.
    """

    row: Row
    about: str
    kind: str = "simulated"
    controls: tuple[str, ...] = ()


# ---- tables of searches: one problem a row, one search a column


@dataclass(frozen=True)
class Search:
    """A method with its settings: the value it finds, or where ``shows_time`` the seconds that it searches.

    ``seed`` alone where it is given, ``semantics`` where they differ from the table's. ``note`` says what differs from
    the paper's method.
    """

    method: str
    preset: str = "default"
    changes: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    shows_time: bool = False
    semantics: Semantics | None = None
    note: str = ""

    def ours(self, runs: Sequence[Run], shown: Callable[[float], float]) -> Ours:
        """Mean and deviation over the runs that found something."""
        failed = [run.failure for run in runs if run.failure is not None]
        done = [run for run in runs if run.value_s is not None]
        ended = self.shows_time and any(run.status == Status.TIME_LIMIT.value for run in done)
        notes = [
            self.note,
            f"{len(failed)} of {len(runs)} runs failed: {failed[0]}" if failed else "",
            "the budget ended the search" if ended else "",
        ]
        values = [run.elapsed_s if self.shows_time else shown(run.value_s or 0.0) for run in done]
        return Ours.over(values, "; ".join(filter(None, notes)), sum(run.elapsed_s for run in runs))


@dataclass(frozen=True)
class Single:
    """All ops on one device."""

    device: str


@dataclass(frozen=True)
class LargestBound:
    """The largest lower bound that the searches of the row proved before."""


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
UNITS: dict[str, Callable[[float], float]] = {
    "s": lambda seconds: seconds,
    "ms": lambda seconds: 1e3 * seconds,
    "inputs/s": lambda seconds: 1.0 / seconds,
}


@dataclass(frozen=True)
class Searches:
    """The row of a table of searches; seconds are converted to ``unit``, one of UNITS."""

    problem: Callable[[str], ScheduleProblem]
    settings: Mapping[str, Column]
    unit: str
    objective: Objective = LATENCY
    semantics: Semantics = Semantics()  # noqa: RUF009 - frozen

    def __call__(self, name: str, columns: Sequence[str], effort: Effort) -> Iterator[tuple[str, Ours]]:
        """Figures of a row; a method that fails has the reason as its note."""
        shown, bound_s = UNITS[self.unit], 0.0
        try:
            problem = self.problem(name)
        except ModelError as error:
            yield from ((column, Ours(note=str(error))) for column in columns)
            return
        for column in columns:
            setting = {**CONTROLS, **self.settings}[column]
            if isinstance(setting, LargestBound):
                yield column, Ours(shown(bound_s)) if bound_s > 0 else Ours(note="no search proved a bound")
            elif isinstance(setting, Absent):
                yield column, Ours(note=setting.reason)
            elif isinstance(setting, Single):
                yield column, self._single(setting.device, problem)
            else:
                semantics = setting.semantics or self.semantics
                runs = self._runs(setting, problem, effort, semantics)
                if semantics == self.semantics:
                    bound_s = max([bound_s, *(run.lower_bound_s for run in runs)])
                yield column, setting.ours(runs, shown)

    def _runs(self, setting: Search, problem: ScheduleProblem, effort: Effort, semantics: Semantics) -> list[Run]:
        options = effort.options(
            setting.method,
            objective=self.objective,
            preset=setting.preset,
            changes=setting.changes,
            semantics=semantics,
        )
        seeds = range(effort.num_seeds) if setting.seed is None else [setting.seed]
        return [run_once(problem, replace(options, seed=seed)) for seed in seeds]

    def _single(self, device: str, problem: ScheduleProblem) -> Ours:
        evaluator = ScheduleEvaluator(problem, self.semantics, self.objective)
        device_idx = problem.device_names.index(device)
        score = evaluator.evaluate([Plan(np.full(problem.num_ops, device_idx))])[0]
        if not np.isfinite(score.value):
            return Ours(note=f"the graph does not fit on {device} alone")
        return Ours(UNITS[self.unit](score.value))


# ---- HSDAG: models of the zoo on the paper's machine, simulated

PLATFORM, CPU, GPU = "i9-12900k-uhd770-flex170", "CPU", "GPU.1"
SEQUENTIAL, WORK_CONSERVING = Semantics(Execution.SEQUENTIAL), Semantics(Execution.WORK_CONSERVING)
ABOUT_HSDAG = (
    "The machine is simulated: CPU-only and GPU-only are Table 2's, by construction, and its other rows were not used. "
    "Ops run one after another, as under HETERO. The integrated GPU takes no part, as in the paper."
)
BESIDE = f"{ABOUT_HSDAG} In the columns that say so, devices work side by side, as under the work-conserving executor."
EXPERT = {"expert_every": "20"}
SIDE_BY_SIDE = {
    f"{name}, side by side": Search(method, changes=changes, semantics=WORK_CONSERVING)
    for name, method, changes in (
        ("HSDAG", "hsdag", {}),
        ("HSDAG with an expert", "hsdag", EXPERT),
        ("the same, learning off", "hsdag", {**EXPERT, "learning_rate": "1e-100", "last_learning_rate": "0"}),
        ("random draws", "random", {}),
        ("annealing", "sa", {}),
    )
}
OF_OPENVINO = Absent("OpenVINO's own choice needs the real devices")
WITHOUT = {"output shape": "output_shape", "node ID": "node_id", "graph structure": "structure"}


def on_paper_machine(
    model: str, units_of: Callable[[ComputationGraph], CoarseGraph] = placement_units
) -> ScheduleProblem:
    """A model of the zoo on the paper's CPU and discrete GPU, each of which takes what Table 2 says for all of it.

    The platform's costs say how this time divides among the ops.
    """
    platform = with_devices(load_platform(PLATFORM), (CPU, GPU))
    problem = assumed_costs(build_model(model), platform, name=model, units_of=units_of)
    table = PAPER_TABLES["hsdag-2"]
    measured_s = np.array([float(str(table.figure(model, column))) for column in ("CPU-only", "GPU-only")])
    return replace(problem, time_s=problem.time_s * (measured_s - problem.launch_s) / problem.time_s.sum(axis=0))


def in_sets(model: str) -> ScheduleProblem:
    """The same with co-location sets as units: all that a placement may part."""

    def sets(graph: ComputationGraph) -> CoarseGraph:
        constraints = colocate(graph)
        return coarsen(graph, constraints.sets, constraints.edge_kept)

    return on_paper_machine(model, sets)


def graph_statistics(name: str, columns: Sequence[str], _: Effort) -> Iterator[tuple[str, Ours]]:
    """HSDAG, Table 1."""
    begin_s = time.monotonic()
    graph = read_graph(build_model(name))
    took_s = time.monotonic() - begin_s
    counted = {"nodes": graph.num_ops, "edges": graph.num_edges, "mean degree": graph.mean_degree}
    for column in columns:
        yield column, Ours(float(counted[column]), elapsed_s=took_s / len(columns))


HSDAG: dict[str, Recipe] = {
    "hsdag-1": Recipe(
        graph_statistics,
        "Nodes and edges of the zoo's models as OpenVINO reads them; the mean degree is edges over nodes. BERT comes "
        "from another converter than the paper's.",
        "computed",
    ),
    "hsdag-2": Recipe(
        Searches(
            in_sets,
            {
                "CPU-only": Single(CPU),
                "GPU-only": Single(GPU),
                "OpenVINO-CPU": OF_OPENVINO,
                "OpenVINO-GPU": OF_OPENVINO,
                "Placeto": Search("placeto"),
                "RNN-based": Search("rnn"),
                "HSDAG": Search("hsdag"),
                **SIDE_BY_SIDE,
            },
            "s",
            semantics=SEQUENTIAL,
        ),
        BESIDE,
        controls=(*CONTROLS, *SIDE_BY_SIDE),
    ),
    "hsdag-3": Recipe(
        Searches(
            in_sets,
            {
                "CPU-only": Single(CPU),
                "HSDAG": Search("hsdag"),
                **{f"without {what}": Search("hsdag", changes={option: "false"}) for what, option in WITHOUT.items()},
            },
            "s",
            semantics=SEQUENTIAL,
        ),
        ABOUT_HSDAG,
        controls=SIMPLE_CONTROLS,
    ),
    "hsdag-5": Recipe(
        Searches(
            on_paper_machine,
            {
                name: Search(method, "paper", shows_time=True)
                for name, method in (("Placeto", "placeto"), ("RNN-based", "rnn"), ("HSDAG", "hsdag"))
            },
            "s",
            semantics=SEQUENTIAL,
        ),
        "Seconds of a search with the presets of the papers; plans are simulated here, and measured there. "
        + ABOUT_HSDAG,
        TIMED,
    ),
}

# ---- DOPPLER: its sharded workloads on simulated P100 and V100

ABOUT_DOPPLER = "Graphs, devices and times are simulated; the paper runs its own engine on real GPUs."
STAGE_3 = Absent("stage III learns from measured times, and there are no such GPUs here")
SIMULATED = "stages I and II alone"
RIVALS: dict[str, Column] = {
    "CRITICAL PATH": Search("critical-path"),
    "PLACETO": Search("placeto"),
    "ENUMERATIVEOPTIMIZER": Search("enumerative"),
    "DOPPLER-SYS": Search("doppler", note=SIMULATED),
}
SHOTS = {"zero-shot": 0, "2k-shot": 2000, "4k-shot": 4000}
"""Episodes on the problem that the policy is moved to."""
UNTRAINED = "untrained"
"""The control of zero-shot: what the policy would do before it has learned anything."""
SOURCE_EPISODES = 4000
"""Episodes on the problem that it is trained on (section 6.1, ChainMM and FFNN)."""


def synchrony(name: str, columns: Sequence[str], effort: Effort) -> Iterator[tuple[str, Ours]]:
    """DOPPLER, Table 1: one placement, simulated as it is and with a barrier behind every level of the graph."""
    problem = build_problem(name, "p100x4")
    result = solve(problem, make_placer("enumerative"), SolveOptions("enumerative", budget_s=effort.budget_s))
    assert result.device is not None
    for column in columns:
        simulated = problem if column == "work-conserving" else with_barriers(problem)
        run = simulate(simulated, result.device, result.semantics, result.priority)
        yield column, Ours(1e3 * run.makespan_s, elapsed_s=result.elapsed_s / len(columns))


def with_barriers(problem: ScheduleProblem) -> ScheduleProblem:
    """The problem with an edge of no bytes from every op to every op of the next level, besides its own edges."""
    level = levels(problem)
    pairs = [
        (u, v)
        for depth in range(int(level.max()))
        for u in np.flatnonzero(level == depth).tolist()
        for v in np.flatnonzero(level == depth + 1).tolist()
    ]
    src, dst = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    port = int(problem.edge_port.max(initial=0)) + 1
    position = np.argsort(problem.topological_order)
    return replace(
        problem,
        edge_src=np.concatenate([problem.edge_src, src]),
        edge_dst=np.concatenate([problem.edge_dst, dst]),
        edge_bytes=np.concatenate([problem.edge_bytes, np.zeros(len(src))]),
        edge_port=np.concatenate([problem.edge_port, np.full(len(src), port)]),
        topological_order=np.lexsort((position, level)),
    )


def levels(problem: ScheduleProblem) -> IntArray:
    """[N] edges on the longest path that ends at each op."""
    level = np.zeros(problem.num_ops, dtype=np.int64)
    position = np.argsort(problem.topological_order)
    for edge in np.argsort(position[problem.edge_src], kind="stable").tolist():
        u, v = problem.edge_src[edge], problem.edge_dst[edge]
        level[v] = max(level[v], level[u] + 1)
    return level


@dataclass(frozen=True)
class Transfers:
    """Rows with columns of SHOTS: a policy trained on the row's ``source`` and moved to the problem of the others."""

    source: Callable[[str], ScheduleProblem]
    others: Searches

    def __call__(self, name: str, columns: Sequence[str], effort: Effort) -> Iterator[tuple[str, Ours]]:
        """Figures of a row: transfers first, then the other searches."""
        problem, shots = self.others.problem(name), [column for column in columns if column in SHOTS]
        with trained(self.source(name), effort) if shots else contextlib.nullcontext([]) as paths:
            for column in shots:
                yield column, shot(problem, SHOTS[column], paths, effort)
        if UNTRAINED in columns:
            values = [1e3 * zero_shot_s(problem, None, seed) for seed in range(effort.num_seeds)]
            yield UNTRAINED, Ours.over(values)
        yield from self.others(name, [column for column in columns if column not in (*SHOTS, UNTRAINED)], effort)


@contextlib.contextmanager
def trained(problem: ScheduleProblem, effort: Effort) -> Iterator[list[Path]]:
    """Policy files of DOPPLER trained on a problem, one for each seed."""
    most = min(SOURCE_EPISODES, effort.max_evaluations or SOURCE_EPISODES)
    with tempfile.TemporaryDirectory(prefix="hsdag-") as folder:
        paths = [Path(folder) / f"{seed}.safetensors" for seed in range(effort.num_seeds)]
        for seed, path in enumerate(paths):
            changes = {"own_scores": "false"}  # which would stay behind
            options = replace(effort, max_evaluations=most).options("doppler", seed=seed, changes=changes)
            placer: DopplerPlacer = options.placer()  # type: ignore[assignment]
            solve(problem, placer, options)
            placer.save(path)
        yield paths


def shot(problem: ScheduleProblem, episodes: int, paths: Sequence[Path], effort: Effort) -> Ours:
    """Milliseconds of the policies' plans, as they are or after some episodes on the problem."""
    begin_s = time.monotonic()
    if episodes == 0:
        values = [1e3 * zero_shot_s(problem, path, seed) for seed, path in enumerate(paths)]
        return Ours.over(values, elapsed_s=time.monotonic() - begin_s)
    runs = [run_once(problem, going_on(path, episodes, seed, effort)) for seed, path in enumerate(paths)]
    return Search("doppler").ours(runs, UNITS["ms"])


def going_on(path: Path, episodes: int, seed: int, effort: Effort) -> SolveOptions:
    """A search of so many episodes that begins with a policy file."""
    most = min(episodes, effort.max_evaluations or episodes)
    changes = {"initial": str(path), "teacher_updates": "0"}
    return replace(effort, max_evaluations=most).options("doppler", seed=seed, changes=changes)


def zero_shot_plans(problem: ScheduleProblem, path: Path | None, seed: int, num: int = 1) -> list[Plan]:
    """The most probable plan of a policy file on a problem, or of none, and draws until there are so many plans."""
    import torch

    changes = {} if path is None else {"initial": str(path)}
    placer: DopplerPlacer = SolveOptions("doppler", changes=changes).placer()  # type: ignore[assignment]
    generator = torch.Generator().manual_seed(seed)
    return first_plans(placer.policy(problem_of(problem), generator), num, generator)


def zero_shot_s(problem: ScheduleProblem, path: Path | None, seed: int, num: int = 1) -> float:
    """Simulated seconds of the best of these plans, infinite where none is within memory."""
    units, plans = problem_of(problem), zero_shot_plans(problem, path, seed, num)
    evaluator = ScheduleEvaluator(problem, units.semantics, unit_of_op=units.units.partition.labels)
    return min(score.value for score in evaluator.evaluate(plans))


def on(platform: str) -> Callable[[str], ScheduleProblem]:
    """A workload on a platform."""
    return partial(build_problem, platform=platform)


def of_searches(platform: str, settings: Mapping[str, Column], controls: Sequence[str] = tuple(CONTROLS)) -> Recipe:
    """A table of searches on a platform."""
    return Recipe(Searches(on(platform), settings, "ms"), ABOUT_DOPPLER, controls=tuple(controls))


def of_transfers(source: Callable[[str], ScheduleProblem], target: Callable[[str], ScheduleProblem]) -> Recipe:
    """A table of transfers from one problem to another."""
    about = (
        f"{ABOUT_DOPPLER} The policy is trained on the first problem in the budget of a search, by at most "
        f"{SOURCE_EPISODES} plans; zero-shot is its most probable plan, not the best of several."
    )
    return Recipe(Transfers(source, Searches(target, RIVALS, "ms")), about, controls=(UNTRAINED, *CONTROLS))


DOPPLER: dict[str, Recipe] = {
    "doppler-1": Recipe(
        synchrony,
        f"{ABOUT_DOPPLER} The placement is ENUMERATIVEOPTIMIZER's in both columns; synchronous means that no op starts "
        "before all ops of the level before it have ended.",
    ),
    "doppler-2": of_searches(
        "p100x4", {**RIVALS, "GDP": Search("gdp"), "DOPPLER-SIM": Search("doppler"), "DOPPLER-SYS": STAGE_3}
    ),
    "doppler-3": of_searches(
        "p100x4",
        {
            "DOPPLER-SYS": Search("doppler", note=SIMULATED),
            "DOPPLER-SEL": Search("doppler", changes={"learns_devices": "false"}, note=SIMULATED),
            "DOPPLER-PLC": Search("doppler", changes={"learns_order": "false"}, note=SIMULATED),
        },
        SIMPLE_CONTROLS,
    ),
    "doppler-4": of_transfers(
        lambda row: build_problem(row.partition(" ")[0], "p100x4"),
        lambda row: build_problem(row.rpartition(" ")[2], "p100x4"),
    ),
    "doppler-5": of_searches(
        "p100x4", {f"seed {seed}": Search("doppler", seed=seed, note=SIMULATED) for seed in range(5)}, SIMPLE_CONTROLS
    ),
    "doppler-7": of_searches(
        "p100x4",
        {
            "PLACETO-pretrain": Search(
                "placeto",
                changes={"teacher_updates": "100"},
                note="100 updates imitate CRITICAL PATH before it learns from rewards",
            ),
            "PLACETO": Search("placeto"),
            "DOPPLER-SIM": Search("doppler"),
            "DOPPLER-SYS": STAGE_3,
        },
    ),
    "doppler-8": of_searches("p100x4-8g", {**RIVALS, "1 GPU": Single("gpu0")}),
    "doppler-9": of_searches("v100x8", {**RIVALS, "1 GPU": Single("gpu0")}),
    "doppler-11": of_transfers(on("p100x4"), on("v100x8")),
}

# ---- DiviML: randomly wired networks with simulated costs, and GPT-3 on a cluster

BATCH, SERVERS = 16, 6
METHODS = {
    "best device": "best-device", "MET": "met", "Greedy": "greedy", "HEFT": "heft", "(1+1) EA": "ea", "SA": "sa",
    "MILP": "cpsat", "MILP-SPLIT": "milp-split",
}  # fmt: skip
EXACT = "CP-SAT stands for the paper's MILP"
ABOUT_DIVIML = (
    "Times of ops are simulated: constants were fitted to the columns best device, MET, Greedy and HEFT of Table I, "
    "and to no other (docs/exact.md); networks are drawn with seed 0."
)


@dataclass(frozen=True)
class Progress:
    """What a search came to: value and bound, when its best was first known, and (seconds, value) of all plans."""

    value_s: float
    bound_s: float
    best_after_s: float
    plans: tuple[tuple[float, float], ...]

    def seconds_to(self, value_s: float) -> float:
        """When a solution as good as ``value_s`` was known; infinite where none was."""
        return min((after_s for after_s, plan_s in self.plans if plan_s <= value_s * (1 + 1e-9)), default=np.inf)


def progress_of(problem: ScheduleProblem, method: str, budget_s: float, seed: int) -> Progress:
    """Search for latency, and note when what was known."""
    recorders: list[RecordingEvaluator] = []
    listening = Watcher(on_event=lambda _, recorder: recorders.append(recorder))
    result = solve(problem, make_placer(method), SolveOptions(method, LATENCY, budget_s=budget_s, seed=seed), listening)
    value_s = np.inf if result.value_s is None else result.value_s
    events = ((event.elapsed_s, event.score.value) for recorder in recorders[-1:] for event in recorder.events)
    after_s = result.best_after_s
    return Progress(value_s, result.lower_bound_s, after_s, (*events, (after_s, value_s)))


def solver_times(name: str, columns: Sequence[str], effort: Effort) -> Iterator[tuple[str, Ours]]:
    """DiviML, Table III: seconds of both solvers on a network of 'KIND, NUMBER modules'."""
    kind, number, _ = name.replace(",", "").split()
    problem, best_s = network(f"{kind}-2", int(number)), np.inf
    for column in columns:
        begin_s = time.monotonic()
        progress = progress_of(problem, METHODS[column], effort.budget_s, SEED)
        note = f"its best is {1e3 * progress.value_s:.2f} ms"
        if np.isfinite(best_s):
            as_good_s = progress.seconds_to(best_s)
            reached = f"after {as_good_s:.2f} s" if np.isfinite(as_good_s) else "never"
            note += f", as good as the one before {reached}"
        best_s = progress.value_s
        yield column, Ours(progress.best_after_s, note=note, elapsed_s=time.monotonic() - begin_s)


def batched_throughput(name: str, columns: Sequence[str], effort: Effort) -> Iterator[tuple[str, Ours]]:
    """DiviML, Table IV: inputs over the makespan of a batch that devices divide in quarters."""
    problem, bound_s = network(name), 0.0
    table = batch_times(problem, BATCH)
    for column in columns:
        if column == "UBound":
            yield column, Ours(BATCH / bound_s) if bound_s else Ours(note="no search proved a bound")
            continue
        options = BatchOptions(METHODS[column], BATCH, budget_s=effort.budget_s, seed=SEED)
        result = solve_batched(problem, options, Watcher(), table)
        bound_s = max(bound_s, result.lower_bound_s)
        yield column, Ours(result.inputs_per_s, note=result.status.value, elapsed_s=result.elapsed_s)


def batch_times(problem: ScheduleProblem, num_inputs: int) -> BatchTable:
    """Quarters of a batch, an op's launch being paid once for each of them."""
    sizes = BatchTable.quarters(problem, num_inputs, 0.0)
    launch_s = np.minimum(np.array(Costs().launch_s), problem.time_s)[:, :, None]
    times = launch_s + (problem.time_s[:, :, None] - launch_s) * np.array(sizes.sizes)
    return BatchTable(num_inputs, sizes.sizes, times, sizes.group)


def gpt3_on(row: str) -> ScheduleProblem:
    """All of GPT-3 on six servers, or a sixth of its layers on one, which the other servers repeat."""
    if not row.startswith("one server"):
        return build_problem("gpt3")
    return workload_problem(gpt3(GptSizes(layers=GptSizes().layers // SERVERS)), cluster(load_platform("t4-a100"), 1))


def gpt3_throughput(name: str, _: Sequence[str], effort: Effort) -> Iterator[tuple[str, Ours]]:
    """DiviML, Table V: the rows are methods; inputs a second."""
    one_form = Absent("milp-split has one form, in the row 'symmetries by time'")
    own: dict[str, Column] = {
        "one server, MILP": Search("cpsat", seed=SEED),
        "six servers, MILP-SPLIT, no symmetries": one_form,
        "six servers, MILP-SPLIT, symmetries by batches": one_form,
        "six servers, MILP-SPLIT, symmetries by tasks": one_form,
    }
    settings: dict[str, Column] = {
        "throughput": own.get(name, Search("milp-split", seed=SEED)),
        "bound": LargestBound(),
    }
    cells = dict(Searches(gpt3_on, settings, "inputs/s", THROUGHPUT)(name, ("throughput", "bound"), effort))
    yield "throughput", cells["bound" if name == "UBound" else "throughput"]


DIVIML: dict[str, Recipe] = {
    "diviml-1": Recipe(
        Searches(
            network,
            {**{column: Search(method) for column, method in METHODS.items()}, "LBound": LargestBound()},
            "ms",
        ),
        f"{ABOUT_DIVIML} {EXACT}.",
        controls=("random draws", "auto"),
    ),
    "diviml-3": Recipe(
        solver_times,
        f"{ABOUT_DIVIML} Networks have two channels; {EXACT}, and both have the same budget.",
        TIMED,
    ),
    "diviml-4": Recipe(
        batched_throughput,
        f"{ABOUT_DIVIML} Batches of {BATCH} inputs; a batch of b takes launch + (t - launch) b; {EXACT}. UBound is the "
        "batch over the largest bound of the row.",
    ),
    "diviml-5": Recipe(
        gpt3_throughput,
        "Simulated, with data-sheet devices; inputs follow each other through the servers (--objective throughput), "
        f"where the paper divides batches. milp-split has one form, which breaks all symmetries; {EXACT}.",
    ),
}

# ---- Placeto: its comparisons, and policies judged on graphs of a family that they were not trained on

TESTED = 5
"""Graphs of a family that methods are judged on."""
PROBLEMS, UPDATES_PER_S, EXPERT_SHARE = 20, 20, 0.02
"""Graphs that a policy is trained on; updates for each second of a budget; the share of it for each graph's expert."""
DRAWS = {"zero-shot": 1, "best of 16 draws": 16}
UNSEEN_METHODS = {
    "learned rules": "rules",
    "Placeto": "placeto",
    "HEFT": "heft",
    "random draws": "random",
    "hill climber": "ea",
    "auto": "auto",
}


def on_four_gpus(name: str) -> ScheduleProblem:
    """A workload or a model of the zoo on four P100."""
    if is_workload(name):
        return build_problem(name, "p100x4")
    return assumed_costs(build_model(name), load_platform("p100x4"), name=name)


def unseen_graphs(name: str, columns: Sequence[str], effort: Effort) -> Iterator[tuple[str, Ours]]:
    """Placeto's generalisation: rows are families, figures ratios to annealing in the same budget."""
    tests = [find_family(name).problem(UNSEEN + number) for number in range(TESTED)]

    def search_s(method: str) -> list[float]:
        values = [run_once(test, effort.options(method)).value_s for test in tests]
        return [np.inf if value is None else value for value in values]

    least_s = search_s("sa")
    with tempfile.TemporaryDirectory(prefix="hsdag-") as folder:
        path = Path(folder) / "policy.safetensors"
        if any(column in DRAWS for column in columns):
            updates = max(1, round(UPDATES_PER_S * effort.budget_s))
            run_train(TrainOptions(name, "doppler", PROBLEMS, updates, EXPERT_SHARE * effort.budget_s, unseen=1), path)
        for column in columns:
            begin_s = time.monotonic()
            if column in UNSEEN_METHODS:
                values_s = search_s(UNSEEN_METHODS[column])
            else:
                values_s = [zero_shot_s(test, path, 0, DRAWS[column]) for test in tests]
            ratios = [
                value / least if np.isfinite(least) else np.inf for value, least in zip(values_s, least_s, strict=True)
            ]
            yield column, Ours.over(ratios, elapsed_s=time.monotonic() - begin_s, of="graphs")


PLACETO: dict[str, Recipe] = {
    "placeto-1": Recipe(
        Searches(
            on_four_gpus,
            {
                "Placeto": Search("placeto"),
                "RNN-based": Search("rnn"),
                "best device": Search("best-device"),
                "min-cut": Search("mincut"),
            },
            "ms",
            semantics=Semantics(links=Links.EGRESS),
        ),
        "The paper's figures are of training TensorFlow graphs on K80 GPUs and are not in this repository. Here "
        "inferences of the zoo's model and of random graphs like Placeto's are simulated on four P100, each with one "
        "outgoing bus, as in Placeto's simulator.",
        controls=tuple(CONTROLS),
    ),
    "placeto-2": Recipe(
        unseen_graphs,
        f"Means over {TESTED} graphs of a family, each relative to annealing in the same budget; half of the graphs "
        "limit memory. Zero-shot is the most probable plan of DOPPLER's policy; 'hsdag train' made it of "
        f"{PROBLEMS} other graphs of the family, in {UPDATES_PER_S} updates per second of the budget. Placeto is "
        "trained on the graph at hand; learned rules are those that come with hsdag.",
        controls=("learned rules", "random draws", "hill climber", "auto"),
    ),
}
RECIPES = {**HSDAG, **DOPPLER, **DIVIML, **PLACETO}


# ---- printing


def shown(figure: Figure, deviation: float | None = None) -> str:
    """A figure as text, with its deviation where it has one."""
    if isinstance(figure, list):
        figure, deviation = figure
    if figure is None or isinstance(figure, str):
        return figure or "-"
    return f"{figure:.4g}" + (f"±{deviation:.2g}" if deviation else "")


def markdown(table: PaperTable, recipe: Recipe, cells: Mapping[tuple[str, str], Ours], took_s: float) -> str:
    """The table with a line for each column, our figures by (row, column), and remarks."""
    rows, columns = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    unit = f", in {table.unit}" if table.unit else ""
    lines = [f"### {table.paper}, {table.number}: {table.title}{unit}; ours are {recipe.kind.upper()}", ""]
    heads = [head for row in rows for head in (f"{row}: paper", "ours")]
    lines += [f"| | {' | '.join(heads)} | seconds |", "| --- |" + " ---: |" * (len(heads) + 1)]
    for column in columns:
        own = [(cells.get((row, column), Ours()), table.figure(row, column)) for row in rows]
        texts = [text for ours, paper in own for text in (shown(paper), shown(ours.value, ours.deviation))]
        lines.append(f"| {column} | {' | '.join(texts)} | {sum(ours.elapsed_s for ours, _ in own):.1f} |")
    rows_of: dict[str, list[str]] = {}
    for (row, column), ours in cells.items():
        if ours.note:
            rows_of.setdefault(f"{column}: {ours.note}", []).append(row)
    notes = [note if len(own) == len(rows) else f"{note} ({', '.join(own)})" for note, own in rows_of.items()]
    return "\n".join([*lines, "", *(f"- {line}" for line in (recipe.about, *notes, f"It took {took_s:.0f} s.")), ""])


def reproduce(name: str, effort: Effort, rows: Sequence[str], columns: Sequence[str], *, as_json: bool) -> bool:
    """Print a table, or the named rows and columns of it; whether it is complete."""
    table, recipe, begin_s = PAPER_TABLES[name], RECIPES[name], time.monotonic()
    cells: dict[tuple[str, str], Ours] = {}
    is_complete = False
    with contextlib.suppress(KeyboardInterrupt):
        for row in rows or table.rows:
            for column, ours in recipe.row(row, columns or (*table.columns, *recipe.controls), effort):
                cells[row, column] = ours
                print(f"{name}, {row}, {column}: {shown(ours.value, ours.deviation)}", file=sys.stderr)
        is_complete = True
    if as_json:
        figures = [
            {"row": row, "column": column, "paper": table.figure(row, column), **asdict(ours)}
            for (row, column), ours in cells.items()
        ]
        print(json.dumps({"table": name, "ours": recipe.kind, "complete": is_complete, "cells": figures}))
    else:
        print(markdown(table, recipe, cells, time.monotonic() - begin_s), flush=True)
    return is_complete


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"all, or some of {', '.join(RECIPES)}")
    parser.add_argument("--budget-s", type=float, default=10.0, help="seconds of each search")
    parser.add_argument("--max-evaluations", type=int, help="plans of each search at most")
    parser.add_argument("--seeds", type=int, default=3, help="searches of each figure")
    parser.add_argument("--row", action="append", default=[], help="only this row; repeatable")
    parser.add_argument("--column", action="append", default=[], help="only this column; repeatable")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each table")
    arguments = parser.parse_args()
    names = arguments.tables or list(RECIPES)
    for name in names:
        if name not in RECIPES:
            parser.error(f"unknown table {name!r}; choose among {', '.join(RECIPES)}")
        known = {"row": [*PAPER_TABLES[name].rows], "column": [*PAPER_TABLES[name].columns, *RECIPES[name].controls]}
        for what, names_known in known.items():
            for given in getattr(arguments, what):
                if given not in names_known:
                    parser.error(f"{name} has no {what} {given!r}; choose among {', '.join(names_known)}")
    print(machine(), file=sys.stderr)
    effort = Effort(arguments.budget_s, arguments.max_evaluations, max(1, arguments.seeds))
    done = [reproduce(name, effort, arguments.row, arguments.column, as_json=arguments.json) for name in names]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
