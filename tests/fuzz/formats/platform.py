"""Platform files, whose costs for a graph are written as a problem."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.runtime.platforms.analytic import analytic_costs
from hsdag.runtime.platforms.reader import load_platform
from hsdag.runtime.problem.problem_file import problem_from_json, problem_to_json
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from tests.fuzz.formats.base import HERE, Format


@cache
def _graph() -> ComputationGraph:
    return read_graph(HERE / "seeds/ir/branch/model.xml")


def _read(folder: Path) -> None:
    platform = load_platform(folder / "platform.toml")
    costs = analytic_costs(_graph(), platform)
    problem_from_json(problem_to_json(ScheduleProblem.from_graph(_graph(), costs, platform.device_names)))


FORMAT = Format(_read)
