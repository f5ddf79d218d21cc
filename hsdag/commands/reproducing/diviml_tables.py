"""Recipes of DiviML's tables: randomly wired networks with simulated costs, and GPT-3 on a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hsdag.commands.batched import BatchOptions, BatchSolution, solve_batched
from hsdag.commands.reproducing.base import TIMED, Effort, Ours, Recipe
from hsdag.commands.reproducing.diviml_costs import Costs, network
from hsdag.commands.reproducing.searches import (
    Absent,
    Column,
    LargestBound,
    Search,
    SearchTable,
    in_milliseconds,
    per_second,
)
from hsdag.commands.workload import build_problem, cluster, workload_problem
from hsdag.evaluators.recording import RecordingEvaluator
from hsdag.models.diviml import GptSizes, gpt3
from hsdag.placers.exact.batches import BatchTable
from hsdag.placers.registry import make_placer
from hsdag.runtime.platforms import load_platform
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.runtime.problems.objectives.throughput import THROUGHPUT
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

MODULES, SEED, BATCH, SERVERS = 10, 0, 16, 6
ABOUT = (
    "Times of ops are simulated: constants were fitted to the columns best device, MET, Greedy and HEFT of Table I, "
    "and to no other (docs/exact.md); networks are drawn with seed 0."
)
METHODS = {
    "best device": "best-device", "MET": "met", "Greedy": "greedy", "HEFT": "heft", "(1+1) EA": "ea", "SA": "sa",
    "MILP": "cpsat", "MILP-SPLIT": "milp-split",
}  # fmt: skip
EXACT = "CP-SAT stands for the paper's MILP"


@dataclass(frozen=True)
class Progress:
    """What a search came to: value and bound, when its best was first known, and (seconds, value) of all plans."""

    value_s: float
    bound_s: float
    best_after_s: float
    plans: tuple[tuple[float, float], ...]

    def seconds_to(self, value_s: float) -> float:
        """When a solution as good as ``value_s`` was known; infinite where none was."""
        return min((after_s for after_s, found_s in self.plans if found_s <= value_s * (1 + 1e-9)), default=np.inf)


def progress_of(
    problem: ScheduleProblem, method: str, budget_s: float, seed: int, watcher: Watcher | None = None
) -> Progress:
    """Search for latency, and note when what was known."""
    recorders: list[RecordingEvaluator] = []
    stop = watcher.should_stop if watcher is not None else lambda: False
    listening = Watcher(on_event=lambda _, recorder: recorders.append(recorder), should_stop=stop)
    options = SolveOptions(method, LATENCY, budget_s=budget_s, seed=seed)
    solution = solve(problem, make_placer(method), options, listening)
    value_s = np.inf if solution.value_s is None else solution.value_s
    events = ((event.elapsed_s, event.score.value) for recorder in recorders[-1:] for event in recorder.events)
    after_s = solution.best_after_s
    return Progress(value_s, solution.lower_bound_s, after_s, (*events, (after_s, value_s)))


class SolverTimes(Recipe):
    """Table III: when the exact solver and milp-split know their best."""

    kind = TIMED
    about = f"{ABOUT} Networks have two channels; {EXACT}, and both have the same budget."

    def row(self, name: str, columns: Sequence[str], effort: Effort, watcher: Watcher) -> Iterator[tuple[str, Ours]]:
        """Seconds of both solvers on a network of 'KIND, NUMBER modules'."""
        kind, number, _ = name.replace(",", "").split()
        problem, best_s = network(f"{kind}-2", int(number), SEED), np.inf
        for column in columns:
            watcher.on_phase(f"{name}: {column}")
            begin_s = time.monotonic()
            found = progress_of(problem, METHODS[column], effort.budget_s, SEED, watcher)
            if watcher.should_stop():
                return
            note = f"its best is {1e3 * found.value_s:.2f} ms"
            if np.isfinite(best_s):
                as_good_s = found.seconds_to(best_s)
                reached = f"after {as_good_s:.2f} s" if np.isfinite(as_good_s) else "never"
                note += f", as good as the one before {reached}"
            best_s = found.value_s
            yield column, Ours(found.best_after_s, note=note, elapsed_s=time.monotonic() - begin_s)


class BatchedThroughput(Recipe):
    """Table IV: inputs over the makespan of a batch that devices divide in quarters."""

    about = (
        f"{ABOUT} Batches of {BATCH} inputs; a batch of b takes launch + (t - launch) b; {EXACT}. UBound is the batch "
        "over the largest bound of the row."
    )

    def row(self, name: str, columns: Sequence[str], effort: Effort, watcher: Watcher) -> Iterator[tuple[str, Ours]]:
        """Images per second of a network."""
        problem, bound_s = network(name, MODULES, SEED), 0.0
        table = batch_times(problem, BATCH)
        for column in columns:
            watcher.on_phase(f"{name}: {column}")
            if column == "UBound":
                yield column, Ours(BATCH / bound_s) if bound_s else Ours(note="no search proved a bound")
                continue
            options = BatchOptions(METHODS[column], BATCH, budget_s=effort.budget_s, seed=SEED)
            found: BatchSolution = solve_batched(problem, options, watcher, table)
            if watcher.should_stop():
                return
            bound_s = max(bound_s, found.lower_bound_s)
            yield column, Ours(found.inputs_per_s, note=found.status.value, elapsed_s=found.elapsed_s)


def batch_times(problem: ScheduleProblem, num_inputs: int) -> BatchTable:
    """Quarters of a batch, an op's launch being paid once for each of them."""
    sizes = BatchTable.quarters(problem, num_inputs, 0.0)
    launch_s = np.minimum(np.array(Costs().launch_s), problem.time_s)[:, :, None]
    times = launch_s + (problem.time_s[:, :, None] - launch_s) * np.array(sizes.sizes)
    return BatchTable(num_inputs, sizes.sizes, times, sizes.group)


