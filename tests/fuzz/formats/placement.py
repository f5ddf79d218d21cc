"""Placement files, read for a model, for a problem, and for an export."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path

from hsdag.exports.base import export_placement
from hsdag.ir.errors import HsdagError
from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.placement.placement import Placement
from hsdag.runtime.problem.problem_file import read_problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.solving.simulate import read_placement
from tests.fuzz.formats.base import HERE, Format


@cache
def _graph() -> ComputationGraph:
    return read_graph(HERE / "seeds/ir/branch/model.xml")


@cache
def _problem() -> ScheduleProblem:
    return read_problem(HERE / "seeds/problem/diamond/problem.json")


def _read(folder: Path) -> None:
    path = folder / "placement.json"
    is_map = False
    with suppress(HsdagError):
        read_placement(path, _problem())
        is_map = True
    try:
        placement = Placement.load(path)
    except HsdagError:
        if not is_map:
            raise
        return
    placement.to_json()
    for name in ("json", "csv", "dot", "python"):
        with suppress(HsdagError):
            export_placement(placement, name, folder / f"exported.{name}")
    placement.devices_of(_graph())
    placement.priority_of(_graph())
    [device.spec() for device in placement.devices]


FORMAT = Format(_read)
