"""Problem files: what is read is solved by a list scheduler, simulated, and written again."""

from __future__ import annotations

from pathlib import Path

from hsdag import api
from hsdag.runtime.problem.problem_file import problem_from_json, problem_to_json, read_problem
from tests.fuzz.formats.base import Format


def _read(folder: Path) -> None:
    problem = read_problem(folder / "problem.json")
    assert problem_to_json(problem_from_json(problem_to_json(problem))) == problem_to_json(problem)
    solved = api.solve(problem, method="heft", budget="1s")
    api.simulate(problem, solved.placement()).document()


FORMAT = Format(_read)