def _gpt3(row: str) -> ScheduleProblem:
    """All of GPT-3 on six servers, or a sixth of its layers on one, which the other servers repeat."""
    if not row.startswith("one server"):
        return build_problem("gpt3")
    return workload_problem(gpt3(GptSizes(layers=GptSizes().layers // SERVERS)), cluster(load_platform("t4-a100"), 1))


class Gpt3(Recipe):
    """Table V: the rows are methods here."""

    about = (
        "Simulated, with data-sheet devices; inputs follow each other through the servers (--objective throughput), "
        f"where the paper divides batches. milp-split has one form, which breaks all symmetries; {EXACT}."
    )

    def row(self, name: str, columns: Sequence[str], effort: Effort, watcher: Watcher) -> Iterator[tuple[str, Ours]]:
        """Inputs a second."""
        one_form = Absent("milp-split has one form, in the row 'symmetries by time'")
        own: dict[str, Column] = {
            "one server, MILP": Search("cpsat", seed=SEED),
            "six servers, MILP-SPLIT, no symmetries": one_form,
            "six servers, MILP-SPLIT, symmetries by batches": one_form,
            "six servers, MILP-SPLIT, symmetries by tasks": one_form,
        }
        setting = own.get(name, Search("milp-split", seed=SEED))
        settings: dict[str, Column] = {"throughput": setting, "bound": LargestBound()}
        table = SearchTable(_gpt3, settings, self.about, per_second, THROUGHPUT, controls=())
        if name != "UBound":
            yield from table.row(name, columns, effort, watcher)
            return
        cells = dict(table.row(name, ("throughput", "bound"), effort, watcher))
        if "bound" in cells:
            yield "throughput", cells["bound"]


RECIPES: dict[str, Recipe] = {
    "diviml-1": SearchTable(
        partial(network, modules=MODULES, seed=SEED),
        {**{column: Search(method) for column, method in METHODS.items()}, "LBound": LargestBound()},
        f"{ABOUT} {EXACT}.",
        in_milliseconds,
        controls=("random draws", "auto"),
    ),
    "diviml-3": SolverTimes(),
    "diviml-4": BatchedThroughput(),
    "diviml-5": Gpt3(),
}
