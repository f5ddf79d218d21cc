"""The JSON answer of ``hsdag place`` as a run folder keeps it, for reports and explanations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from hsdag.ir.errors import FileFormatError
from hsdag.ir.placement import first_problem
from hsdag.runtime.problems.objectives import Objective, find_objective
from hsdag.search.kept_run import KeptRun
from hsdag.search.run_folder import RESULT


class Speedup(TypedDict):
    """How many times faster the answer is than the best single device."""

    versus: str
    ratio: float
    ci95: tuple[float, float]


class Member(TypedDict):
    """One turn of a method of a portfolio; values in the objective's unit."""

    method: str
    began_s: float
    ended_s: float
    before: float | None
    after: float | None
    bound: float | None
    status: str | None
    failure: str | None


class Row(TypedDict):
    """A measured candidate, with seconds, or joules for energy; ``ops`` counts ops by device."""

    name: str
    median_s: NotRequired[float]
    p95_s: NotRequired[float]
    median_j: NotRequired[float]
    p95_j: NotRequired[float]
    runs: int
    ratio_to_best_single: float
    ci95: list[float | None]
    rounds: int
    submodels: int
    ops: dict[str, int]
    answer: bool


class Searched(TypedDict):
    """A placement that was searched and measured, as run folders keep it, too."""

    sentence: str
    objective: str
    speedup: Speedup | None
    rows: list[Row]
    failures: dict[str, str]
    difference: dict[str, float | None] | None
    reference: str
    tolerance: float
    objection: str | None
    evaluations: int
    failed_evaluations: int
    evaluation_failures: dict[str, int]
    simulated_evaluations: int
    search_s: float
    run_folder: str | None
    interrupted: bool
    warnings: list[str]
    turned_down: dict[str, str]
    held_bytes: dict[str, float]
    members: list[Member]


def kept_answer(run: KeptRun) -> Mapping[str, Any]:
    """The answer, empty where the search did not end. Raises FileFormatError where it is none."""
    if run.answer is None:
        return {}
    where, objective = f"{run.path / RESULT}: answer", find_objective(run.record.objective)
    try:
        answer: Mapping[str, Any] = TypeAdapter(Searched).validate_python(run.answer)
    except ValidationError as error:
        raise FileFormatError(f"{where}.{first_problem(error)}") from error
    if not all(_is_of(row, objective) for row in answer["rows"]):
        raise FileFormatError(
            f"{where}.rows: the figures of the objective {objective.name} are missing, or an interval"
        )
    return answer


def _is_of(row: Mapping[str, Any], objective: Objective) -> bool:
    return len(row["ci95"]) == 2 and all(f"{figure}_{objective.suffix}" in row for figure in ("median", "p95"))
