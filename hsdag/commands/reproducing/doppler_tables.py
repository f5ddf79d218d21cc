"""Recipes of DOPPLER's tables: its sharded workloads on simulated P100 and V100. Legend: N ops, E edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hsdag.commands.reproducing.base import Effort, Ours, Recipe
from hsdag.commands.reproducing.searches import (
    CONTROLS,
    SIMPLE_CONTROLS,
    Absent,
    Column,
    Search,
    SearchTable,
    Single,
    in_milliseconds,
)
from hsdag.commands.reproducing.transfer import EdgeCounts, TransferTable
from hsdag.commands.workload import build_problem
from hsdag.ir.graph import IntArray
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import simulate
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

ABOUT = "Graphs, devices and times are simulated; the paper runs its own engine on real GPUs."
STAGE_3 = Absent("stage III learns from measured times, and there are no such GPUs here")
SIMULATED = "stages I and II alone"
CRITICAL_PATH, ENUMERATIVE = Search("critical-path"), Search("enumerative")
DOPPLER = Search("doppler", note=SIMULATED)


class Synchrony(Recipe):
    """Table 1: one placement, simulated as it is and with a barrier behind every level of the graph."""

    about = (
        f"{ABOUT} The placement is ENUMERATIVEOPTIMIZER's in both columns; synchronous means that no op starts before "
        "all ops of the level before it have ended."
    )

    def row(self, name: str, columns: Sequence[str], effort: Effort, watcher: Watcher) -> Iterator[tuple[str, Ours]]:
        """Both makespans of a graph."""
        watcher.on_phase(name)
        problem = build_problem(name, "p100x4")
        found = solve(problem, make_placer("enumerative"), SolveOptions("enumerative", budget_s=effort.budget_s))
        assert found.device is not None
        for column in columns:
            judged = problem if column == "work-conserving" else with_barriers(problem)
            semantics = found.semantics
            run = simulate(judged, found.device, semantics, found.priority)
            yield column, Ours(in_milliseconds(run.makespan_s), elapsed_s=found.elapsed_s / len(columns))


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
    inputs: list[list[int]] = [[] for _ in range(problem.num_ops)]
    for u, v in zip(problem.edge_src.tolist(), problem.edge_dst.tolist(), strict=True):
        inputs[v].append(u)
    for v in problem.topological_order.tolist():
        level[v] = max((level[u] + 1 for u in inputs[v]), default=0)
    return level


def _on(platform: str) -> Callable[[str], ScheduleProblem]:
    return partial(build_problem, platform=platform)


def _trained_on(row: str) -> ScheduleProblem:
    """The problem that a policy is trained on: the graph before 'to'."""
    return build_problem(row.partition(" ")[0], "p100x4")


def _transferred(row: str) -> ScheduleProblem:
    """The problem that a policy is moved to: the graph behind 'to'."""
    return build_problem(row.rpartition(" ")[2], "p100x4")


def _table(
    problem: Callable[[str], ScheduleProblem],
    settings: Mapping[str, Column],
    controls: tuple[str, ...] = tuple(CONTROLS),
) -> SearchTable:
    return SearchTable(problem, settings, ABOUT, in_milliseconds, controls=controls)


_RIVALS: dict[str, Column] = {
    "CRITICAL PATH": CRITICAL_PATH,
    "PLACETO": Search("placeto"),
    "ENUMERATIVEOPTIMIZER": ENUMERATIVE,
    "DOPPLER-SYS": DOPPLER,
}

RECIPES: dict[str, Recipe] = {
    "doppler-1": Synchrony(),
    "doppler-2": _table(
        _on("p100x4"), {**_RIVALS, "GDP": Search("gdp"), "DOPPLER-SIM": Search("doppler"), "DOPPLER-SYS": STAGE_3}
    ),
    "doppler-3": _table(
        _on("p100x4"),
        {
            "DOPPLER-SYS": DOPPLER,
            "DOPPLER-SEL": Search("doppler", changes={"learns_devices": "false"}, note=SIMULATED),
            "DOPPLER-PLC": Search("doppler", changes={"learns_order": "false"}, note=SIMULATED),
        },
        SIMPLE_CONTROLS,
    ),
    "doppler-4": TransferTable(_trained_on, _table(_transferred, _RIVALS)),
    "doppler-5": _table(
        _on("p100x4"),
        {f"seed {seed}": Search("doppler", seed=seed, note=SIMULATED) for seed in range(5)},
        SIMPLE_CONTROLS,
    ),
    "doppler-6": _table(
        _on("p100x4"),
        {
            "once per episode": Search("doppler", counts_plans=True),
            "once per step": Search("doppler", changes={"messages_each_step": "true"}, counts_plans=True),
        },
        SIMPLE_CONTROLS,
    ),
    "doppler-7": _table(
        _on("p100x4"),
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
    "doppler-8": _table(_on("p100x4-8g"), {**_RIVALS, "1 GPU": Single("gpu0")}),
    "doppler-9": _table(_on("v100x8"), {**_RIVALS, "1 GPU": Single("gpu0")}),
    "doppler-10": EdgeCounts(),
    "doppler-11": TransferTable(_on("p100x4"), _table(_on("v100x8"), _RIVALS)),
}
